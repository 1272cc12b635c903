#include "gpu/plan/lora_variant.hpp"

#include <fmt/format.h>

#include <ostream>

namespace loratory::gpu {

std::string describe(const LoraVariant& v) {
  return fmt::format(
      "rank_tiles={} token_tiles={} cluster={} stages={} aligned={} launches={} "
      "through_memory={} warps={}",
      v.rank_tiles, v.token_tiles, v.cluster, v.stages, v.aligned, v.launches, v.through_memory,
      v.warps);
}

std::string describe(const LaunchShape& s) {
  return fmt::format(
      "op={} num_tokens={} num_in={} max_rank={} num_slices={} num_slots={} has_experts={} "
      "has_router_weights={} num_rank_blocks={} num_columns={} idle_sms={} has_workspace={} "
      "num_split_units={} aligned={} has_clusters={} has_wgmma={}",
      name(s.op), s.num_tokens, s.num_in, s.max_rank, s.num_slices, s.num_slots, s.has_experts,
      s.has_router_weights, s.num_rank_blocks, s.num_columns, s.idle_sms, s.has_workspace,
      s.num_split_units, s.aligned, s.has_clusters, s.has_wgmma);
}

std::ostream& operator<<(std::ostream& out, const LoraVariant& v) { return out << describe(v); }
std::ostream& operator<<(std::ostream& out, const LaunchShape& s) { return out << describe(s); }

}  // namespace loratory::gpu
