#include "gpu/moe/group_views.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/base/input_error.hpp"

namespace loratory::gpu {
namespace {

void require_count(bool ok, const char* place, const std::string& rule) {
  if (!ok) throw InputError(fmt::format("expert groups: {}", place), rule);
}

}  // namespace

const SegmentView& GroupViews::of(int32_t segment_size) const {
  const auto* const found = std::ranges::find(of_size, segment_size, &SegmentView::segment_size);
  require_count(found != of_size.end(), "segment_size",
                fmt::format("{} is not 8, 32 or 64", segment_size));
  return *found;
}

void check_expert_counts(int64_t max_tokens, int32_t experts_per_token, int32_t num_experts,
                         int32_t num_known, int32_t num_slots) {
  require_count(max_tokens >= 0, "max_tokens", "is negative");
  require_count(num_experts >= 1, "num_experts", "must be at least 1");
  require_count(num_known == 0 || num_known >= 1, "num_known", "is negative");
  const int32_t known = num_known == 0 ? num_experts : num_known;
  require_count(experts_per_token >= 1 && experts_per_token <= known, "experts_per_token",
                fmt::format("is {} of {} experts", experts_per_token, known));
  require_count(num_slots >= 0, "num_slots", "is negative");
  require_count(max_tokens * experts_per_token <= int64_t{1} << 30, "max_tokens",
                "makes more than 2^30 rows");
}

void check_expert_rows(const ExpertRowsView& rows, int64_t max_tokens, int32_t num_known,
                       int32_t num_experts, int32_t num_slots) {
  require_count(rows.num_tokens >= 0 && rows.num_tokens <= max_tokens, "tokens",
                fmt::format("are {}, there is room for {}", rows.num_tokens, max_tokens));
  const bool is_empty = rows.num_tokens == 0;
  require_count(is_empty || rows.experts != nullptr, "experts", "is null");
  require_count(is_empty || (rows.slots != nullptr) == (num_slots > 0), "slots",
                num_slots > 0 ? "is null" : "is given, but groups are by expert alone");
  require_count(rows.expert_map != nullptr || num_known == 0 || num_known == num_experts,
                "expert_map", "is null, but the model has experts elsewhere");
}

}  // namespace loratory::gpu
