#pragma once

#include "scheduler_sim/sizing/engine_replay.hpp"

namespace loratory::sim {

/// Two replays that no size can beat. What a configuration misses by is judged against them.
struct Yardsticks {
  /// The base model alone: the same requests without their adapters, no slots, no LoRA kernels.
  /// Requests of different adapters share their prefix blocks here.
  ConfigResult base;
  /// Every adapter resident for free: a slot each at no cost in memory, moved in no time. LoRA's
  /// compute is kept, without the grids that some kernels launch for idle slots.
  ConfigResult resident;
  /// Why the base model misses, if it does: `cause` of a result that meets has kind none.
  Cause base_cause;
};

/// The same requests without adapters.
Trace without_adapters(const Trace& trace);

/// The same requests in the same order, at the times of a Poisson process that ends when the trace
/// does. Patience (cancel - arrival) stays.
Trace with_poisson_arrivals(const Trace& trace, uint64_t seed);

Yardsticks measure_yardsticks(const Trace& trace, const EngineSpec& engine, const Slo& slo);

/// Why `missed`, a replay of the trace that misses the SLO, does.
///
/// A miss is the larger of TTFT and TPOT over their limits, at the SLO's percentile. The bottleneck
/// is looked for by taking one away at a time: the limit of slots, the time of loads and copies,
/// the limit of KV blocks, of seats. A removal explains the miss if it brings it at least half of
/// the way (on a log scale) to the floor: the limit, or what the base model alone misses by. Of
/// the removals that recover 90 % of what the best one does, the one that late requests waited for
/// longest is named. If none explains it alone, it is slots and loads together, where resident
/// adapters do; else LoRA's compute, which is what remains between the base model and resident
/// adapters.
///
/// A configuration no worse than twice the base model alone has the base model's cause. That is
/// looked for in the same way: KV blocks, seats, the peaks of the load (Poisson arrivals instead,
/// the worst of three), and what remains is the speed of the GPU; for that, `miss_without` is of
/// steps in half the time.
/// Cost: up to four replays of the trace, six more for the yardsticks if the base model misses.
Cause find_cause(const Trace& trace, const EngineSpec& engine, const ConfigResult& missed,
                 const Slo& slo, const Yardsticks& yardsticks);

}  // namespace loratory::sim
