#include "cli/calibrate_steps.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include "cli/engine.hpp"
#include "cli/flags.hpp"
#include "cli/ignored_options.hpp"
#include "cli/output_files.hpp"
#include "cli/serving_model.hpp"
#include "reference/base/input_error.hpp"
#include "scheduler_sim/measured/profiling_plan.hpp"
#include "scheduler_sim/measured/recorded_steps.hpp"
#include "scheduler_sim/measured/step_fit.hpp"
#include "scheduler_sim/report/calibration_report.hpp"

namespace loratory::cli {
namespace {

constexpr int64_t kLongestProfiled = 4096;  // tokens of a request, if the model has as many
constexpr const char* kGroup = "Own engine";
const std::vector<std::string> kMeasuredFlags{"--server-log",   "--describe", "--rows",
                                              "--from-columns", "--folds",    "--rounds",
                                              "--threads",      "--csv"};
const std::vector<std::string> kExecutorFlags{
    "--weights",       "--adapter-dir",  "--async-scheduling",       "--dtype",    "--max-loras",
    "--max-lora-rank", "--max-num-seqs", "--max-num-batched-tokens", "--steps-out"};

bool is_profiled(const StepOptions& o) { return !o.real.executor.empty(); }

struct Recording {
  std::vector<sim::RecordedStep> steps;
  sim::StepProfile described;  // whose steps they are
};

Recording profile_now(const StepOptions& o, uint64_t seed) {
  const SystemOptions& system = o.system;
  const sim::ProfilingPlan plan =
      sim::profiling_plan({.max_num_seqs = system.max_num_seqs,
                           .max_model_len = std::min(kLongestProfiled, most_positions(system)),
                           .max_loras = o.max_loras,
                           .rank = uint32_t(system.max_lora_rank)},
                          seed);
  sim::EngineSpec engine = make_engine(system, plan.trace);
  sim::StepRecorder recorder(plan.first_held_id);
  const RealReplay run = replay_for_real(plan.trace, engine, {o.max_loras, o.max_loras}, {}, o.real,
                                         system, seed, &recorder);
  Recording recording;
  recording.steps = recorder.steps();
  recording.described.model = engine.model.name;
  recording.described.gpu = o.real.executor == "gpu" ? engine.gpu.name : "CPU";
  recording.described.engine = run.engine;
  sim::describe_types(recording.described, engine.model, engine.memory.lora_dtype);
  return recording;
}

Recording read_steps(const StepOptions& o) {
  Recording recording;
  recording.steps = sim::read_recorded_steps(o.steps);
  recording.described.model = o.system.model;
  recording.described.gpu = o.system.gpu;
  recording.described.engine = "loratory on a GPU";
  return recording;
}

// What a reader of the file must know of the fit.
std::string source_of(const StepOptions& o, const sim::StepFit& fit) {
  const std::string whose =
      is_profiled(o) ? fmt::format("of --executor {}", o.real.executor)
                     : fmt::format("of {}", std::filesystem::path(o.steps).filename().string());
  return fmt::format("loratory calibrate, {} steps {}; a held step is {:.1f} % off (median of {})",
                     fit.fitted.num_steps, whose, 100 * fit.held.median, fit.held.num_steps);
}

}  // namespace

void add_step_options(CLI::App& command, StepOptions& o) {
  const auto in_group = [](CLI::Option* option) { option->group(kGroup); };
  in_group(add_choice(command, "--executor", o.real.executor, executor_names(),
                      "Profile our own engine in a short run, instead of --measured"));
  in_group(command.add_option("--weights", o.real.weights,
                              "Folder of the model, or random: made up on the GPU for --model"));
  in_group(command.add_option("--adapter-dir", o.real.adapter_dir,
                              "Keep the adapters that are made up, and use them again"));
  add_async_scheduling(command, o.real.async_scheduling);
  in_group(command.get_option("--async-scheduling"));
  in_group(command.add_option("--steps", o.steps, "Recorded steps, instead of --executor"));
  in_group(command.add_option("--model", o.system.model, "The model, where no folder says it"));
  in_group(command.add_option("--gpu", o.system.gpu, "The GPU, for the profile"));
  in_group(add_choice(command, "--dtype", o.system.dtype, dtype_names(), "Of the model"));
  in_group(add_number(command, "--max-loras", o.max_loras, {1, 512}, "Slots"));
  o.system.max_lora_rank = 16;
  in_group(add_number(command, "--max-lora-rank", o.system.max_lora_rank, {1, 512},
                      "Rank of the adapters"));
  in_group(add_number(command, "--max-num-seqs", o.system.max_num_seqs, {1, 4096},
                      "Requests that run together"));
  in_group(add_number(command, "--max-num-batched-tokens", o.system.max_num_batched_tokens,
                      {1, 1 << 20}, "Tokens of a step"));
  in_group(command.add_option("--steps-out", o.steps_out, "Write the steps, for --steps"));
}

bool settle_step_options(const CLI::App& command, StepOptions& o) {
  const bool measured = command.count("--measured") > 0;
  const int num_kinds = int(measured) + int(is_profiled(o)) + int(!o.steps.empty());
  if (num_kinds != 1) {
    throw InputError("calibrate", num_kinds == 0 ? "nothing to fit to" : "two things to fit to",
                     "give --measured, --executor or --steps");
  }
  if (measured) {
    refuse_ignored(command, kExecutorFlags, "the runs were measured");
    refuse_ignored(command, {"--model", "--gpu"}, "the runs describe their servers",
                   "--describe says what they leave out");
    return false;
  }
  refuse_ignored(command, kMeasuredFlags, "steps are fitted, not runs");
  if (is_profiled(o)) {
    settle_real_options(command, o.real, o.system);
  } else {
    refuse_ignored(command, kExecutorFlags, "the steps were recorded");
  }
  return true;
}

void calibrate_steps(const CLI::App& command, StepOptions o, const std::string& out,
                     uint64_t seed) {
  OutputFiles files(command, {{"the recorded steps", o.steps}, {"the model", o.system.model}});
  files.open("--out", out);
  files.open("--steps-out", o.steps_out);
  Recording recording = is_profiled(o) ? profile_now(o, seed) : read_steps(o);
  for (const sim::RecordedStep& step : recording.steps) {
    int& most = recording.described.max_rank;
    most = std::max(most, int(step.shape.max_rank));
  }
  sim::StepFit fit = sim::fit_steps(recording.steps, recording.described);
  fit.profile.source = source_of(o, fit);
  std::fputs(sim::step_fit_console(fit).c_str(), files.table());
  *files.find("--out") << sim::format_step_profile(fit.profile);
  if (auto* steps = files.find("--steps-out")) sim::write_recorded_steps(*steps, recording.steps);
  files.commit();
}

}  // namespace loratory::cli
