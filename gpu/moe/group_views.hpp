#pragma once

#include <array>
#include <cstdint>

#include "gpu/layout/expert_pairs.hpp"
#include "gpu/layout/segments.hpp"

namespace loratory::gpu {

/// The sizes of segments that the kernels for experts take.
inline constexpr std::array<int32_t, 3> kGroupSizes{8, 32, 64};

/// The groups of a step, cut in segments of each size. token_indices are rows.
struct GroupViews {
  std::array<SegmentView, kGroupSizes.size()> of_size;

  /// Errors   InputError: no such size.
  const SegmentView& of(int32_t segment_size) const;
};

/// What ExpertGroups is made and called with.
/// Errors   InputError naming the argument.
void check_expert_counts(int64_t max_tokens, int32_t experts_per_token, int32_t num_experts,
                         int32_t num_known, int32_t num_slots);
void check_expert_rows(const ExpertRowsView& rows, int64_t max_tokens, int32_t num_known,
                       int32_t num_experts, int32_t num_slots);

}  // namespace loratory::gpu
