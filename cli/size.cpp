#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
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
#include "cli/settings.hpp"
#include "cli/size_list.hpp"
#include "cli/system_options.hpp"
#include "cli/workload_options.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/report/console.hpp"
#include "scheduler_sim/sizing/sweep.hpp"

namespace loratory::cli {
namespace {

struct SizeOptions {
  WorkloadOptions workload;
  SystemOptions system;
  OutputOptions outputs;
  FleetFlags fleet;
  sim::Slo slo{.ttft_ms = 500, .tpot_ms = 50};
  std::string max_loras = "auto";
  std::string max_cpu_loras;
  std::string choose = "robust";  // robust, smallest
  bool no_headroom = false;
  int num_seeds = 3;
  int num_threads = 0;
};

// The same requests with adapters dealt anew for every seed; a trace with adapters of its own needs
// no second one.
std::vector<sim::Trace> traces_of(const SizeOptions& options) {
  const sim::Trace read = read_workload_trace(options.workload);
  const int num_seeds = options.workload.adapters.are_given() ? options.num_seeds : 1;
  std::vector<sim::Trace> traces(size_t(num_seeds), read);
  for (size_t i = 0; i < traces.size(); ++i) {
    apply_workload(traces[i], options.workload, options.workload.seed + i,
                   options.system.max_lora_rank);
  }
  return traces;
}

// Each configuration is a replay of every seed; a longer list would run for days.
constexpr size_t kMostConfigurations = 4096;

void require_every_cpu_size_used(const sim::SweepOptions& sweep) {
  size_t num_pairs = 0;
  for (const int32_t cpu : sweep.max_cpu_loras) {
    const auto below = std::ranges::upper_bound(sweep.max_loras, cpu) - sweep.max_loras.begin();
    if (below == 0) {
      throw InputError("--max-cpu-loras", fmt::format("{} is below every size of --max-loras", cpu),
                       "an adapter on the GPU is on the CPU too: leave it out");
    }
    num_pairs += size_t(below);
  }
  if (num_pairs > kMostConfigurations) {
    throw InputError(
        "--max-cpu-loras",
        fmt::format("makes {} configurations with --max-loras; at most {} can be tried", num_pairs,
                    kMostConfigurations),
        "list fewer sizes");
  }
}

void set_sizes(const SizeOptions& options, sim::SweepOptions& sweep) {
  if (options.max_loras != "auto") {
    sweep.max_loras = parse_sizes("--max-loras", options.max_loras, kLargestSize);
  }
  if (options.max_cpu_loras.empty()) return;
  sweep.max_cpu_loras = parse_sizes("--max-cpu-loras", options.max_cpu_loras, kLargestCpuSize);
  if (!sweep.max_loras.empty()) require_every_cpu_size_used(sweep);
}

// Twice and four times the GPUs, then larger ones: what a user could buy instead. A system that
// this model cannot run on is no alternative, and a profile is of one system only.
std::vector<sim::Alternative> alternatives_to(const SystemOptions& system,
                                              const sim::EngineSpec& engine,
                                              const std::vector<sim::Trace>& traces) {
  std::vector<sim::Alternative> found;
  if (!system.profile.empty()) return found;
  const auto try_one = [&](std::string flags, const SystemOptions& other) {
    try {
      found.push_back({std::move(flags), make_engine(other, traces)});
      found.back().engine.fleet = engine.fleet;
    } catch (const InputError&) {
    }
  };
  for (const int factor : {2, 4}) {
    SystemOptions other = system;
    other.tp *= factor;
    try_one(fmt::format("--tp {}", other.tp), other);
  }
  const std::string own_gpu = sim::parse_gpu_spec(system.gpu).name;
  for (const char* gpu : {"H100-80", "H200"}) {
    SystemOptions other = system;
    other.gpu = gpu;
    if (gpu != own_gpu) try_one(fmt::format("--gpu {}", gpu), other);
  }
  return found;
}

// An adapter on the GPU is on the CPU too, so that pairs with fewer on the CPU are not tried.
void say_what_is_left_out(const sim::SweepOptions& sweep, const sim::Trace& trace) {
  if (sweep.max_cpu_loras.empty()) return;
  const std::vector<int32_t> sizes =
      sweep.max_loras.empty() ? sim::auto_sizes(std::ssize(trace.adapters)) : sweep.max_loras;
  int64_t num_pairs = 0;
  for (const int32_t size : sizes) {
    num_pairs += std::ranges::lower_bound(sweep.max_cpu_loras, size) - sweep.max_cpu_loras.begin();
  }
  if (num_pairs == 0) return;
  fmt::print(stderr, "loratory: left out: {} with max_cpu_loras below max_loras\n",
             count_text(num_pairs, "pair"));
}

// https://no-color.org
bool has_colors(std::FILE* table) {
  const char *const no_color = std::getenv("NO_COLOR"), *const terminal = std::getenv("TERM");
  const bool is_dumb = terminal != nullptr && std::string_view(terminal) == "dumb";
  const bool is_refused = no_color != nullptr && *no_color != '\0';
  return isatty(fileno(table)) == 1 && !is_dumb && !is_refused;
}

// Until here a seed is the number of its trace.
void count_seeds_from(uint64_t first, sim::SizeResult& result) {
  for (sim::ConfigResult& row : result.configs) row.seed += first;
  for (sim::ConfigResult& row : result.fleets) row.seed += first;
  if (!result.bounds) return;
  result.bounds->base.seed += first;
  result.bounds->resident.seed += first;
}

void run(const CLI::App& command, const SizeOptions& options) {
  refuse_ignored_options(command, options.workload, options.system, options.slo);
  sim::SweepOptions sweep;
  set_sizes(options, sweep);
  OutputFiles files(command, input_files(command, options.workload, options.system));
  open_outputs(files, options.outputs);
  const std::vector<sim::Trace> traces = traces_of(options);
  const sim::Trace& trace = traces.front();
  refuse_ignored_options(command, trace);
  say_what_is_left_out(sweep, trace);
  sim::EngineSpec engine = make_engine(options.system, traces);
  if (!sweep.max_loras.empty()) check_room_for_pins(engine, std::ranges::max(sweep.max_loras));
  apply_fleet(engine, options.fleet, options.workload.seed);
  sweep.slo = options.slo;
  sweep.choice = options.choose == "smallest" ? sim::Choice::smallest : sim::Choice::robust;
  sweep.find_headroom = !options.no_headroom;
  sweep.num_threads = options.num_threads;
  sweep.alternatives = [&] { return alternatives_to(options.system, engine, traces); };
  std::vector<sim::ConfigResult> fleets;
  if (options.fleet.is_auto()) {
    fleets = find_fleets(traces, engine, sweep, options.fleet);
    engine.fleet->num_replicas = replicas_of_cheapest(fleets);
  }
  sim::SizeResult result;
  {
    Progress progress("replaying");
    sweep.on_progress = [&](int64_t done, int64_t total) { progress.show(done, total); };
    result = sim::sweep(traces, engine, sweep);
  }
  result.provenance = provenance();
  result.provenance.seed = options.workload.seed;
  result.provenance.settings = settings_of(command, options.system, engine);
  result.provenance.inputs =
      inputs_of(trace, input_files(command, options.workload, options.system));
  result.workload.adapters = describe_adapters(traces, options.workload);
  describe_step_times(result.workload, options.system, engine.default_rank);
  result.fleets = std::move(fleets);
  const sim::Trace& shown = traces[detailed_row(result).seed];
  count_seeds_from(options.workload.seed, result);
  const std::string note = write_outputs(files, result, shown);
  files.commit();
  std::FILE* const table = files.table();
  const std::string text =
      sim::size_console(result, has_colors(table)) + sim::fleet_console(result);
  std::fputs((text + note).c_str(), table);
  end_with(exit_code_of(result));
}

}  // namespace

void add_size(CLI::App& app) {
  CLI::App& command =
      *app.add_subcommand("size", "Replay a trace on many configurations and recommend max_loras");
  const auto options = std::make_shared<SizeOptions>();
  add_workload_options(command, options->workload);
  command
      .add_option("--max-loras", options->max_loras,
                  "GPU slots to try: a list 4,8,16, a range 4:64:4, or auto")
      ->capture_default_str();
  command.add_option(
      "--max-cpu-loras", options->max_cpu_loras,
      "Adapters in host memory to try with each: a list or range (default: the fewest that lose "
      "nothing)");
  add_choice(
      command, "--choose", options->choose, {"robust", "smallest"},
      "robust: the size with most headroom among those that cost little; smallest: the first "
      "that meets the SLO and serves 99 % of the best goodput");
  command.add_flag("--no-headroom", options->no_headroom,
                   "Do not look for the largest rate that each size can serve");
  add_number(command, "--seeds", options->num_seeds, {1, 100},
             "Number of seeds, each with its own assignment of adapters; the report shows their "
             "range");
  add_number(command, "--threads", options->num_threads, {0, 1024},
             "Parallel replays, 0 = all cores");
  add_slo_options(command, options->slo);
  add_fleet_options(command, options->fleet);
  add_system_options(command, options->system);
  add_output_options(command, options->outputs);
  command.final_callback([&command, options] { run(command, *options); });
}

}  // namespace loratory::cli
