#pragma once

#include <optional>

#include "scheduler_sim/sizing/engine_replay.hpp"

namespace loratory::sim {

/// The nearest fits (cost/nearest_fit.hpp) of what memory denies a sweep that recommends nothing:
/// the first row where none fits; the next larger size where the closest row lacks slots; the
/// longest request where it is larger than the cache. Flags that `result.remedies` tried and that
/// fit are left out: their figures are known. None if memory denies nothing or nothing helps.
std::optional<MoreRoom> more_room(const SizeResult& result, const EngineSpec& engine);

/// What the row's slots take beyond those of engine.default_rank, where its max_lora_rank is that
/// rank rounded up to what the engine allows. None if it costs nothing.
std::optional<RankCost> rank_cost(const ConfigResult& row, const EngineSpec& engine);

}  // namespace loratory::sim
