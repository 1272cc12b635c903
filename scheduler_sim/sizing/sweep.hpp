#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "scheduler_sim/sizing/engine_replay.hpp"
#include "scheduler_sim/sizing/size_result.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// A system to try where no size of the asked one meets the SLO.
struct Alternative {
  std::string flags;  ///< what makes it: "--tp 2"
  EngineSpec engine;
};

struct SweepOptions {
  std::vector<int32_t> max_loras;      ///< empty = auto: powers of two, then around the best
  std::vector<int32_t> max_cpu_loras;  ///< empty = searched, see sweep()
  Slo slo;
  Choice choice = Choice::robust;
  bool find_headroom = true;
  int num_threads = 0;  ///< 0 = all cores
  /// Called once, if nothing is recommended. In the order in which they are to be tried.
  std::function<std::vector<Alternative>()> alternatives;
  /// Called from any thread after each replay, and before the first one with done = 0.
  std::function<void(int64_t done, int64_t total)> on_progress;
};

/// The max_loras that `auto` tries first for so many adapters: 1, 2, 4, ... and the number itself.
std::vector<int32_t> auto_sizes(int64_t num_adapters);

/// The largest max_cpu_loras worth a replay: a place for every adapter, or as many as
/// host_memory_bytes hold; never below max_loras, whether they fit or not.
int32_t most_host_places(const EngineSpec& engine, int64_t num_adapters, int32_t max_loras);

/// Replays every trace (one per seed: the same requests, adapters dealt anew) on every
/// configuration, on all cores, and recommends one (sizing/recommend.hpp). A row of the result
/// shows the seed with the median goodput; the band is the minimum and maximum over seeds.
///
/// Then, where asked for
///   headroom  of every row: the largest factor of the rate that meets the SLO with every seed,
///             found by bisection (sizing/headroom.hpp) with the same requests and adapters;
///   causes    of every row that misses it, and of what limits the chosen row next
///             (sizing/blame.hpp), with the first seed that misses.
/// Without max_cpu_loras, every row has most_host_places(); for the chosen one, the smallest of
/// max_loras * 2^n is looked for that loses nothing: it meets the SLO with every seed, and keeps 99
/// % of the goodput, TTFT within 5 % (median and SLO percentile) and the headroom but for one step.
/// It becomes a row of its own, and the recommended one. Results do not depend on the number of
/// threads.
///
/// Where no row meets the SLO, the one with the best goodput is tried on other systems: on as many
/// replicas as `--replicas auto` would take (if its headroom says that less traffic would do), and
/// on the alternatives up to the first that meets it.
SizeResult sweep(const std::vector<Trace>& traces, const EngineSpec& engine,
                 const SweepOptions& options);

}  // namespace loratory::sim
