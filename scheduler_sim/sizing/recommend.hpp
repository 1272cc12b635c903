#pragma once

#include <cstdint>
#include <vector>

#include "scheduler_sim/sizing/size_result.hpp"

namespace loratory::sim {

/// The row to recommend: of those that meet the SLO with every seed (`meets_in_every_seed[i]`
/// belongs to configs[i]), the first whose goodput is within 1 % of the best of them; -1 = none.
int32_t choose(const SizeResult& result, const std::vector<bool>& meets_in_every_seed);

/// Fills `reason` and `next_limit`: one sentence each on why `recommended` (or why none), and on
/// what limits next.
void explain(SizeResult& result);

/// Index of the feasible row with the highest goodput, -1 if none is feasible.
int32_t best_goodput(const SizeResult& result);

}  // namespace loratory::sim
