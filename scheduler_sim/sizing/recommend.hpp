#pragma once

#include "scheduler_sim/metrics/results.hpp"

namespace loratory::sim {

/// Chooses a row of a sweep and says in one sentence each why, and what limits next. Fills
/// `recommended`, `reason` and `next_limit`. `meets_in_every_seed[i]` belongs to configs[i].
void recommend(SizeResult& result, const std::vector<bool>& meets_in_every_seed);

/// Index of the feasible row with the highest goodput, -1 if none is feasible.
int32_t best_goodput(const SizeResult& result);

}  // namespace loratory::sim
