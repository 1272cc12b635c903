#include "scheduler_sim/sizing/memory_advice.hpp"

#include <algorithm>

#include "scheduler_sim/cost/nearest_fit.hpp"
#include "scheduler_sim/sizing/recommend.hpp"

namespace loratory::sim {
namespace {

// The row that memory keeps from meeting the SLO, as far as is known; nullptr if it keeps none.
const ConfigResult* denied_row(const SizeResult& result) {
  const int32_t closest = best_goodput(result);
  if (closest < 0) return result.configs.empty() ? nullptr : &result.configs.front();
  const ConfigResult& row = result.configs[size_t(closest)];
  if (row.cause.kind == CauseKind::too_large) return &row;
  if (row.cause.kind != CauseKind::slots && row.cause.kind != CauseKind::slots_and_loads) {
    return nullptr;
  }
  const auto larger = std::ranges::find_if(result.configs, [&](const ConfigResult& c) {
    return !c.feasible && c.max_loras > row.max_loras;
  });
  return larger == result.configs.end() ? nullptr : &*larger;
}

bool is_replayed(const SizeResult& result, const std::string& flags) {
  return std::ranges::any_of(result.remedies,
                             [&](const Remedy& r) { return r.fits && r.flags == flags; });
}

// "8, 16, 32, ...": up to `last`.
std::string ranks_up_to(std::span<const int64_t> ranks, int64_t last) {
  std::string text;
  for (const int64_t rank : ranks) {
    if (rank > last) return text + ", ...";
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

}  // namespace

std::optional<MoreRoom> more_room(const SizeResult& result, const EngineSpec& engine) {
  const ConfigResult* row = denied_row(result);
  if (row == nullptr) return std::nullopt;
  MemoryOptions options = engine.memory;
  if (row->cause.kind == CauseKind::too_large) {
    options.max_model_len = engine.scheduler.max_model_len;
  }
  MoreRoom room{.max_loras = row->max_loras, .changes = {}};
  for (const MemoryRemedy& remedy :
       nearest_fits(engine.model, engine.gpu, options, row->max_loras, row->max_cpu_loras,
                    engine.default_rank, engine.lora_ranks)) {
    if (!is_replayed(result, flags_of(remedy))) room.changes.push_back(describe_remedy(remedy));
  }
  if (room.changes.empty()) return std::nullopt;
  return room;
}

std::optional<RankCost> rank_cost(const ConfigResult& row, const EngineSpec& engine) {
  const int64_t rank = engine.memory.max_lora_rank;
  const int64_t needed = engine.default_rank;
  const auto allowed = std::ranges::lower_bound(engine.lora_ranks, needed);
  if (allowed == engine.lora_ranks.end() || *allowed != rank || rank <= needed) return std::nullopt;
  MemoryOptions options = engine.memory;
  options.max_lora_rank = needed;
  const MemoryPlan plan =
      plan_memory(engine.model, engine.gpu, options, row.max_loras, row.max_cpu_loras);
  const int64_t bytes = row.memory.slot_bytes - plan.split.slot_bytes;
  if (bytes <= 0) return std::nullopt;
  return RankCost{engine.name, ranks_up_to(engine.lora_ranks, rank), rank, needed, bytes};
}

}  // namespace loratory::sim
