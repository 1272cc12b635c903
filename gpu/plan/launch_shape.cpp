#include "gpu/plan/launch_shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "gpu/layout/segments.hpp"

namespace loratory::gpu {

std::string describe(const LaunchShape& s) {
  return fmt::format(
      "op={} num_tokens={} num_in={} max_rank={} num_slices={} num_slots={} has_experts={} "
      "has_router_weights={} num_rank_blocks={} num_columns={} idle_sms={} has_workspace={} "
      "num_split_units={} aligned={} has_clusters={} has_wgmma={}",
      name(s.op), s.num_tokens, s.num_in, s.max_rank, s.num_slices, s.num_slots, s.has_experts,
      s.has_router_weights, s.num_rank_blocks, s.num_columns, s.idle_sms, s.has_workspace,
      s.num_split_units, s.aligned, s.has_clusters, s.has_wgmma);
}

std::ostream& operator<<(std::ostream& out, const LaunchShape& s) { return out << describe(s); }

int64_t segments_of_8(const LaunchShape& shape) {
  const int64_t num_slots = std::min(shape.num_slots, shape.num_tokens);
  return max_segments(shape.num_tokens, int32_t(num_slots), 8);
}

int64_t segments_of_64(const LaunchShape& shape) {
  const int64_t full = (shape.num_tokens + 63) / 64;
  return full + std::min(full, shape.num_slots) / 2;
}

bool may_have_few_tokens_each(const LaunchShape& shape) {
  return shape.num_tokens < 2 * segments_of_8(shape);
}

bool has_long_rows(const LaunchShape& shape) {
  // Columns of x: above, a warp of a narrow shrink has more K tiles in a row than stages of one.
  constexpr int64_t kLongRows = 8192;
  return shape.num_in > kLongRows && shape.num_tokens <= 128;
}

}  // namespace loratory::gpu
