#include "scheduler_sim/measured/predict_runs.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/measured/measure_fields.hpp"
#include "scheduler_sim/measured/simulate_run.hpp"
#include "scheduler_sim/sizing/tasks.hpp"

namespace loratory::sim {
namespace {

constexpr double kEnoughRequests = 20'000;
constexpr int kMostSeeds = 4;
constexpr double kProbeSeconds = 600, kProbeFactor = 1.25;
constexpr uint64_t kProbe = UINT64_MAX;

double expected_requests(const MeasuredRun& run) {
  if (run.client.num_requests > 0) return double(run.client.num_requests);
  return run.offered_rps() * run.client.duration_s;
}

std::string reason_to_skip(const MeasuredRun& run) {
  const bool ends = run.client.num_requests > 0 || run.client.duration_s > 0;
  return run.has_traffic() && !ends ? "neither its duration nor its requests are known" : "";
}

// A closed loop of equal requests knows no luck.
int num_seeds_of(const MeasuredRun& run) {
  if (!run.has_traffic()) return 0;
  if (run.client.concurrency > 0 && run.lengths == LengthKind::constant) return 1;
  const double seeds = std::ceil(kEnoughRequests / std::max(1.0, expected_requests(run)));
  return int(std::clamp(seeds, 1.0, double(kMostSeeds)));
}

// No request waited, or so much of what came was not done that it is surely above its capacity,
// four standard deviations of the arrivals aside.
bool may_be_critical(const MeasuredRun& run) {
  const bool has_queue = run.measured.mean_ttft_ms > kSlowTtftMs;
  if (!has_queue || run.client.concurrency > 0 || run.client.duration_s == 0) return false;
  const double expected = expected_requests(run);
  return !(run.measured.completed < expected / kMostCritical - 4 * std::sqrt(expected));
}

// The same server for a while with more than it may be able to do.
MeasuredRun probe_of(MeasuredRun run) {
  for (AdapterGroup& group : run.adapters) group.rate_rps *= kProbeFactor;
  run.client.duration_s = std::min(run.client.duration_s, kProbeSeconds);
  run.client.poll_interval_s = 0;
  return run;
}

struct Task {
  size_t run;
  uint64_t seed;  // kProbe: looks for the capacity
  double cost;
};

// The longest first, so that no thread is left alone with one at the end.
std::vector<Task> tasks_of(std::span<const MeasuredRun> runs,
                           const std::vector<PredictedRun>& predicted) {
  std::vector<Task> tasks;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!predicted[i].skip.empty()) continue;
    for (int s = 0; s < std::max(1, predicted[i].num_seeds); ++s) {
      tasks.push_back({i, uint64_t(s), expected_requests(runs[i])});
    }
    if (may_be_critical(runs[i])) {
      tasks.push_back({i, kProbe, runs[i].offered_rps() * kProbeSeconds});
    }
  }
  std::ranges::stable_sort(tasks, std::greater{}, &Task::cost);
  return tasks;
}

RunMeasures start_of(const MeasuredRun& run, const EngineSpec& engine) {
  const MemoryPlan memory = memory_of(engine, {int32_t(run.max_loras), int32_t(run.max_cpu_loras)});
  return measures_of_start(memory, engine.scheduler.block_size);
}

RunMeasures mean_of(const std::vector<RunMeasures>& all) {
  RunMeasures mean;
  for (const MeasureField& field : kMeasureFields) {
    double sum = 0;
    for (const RunMeasures& one : all) sum += one.*field.value;
    mean.*field.value = sum / double(all.size());
  }
  return mean;
}

}  // namespace

std::vector<PredictedRun> predict_runs(
    std::span<const MeasuredRun> runs,
    const std::function<EngineSpec(const MeasuredRun&)>& make_engine, const ServerTerms& server,
    const PredictOptions& options) {
  std::vector<PredictedRun> predicted(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    predicted[i].skip = reason_to_skip(runs[i]);
    predicted[i].num_seeds = num_seeds_of(runs[i]);
  }
  const std::vector<Task> tasks = tasks_of(runs, predicted);
  std::vector<RunMeasures> results(tasks.size());
  std::atomic<int64_t> num_done = 0;
  run_tasks(std::ssize(tasks), options.num_threads, [&](int64_t index) {
    const Task& task = tasks[size_t(index)];
    const MeasuredRun& run = runs[task.run];
    const bool is_probe = task.seed == kProbe;
    const EngineSpec engine = make_engine(run);
    results[size_t(index)] = predicted[task.run].num_seeds == 0
                                 ? start_of(run, engine)
                                 : simulate_run(is_probe ? probe_of(run) : run, engine, server,
                                                options.seed + (is_probe ? 0 : task.seed))
                                       .measures;
    if (options.on_progress) options.on_progress(++num_done, std::ssize(tasks));
  });
  std::vector<std::vector<RunMeasures>> by_run(runs.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    const MeasuredRun& run = runs[tasks[i].run];
    if (tasks[i].seed != kProbe) {
      by_run[tasks[i].run].push_back(results[i]);
    } else if (results[i].kv_tokens > 0) {
      predicted[tasks[i].run].utilisation =
          run.offered_rps() * std::min(run.client.duration_s, kProbeSeconds) / results[i].completed;
    }
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!by_run[i].empty()) predicted[i].measures = mean_of(by_run[i]);
  }
  return predicted;
}

}  // namespace loratory::sim
