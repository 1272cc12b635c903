#include "cli/real_replay.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "cli/flags.hpp"
#include "cli/progress.hpp"
#include "cli/serving_model.hpp"
#include "cli/wall_clock.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/integers.hpp"
#include "reference/model/model_presets.hpp"
#include "scheduler_sim/report/serving_report.hpp"
#include "scheduler_sim/serving/synthetic_adapter.hpp"
#include "scheduler_sim/serving/trace_run.hpp"
#include "scheduler_sim/sizing/fleet_replay.hpp"

namespace loratory::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRandom = "random";

}  // namespace

void add_real_options(CLI::App& command, RealOptions& options) {
  std::vector<std::string> executors = executor_names();
  executors.insert(executors.begin(), "simulator");
  add_choice(command, "--executor", options.executor, executors,
             "What plays the trace: the simulator, or an engine that computes, in real time")
      ->group("Real engine");
  command
      .add_option("--weights", options.weights,
                  "Folder of the model (its config.json is then --model), or random: made up on "
                  "the GPU for --model")
      ->group("Real engine");
  command
      .add_option("--adapter-dir", options.adapter_dir,
                  "Keep the adapters that are made up for the trace, and use them again")
      ->group("Real engine");
  add_async_scheduling(command, options.async_scheduling);
  command.get_option("--async-scheduling")->group("Real engine");
  command
      .add_flag("--with-simulation", options.with_simulation,
                "Simulate the same as well: print its error, and draw both into --perfetto")
      ->group("Real engine");
}

void settle_real_options(const CLI::App& command, const RealOptions& real, SystemOptions& system) {
  if (!real.is_real()) {
    if (real.async_scheduling == "on") {
      refuse_ignored(command, {"--replicas", "--router"}, "--async-scheduling on is of one engine");
    }
    return refuse_ignored(command, {"--weights", "--adapter-dir", "--with-simulation"},
                          "the simulator computes nothing", "add --executor, or leave it out");
  }
  const std::string why = fmt::format("--executor {} is one engine", real.executor);
  refuse_ignored(command, {"--stepwise", "--replicas", "--router"}, why);
  if (real.weights.empty()) {
    throw InputError("--executor", fmt::format("{} needs a model", real.executor),
                     "add --weights DIR, or --weights random");
  }
  if (system.tp != 1) throw InputError("--tp", why, "leave it out");
  if (real.weights == kRandom) return;
  if (command.count("--model") > 0) {
    throw InputError("--model", "--weights has a config.json of its own", "leave it out");
  }
  system.model = (fs::path(real.weights) / "config.json").string();
}

namespace {

// --- the model --------------------------------------------------------------------------------

reference::ModelConfig config_named(const std::string& name) {
  for (const reference::ModelPreset& preset : reference::model_presets()) {
    if (CLI::detail::to_lower(name) == CLI::detail::to_lower(std::string(preset.name))) {
      return reference::parse_model_config(preset.config, name);
    }
  }
  return reference::read_model_config(name, "give a config.json, or the name of a model");
}

std::unique_ptr<ServingModel> load_model(const RealOptions& real, const SystemOptions& system) {
  const Progress progress("loading the model");
  if (real.weights != kRandom) {
    return load_serving_model(real.executor, real.weights, system.dtype);
  }
  return random_serving_model(real.executor, config_named(system.model), system.dtype);
}

void check_length(const sim::EngineSpec& engine, const reference::ModelConfig& model) {
  const int64_t most = most_positions(model);
  if (int64_t{engine.scheduler.max_model_len} <= most) return;
  throw InputError("--trace",
                   fmt::format("requests of up to {} tokens, and the model has {} positions",
                               engine.scheduler.max_model_len, most),
                   "cut the trace, or give --max-model-len to refuse the longer ones");
}

// --- adapters ---------------------------------------------------------------------------------

// A folder that is gone when the run is over, or the user's.
class AdapterFolders {
 public:
  explicit AdapterFolders(const std::string& kept) : path_(kept), is_kept_(!kept.empty()) {
    if (is_kept_) return;
    std::string name = (fs::temp_directory_path() / "loratory-adapters-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw InputError("--adapter-dir", fmt::format("{} cannot be written", name),
                       "name a folder that can");
    }
    path_ = name;
  }
  ~AdapterFolders() {
    std::error_code ignored;
    if (!is_kept_) fs::remove_all(path_, ignored);
  }
  AdapterFolders(const AdapterFolders&) = delete;
  AdapterFolders& operator=(const AdapterFolders&) = delete;

  /// Written if it is not there: of this number and rank, for a model of this shape.
  std::string adapter(size_t number, uint32_t rank, const reference::ModelConfig& model) const {
    const std::string name =
        fmt::format("{}-r{}-{}x{}", number, rank, model.hidden, model.num_layers);
    const std::string folder = (path_ / name).string();
    if (!fs::exists(fs::path(folder) / "adapter_config.json")) {
      sim::write_synthetic_adapter(folder, model, rank, /*seed=*/number);
    }
    return folder;
  }

 private:
  fs::path path_;
  bool is_kept_;
};

std::vector<sim::AdapterSource> make_adapters(const AdapterFolders& folders,
                                              std::span<const uint32_t> ranks,
                                              const ServingModel& model) {
  Progress progress("making adapters");
  std::vector<sim::AdapterSource> sources;
  for (size_t i = 0; i < ranks.size(); ++i) {
    progress.show(int64_t(i), std::ssize(ranks), "adapters");
    sources.push_back(sim::peft_directory(folders.adapter(i, ranks[i], model.config()),
                                          base_model_shapes(model.config()),
                                          model.adapter_options()));
  }
  return sources;
}

// --- the run ----------------------------------------------------------------------------------

int64_t num_kv_blocks(const sim::Trace& trace, const sim::SchedulerConfig& scheduler,
                      const sim::ModelRunnerConfig& runner, const ServingModel& model) {
  const int64_t longest = ceil_div(int64_t{scheduler.max_model_len}, int64_t{scheduler.block_size});
  const int64_t wanted = std::max(longest, sim::blocks_for_all(trace, scheduler));
  return int64_t{model.num_kv_blocks(scheduler, runner, wanted, longest)} - 1;
}

void play(sim::TraceRun& run, const sim::Trace& trace, const sim::EngineSpec& engine) {
  const auto num_requests = std::ssize(trace.requests);
  Progress progress("playing");
  progress.show(0, num_requests, "requests");
  run.run(pins_in(trace, engine),
          [&](int64_t num_arrived) { progress.show(num_arrived, num_requests, "requests"); });
}

void fill(sim::ConfigResult& result, sim::TraceRun& run, const sim::EngineSpec& engine,
          sim::EnginePoint point, const sim::Slo& slo) {
  result.max_loras = point.max_loras;
  result.max_cpu_loras = point.max_cpu_loras;
  result.memory = memory_of(engine, point).split;
  run.metrics().fill(result, slo, engine.scheduler.block_size, /*keep_details=*/true);
  result.event_log_hash = run.log().hash();
  if (!waits_are_known(engine)) result.waits = {};
  fill_cost(result, engine);
  result.meets_slo = meets_slo(result, slo);
  result.cause = miss_of(result, slo);
}

}  // namespace

int64_t most_positions(const SystemOptions& system) {
  return most_positions(config_named(system.model));
}

RealReplay replay_for_real(const sim::Trace& trace, sim::EngineSpec& engine, sim::EnginePoint point,
                           const sim::Slo& slo, const RealOptions& real,
                           const SystemOptions& system, uint64_t seed,
                           sim::StepObserver* profiler) {
  const std::unique_ptr<ServingModel> model = load_model(real, system);
  check_length(engine, model->config());
  sim::SimulationConfig config = simulation_config(trace, engine, point, /*kv_blocks=*/1);
  const sim::ModelRunnerConfig runner{.max_lora_rank = engine.memory.max_lora_rank,
                                      .lora_dtype = engine.memory.lora_dtype};
  if (engine.forced_kv_blocks == 0) {
    engine.forced_kv_blocks = uint32_t(num_kv_blocks(trace, config.scheduler, runner, *model));
  }
  config.scheduler.num_blocks = 1 + engine.forced_kv_blocks;
  config.keep_log = true;
  const AdapterFolders folders(real.adapter_dir);
  const auto sources = make_adapters(folders, config.adapter_ranks, *model);
  const sim::TracePrompts prompts(trace, seed, model->config().vocab);

  WallClock clock;
  const auto executor = model->start(config.scheduler, runner, clock);
  sim::TraceRun run(trace, prompts, config, *executor, clock,
                    steps_ahead(real.async_scheduling, real.executor),
                    profiler == nullptr ? sim::TraceRun::Arrivals::at_their_times
                                        : sim::TraceRun::Arrivals::when_idle);
  if (profiler != nullptr) run.observe(*profiler);
  run.add_adapters(sources);
  clock.restart();
  play(run, trace, engine);

  RealReplay out;
  fill(out.output.result, run, engine, point, slo);
  out.output.decisions = run.log().decisions();
  out.engine = real.executor == "gpu" ? "loratory on a GPU" : "loratory on the CPU";
  if (const auto* times = executor->step_times()) out.host = host_text(*times);
  return out;
}

}  // namespace loratory::cli
