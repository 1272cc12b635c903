#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "scheduler_sim/sizing/engine_replay.hpp"
#include "scheduler_sim/sizing/size_result.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

struct SweepOptions {
  std::vector<int32_t> max_loras;      ///< empty = auto: powers of two, then around the best
  std::vector<int32_t> max_cpu_loras;  ///< empty = 4 x max_loras, at most one per adapter
  Slo slo;
  int num_threads = 0;  ///< 0 = all cores
  /// Called from any thread after each replay, and before the first one with done = 0.
  std::function<void(int64_t done, int64_t total)> on_progress;
};

/// The max_loras that `auto` tries first for so many adapters: 1, 2, 4, ... and the number itself.
std::vector<int32_t> auto_sizes(int64_t num_adapters);

/// Replays every trace (one per seed: the same requests, adapters dealt anew) on every
/// configuration, on all cores, and recommends one:
///   of the configurations that meet the SLO with every seed, the smallest whose goodput is within
///   1 % of the best; none, if none meets it.
/// A row of the result shows the seed with the median goodput; the band is the minimum and maximum
/// over seeds. Results do not depend on the number of threads.
SizeResult sweep(const std::vector<Trace>& traces, const EngineSpec& engine,
                 const SweepOptions& options);

}  // namespace loratory::sim
