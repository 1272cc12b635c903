#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler_sim/cost/server_terms.hpp"
#include "scheduler_sim/cost/step_time.hpp"
#include "scheduler_sim/measured/measured_run.hpp"
#include "scheduler_sim/sizing/engine_replay.hpp"

namespace loratory::sim {

/// A step that a run went through, picked so that every token of an output has the same chance.
struct SampledStep {
  BatchShape shape;
  int64_t step_ns = 0;
};

struct SimulatedRun {
  RunMeasures measures;
  int64_t num_sent = 0, num_dropped = 0;  ///< requests that found no free port
  int64_t num_preemptions = 0;
  /// Mean gap between two tokens of a request as the engine sees it, and how much of it is no step:
  /// copies of adapters.
  double mean_gap_ns = 0, copy_gap_ns = 0;
  /// AdapterSets::num_seen and num_names at a poll of /metrics, the mean of all polls.
  double mean_adapter_sets = 0, mean_adapter_names = 0;
  /// About a thousand, if asked for; the mean over them is the mean over the gaps between tokens.
  std::vector<SampledStep> steps;
};

/// What a server prints when it starts: tokens of the KV cache, weights and slots.
RunMeasures measures_of_start(const MemoryPlan& memory, int64_t block_size);

/// Runs the server from its description alone: the adapters' Poisson arrivals (or requests that
/// follow each other in a closed loop), the law of lengths, the client's limits, until the run
/// ends. Repeats: same arguments, same measures, on any machine. `seed` stands for the run's luck.
SimulatedRun simulate_run(const MeasuredRun& run, const EngineSpec& engine,
                          const ServerTerms& server, uint64_t seed, bool sample_steps = false);

}  // namespace loratory::sim
