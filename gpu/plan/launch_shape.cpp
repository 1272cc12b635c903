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

int64_t most_segments(const LaunchShape& shape, int64_t size) {
  const int64_t num_slots = std::min(shape.num_slots, shape.num_tokens);
  return std::min(shape.num_tokens, (shape.num_tokens + num_slots * (size - 1)) / size);
}

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

bool may_have_many_adapters(const LaunchShape& shape) {
  constexpr int64_t kMostDecodeTokens = 1024;  // above: wide, however many adapters there may be
  // Rows of experts: up to so many for each slot and expert go by eights. Not measured yet.
  constexpr int64_t kFewRowsEach = 12;
  if (shape.has_experts) return shape.num_tokens <= kFewRowsEach * shape.num_slots;
  const int64_t few = shape.num_tokens > h200::kShortPrefillTokens ? 4 : 8;
  return shape.num_tokens <= kMostDecodeTokens && shape.num_tokens <= few * shape.num_slots;
}

bool is_wide_pair(const LaunchShape& shape) {
  return shape.num_slices == 2 && shape.num_columns >= h200::kColumnsOfWidePair;
}

bool has_long_rows(const LaunchShape& shape) {
  return shape.num_in > h200::kLongRows && shape.num_tokens <= 128;
}

}  // namespace loratory::gpu
