#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "scheduler_sim/cost/server_terms.hpp"
#include "scheduler_sim/measured/measured_run.hpp"
#include "scheduler_sim/sizing/engine_replay.hpp"

namespace loratory::sim {

/// What is predicted for a measured run.
struct PredictedRun {
  std::string skip;      ///< why it was not simulated; empty = it was
  RunMeasures measures;  ///< kv_tokens 0 = the server does not start
  int num_seeds = 0;     ///< whose mean `measures` are; 0 = only the start was looked at
  /// Requests that are offered / those that the server would finish if there were always more.
  /// Known where the measured TTFT is above kSlowTtftMs and the server may be near 1.
  double utilisation = RunMeasures::kUnknown;

  bool starts() const { return measures.kv_tokens > 0; }
};

/// A first token later than this waited for more than the steps that compute it.
inline constexpr double kSlowTtftMs = 200;
/// A server whose utilisation is between these is critical: a percent of capacity is a multiple of
/// the queue.
inline constexpr double kLeastCritical = 0.97, kMostCritical = 1.03;

struct PredictOptions {
  uint64_t seed = 1;
  int num_threads = 0;  ///< 0 = one per core
  std::function<void(int64_t done, int64_t total)> on_progress;
};

/// Simulates every run from its description alone. A run of fewer than 20,000 requests is the mean
/// of up to four, so that its luck is not an error; all runs have the same seeds, so that those of
/// a sweep see the same arrivals. Same arguments, same result, whatever the number of threads.
/// Throws InputError at the place of a run whose engine can not be made.
std::vector<PredictedRun> predict_runs(
    std::span<const MeasuredRun> runs,
    const std::function<EngineSpec(const MeasuredRun&)>& make_engine, const ServerTerms& server,
    const PredictOptions& options);

}  // namespace loratory::sim
