#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/engine.hpp"
#include "cli/exit_code.hpp"
#include "cli/flags.hpp"
#include "cli/fleet_options.hpp"
#include "cli/ignored_options.hpp"
#include "cli/outputs.hpp"
#include "cli/progress.hpp"
#include "cli/provenance.hpp"
#include "cli/real_replay.hpp"
#include "cli/serving_model.hpp"
#include "cli/settings.hpp"
#include "cli/size_list.hpp"
#include "cli/system_options.hpp"
#include "cli/workload_options.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/report/console.hpp"
#include "scheduler_sim/report/perfetto.hpp"
#include "scheduler_sim/report/simulation_error.hpp"
#include "scheduler_sim/simulator/event_log.hpp"
#include "scheduler_sim/sizing/engine_replay.hpp"

namespace loratory::cli {
namespace {

// Twice what memory planning finds for eight 288 GB cards full of the leanest cache of the built-in
// models: Llama-3.2-1B, FP8, 16 KiB a token, 8.8 M blocks of 16 tokens. The pool takes memory for
// every block it might use, about 500 MB for so many.
constexpr uint32_t kMostKvBlocks = 1 << 24;

struct ReplayOptions {
  WorkloadOptions workload;
  SystemOptions system;
  OutputOptions outputs;
  FleetFlags fleet;
  RealOptions real;
  sim::Slo slo{.ttft_ms = 500, .tpot_ms = 50};
  int32_t max_loras = 8;
  int32_t max_cpu_loras = 0;  // 0 = 4 x max_loras
  uint32_t kv_blocks = 0;
  bool stepwise = false;
  std::string event_log;
};

// Of a fleet: replica by replica, whose number comes first in a line.
void write_event_log(std::ostream& out, const sim::ReplayOutput& output) {
  sim::EventLog::write_text(out, output.decisions);
  for (size_t replica = 0; replica < output.replica_decisions.size(); ++replica) {
    for (const sim::Decision& d : output.replica_decisions[replica]) {
      out << replica << ' ' << sim::EventLog::line_of(d) << '\n';
    }
  }
}

sim::ReplayOutput replay_with_progress(const sim::Trace& trace, const sim::EngineSpec& engine,
                                       sim::EnginePoint point, const ReplayOptions& options) {
  const auto detail =
      options.event_log.empty() ? sim::ReplayDetail::details : sim::ReplayDetail::decisions;
  const auto num_requests = std::ssize(trace.requests);
  Progress progress("replaying");
  progress.show(0, num_requests, "requests");
  return sim::replay(trace, engine, point, options.slo, detail, {}, [&](int64_t num_arrived) {
    progress.show(num_arrived, num_requests, "requests");
  });
}

// What the real run and its simulation have to say of each other.
std::string write_both(const sim::ConfigResult& simulated, const sim::SizeResult& result,
                       const sim::Trace& trace, OutputFiles& files) {
  const sim::ConfigResult& real = detailed_row(result);
  if (auto* out = files.find("--perfetto")) {
    sim::write_perfetto(*out, {"real", real}, {"simulated", simulated}, result.provenance,
                        trace.adapters);
  }
  return "\n" + sim::simulation_error_text(real, simulated);
}

// What a flag came to whose 0 stands for something else.
void settle(std::vector<sim::Setting>& settings, std::string_view name, int64_t value) {
  const auto found = std::ranges::find(settings, name, &sim::Setting::name);
  if (found != settings.end() && found->value == "0") found->value = fmt::format("{}", value);
}

void check_sizes(const ReplayOptions& options, const sim::EngineSpec& engine, int32_t cpu) {
  if (cpu < options.max_loras) {
    throw InputError("--max-cpu-loras", "must be at least --max-loras",
                     "an adapter on the GPU is on the CPU too");
  }
  check_room_for_pins(engine, options.max_loras);
}

void run(const CLI::App& command, ReplayOptions options) {
  settle_real_options(command, options.real, options.system);
  refuse_ignored_options(command, options.workload, options.system, options.slo);
  OutputFiles files(command, input_files(command, options.workload, options.system));
  open_outputs(files, options.outputs);
  files.open("--event-log", options.event_log);
  const sim::Trace trace = load_workload(options.workload, options.system.max_lora_rank);
  refuse_ignored_options(command, trace);
  sim::EngineSpec engine = make_engine(options.system, trace);
  engine.fast = !options.stepwise;
  engine.steps_ahead = steps_ahead(options.real.async_scheduling, options.real.executor);
  engine.forced_kv_blocks = options.kv_blocks;
  apply_fleet(engine, options.fleet, options.workload.seed);
  const int32_t cpu = options.max_cpu_loras > 0 ? options.max_cpu_loras : 4 * options.max_loras;
  check_sizes(options, engine, cpu);
  if (options.fleet.is_auto()) {
    engine.fleet->num_replicas =
        find_replicas({trace}, engine, {options.max_loras, cpu}, options.slo, options.fleet);
  }
  const sim::EnginePoint point{options.max_loras, cpu};
  RealReplay real;
  std::optional<sim::ConfigResult> simulated;
  if (options.real.is_real()) {
    real = replay_for_real(trace, engine, point, options.slo, options.real, options.system,
                           options.workload.seed);
    if (options.real.with_simulation) {
      simulated = replay_with_progress(trace, engine, point, options).result;
    }
    engine.name = real.engine;
  }
  sim::ReplayOutput output = options.real.is_real()
                                 ? std::move(real.output)
                                 : replay_with_progress(trace, engine, point, options);
  output.result.seed = options.workload.seed;

  sim::SizeResult result;
  result.is_replay = true;
  result.provenance = provenance();
  result.provenance.seed = options.workload.seed;
  result.provenance.settings = settings_of(command, options.system, engine);
  result.provenance.inputs =
      inputs_of(trace, input_files(command, options.workload, options.system));
  result.workload = sim::summarize_workload(trace, engine);
  result.workload.adapters = describe_adapters({&trace, 1}, options.workload);
  if (options.real.is_real()) {
    result.workload.cost_model = "a real clock";
    if (!real.host.empty()) result.workload.notes.push_back("host: " + real.host);
  } else {
    describe_step_times(result.workload, options.system, engine.default_rank);
  }
  result.slo = options.slo;
  settle(result.provenance.settings, "max-cpu-loras", cpu);
  settle(result.provenance.settings, "kv-blocks", output.result.memory.kv_blocks);
  result.configs.push_back(std::move(output.result));
  std::string text = sim::replay_console(result) + sim::fleet_console(result);
  text += write_outputs(files, result, trace, /*perfetto=*/!simulated);
  if (simulated) text += write_both(*simulated, result, trace, files);
  if (auto* out = files.find("--event-log")) write_event_log(*out, output);
  files.commit();
  std::fputs(text.c_str(), files.table());
  end_with(exit_code_of(result));
}

}  // namespace

void add_replay(CLI::App& app) {
  CLI::App& command =
      *app.add_subcommand("replay", "Replay a trace on one configuration: every metric");
  const auto options = std::make_shared<ReplayOptions>();
  add_workload_options(command, options->workload);
  add_number(command, "--max-loras", options->max_loras, {1, kLargestSize},
             "GPU slots: adapters in one batch");
  add_number(command, "--max-cpu-loras", options->max_cpu_loras, {0, kLargestCpuSize},
             "Adapters in host memory, 0 = 4 x max-loras");
  add_number(command, "--kv-blocks", options->kv_blocks, {0, kMostKvBlocks},
             "Number of KV blocks, regardless of memory; 0 = what memory leaves");
  command.add_flag("--stepwise", options->stepwise,
                   "Run every step one by one (same event log, slower)");
  command.add_option("--event-log", options->event_log, "Write every decision as a line of text")
      ->group("Outputs");
  add_slo_options(command, options->slo);
  add_fleet_options(command, options->fleet);
  add_real_options(command, options->real);
  add_system_options(command, options->system);
  add_output_options(command, options->outputs);
  command.final_callback([&command, options] { run(command, *options); });
}

}  // namespace loratory::cli
