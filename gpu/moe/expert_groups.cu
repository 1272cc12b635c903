#include "gpu/moe/expert_groups.hpp"

#include <algorithm>

#include "reference/base/input_error.hpp"

namespace loratory::gpu {
namespace {

const ExpertGroupsShape& checked(const ExpertGroupsShape& s) {
  check_expert_counts(s.max_tokens, s.experts_per_token, s.num_experts, s.num_known, s.num_slots);
  if (int64_t(s.num_experts) * std::max(s.num_slots, 1) >= INT32_MAX) {
    throw InputError("expert groups: num_experts", "makes 2^31 groups or more with the slots");
  }
  return s;
}

}  // namespace

ExpertGroups::ExpertGroups(const ExpertGroupsShape& shape)
    : shape_(checked(shape)),
      builder_(shape.max_tokens * shape.experts_per_token,
               shape.num_experts * std::max(shape.num_slots, 1), kGroupSizes) {
  for (size_t i = 0; i < kGroupSizes.size(); ++i) views_.of_size[i] = builder_.view(kGroupSizes[i]);
}

void ExpertGroups::build(const ExpertRowsView& rows, CUstream_st* stream) const {
  check_expert_rows(rows, shape_.max_tokens, shape_.num_known, shape_.num_experts,
                    shape_.num_slots);
  const int32_t num_known = shape_.num_known == 0 ? shape_.num_experts : shape_.num_known;
  builder_.build(ExpertPairs{.rows = rows,
                             .experts_per_token = uint32_t(shape_.experts_per_token),
                             .num_known = uint32_t(num_known),
                             .num_experts = uint32_t(shape_.num_experts),
                             .num_slots = uint32_t(std::max(shape_.num_slots, 1))},
                 stream);
}

}  // namespace loratory::gpu
