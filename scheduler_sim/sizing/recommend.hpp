#pragma once

#include <cstdint>

#include "scheduler_sim/sizing/size_result.hpp"

namespace loratory::sim {

inline constexpr double kGoodputShare = 0.99;  ///< of the best: as good as it
inline constexpr double kKvShare = 0.90;       ///< of the smallest candidate's blocks: costs little

/// The row that `result.choice` recommends, -1 = none.
///
/// Candidates meet the SLO with every seed, and their goodput is within 1 % of the best that do.
///   smallest  the first of them.
///   robust    of those that keep 90 % of the KV blocks of the first, the one with the most
///             headroom. Headrooms within two steps (5 %) are the same; then a size that holds
///             every adapter comes first, for popularity cannot hurt it, and the smallest after it.
/// Where headroom is not known, robust is smallest.
int32_t choose(const SizeResult& result);
int32_t choose(const SizeResult& result, Choice choice);

/// Index of the feasible row with the highest goodput, -1 if none is feasible.
int32_t best_goodput(const SizeResult& result);

}  // namespace loratory::sim
