#pragma once

#include "gpu/layout/device_segment_builder.hpp"
#include "gpu/moe/group_views.hpp"

namespace loratory::gpu {

/// What a builder of groups has room for. Letters as in reference/moe/expert_rows.hpp.
struct ExpertGroupsShape {
  int64_t max_tokens = 0;         ///< T of the largest step
  int32_t experts_per_token = 1;  ///< k
  int32_t num_experts = 1;        ///< E
  int32_t num_known = 0;          ///< experts of the whole model, if there is an expert map; 0: E
  int32_t num_slots = 0;          ///< L; 0: groups by expert alone
};

/// Groups the rows of an expert layer on the device, by slot and expert or by expert: segments of
/// 8, 32 and 64 rows, whose "slot" is slot · E + expert. No count comes to the host, and a captured
/// graph may contain the build.
///
/// Order    groups ascending; of a group the rows ascending, so tokens ascending.
/// Covered  as in reference/moe/expert_lora.hpp: rows of slot -1, of slots that are off, of experts
///          elsewhere and of expert -1 (padding) are in no group. A number that does not exist
///          counts into num_bad_entries() and is in no group either.
/// Repeats  always; nothing of an earlier step is left.
/// Cost     one launch of ceil(T·k / 1,024) CTAs, each reading all T·k rows.
/// Source   statements [1.37], [2.18]; vLLM moe_lora_align_block_size.
class ExpertGroups {
 public:
  /// Errors   InputError: a count out of range; more slots · experts than shared memory has room to
  ///          count (4,400 on Hopper). std::runtime_error from CUDA.
  explicit ExpertGroups(const ExpertGroupsShape& shape);

  /// rows.slots null if and only if num_slots is 0. Never allocates, never waits. A kernel that
  /// reads the groups must come later in the stream, and the first such kernel must not be launched
  /// with LaunchOrder::overlaps_previous.
  /// Errors   InputError: more tokens than there is room for, a pointer that is missing.
  void build(const ExpertRowsView& rows, CUstream_st* stream) const;

  const GroupViews& views() const { return views_; }
  const int64_t* num_bad_entries() const { return builder_.num_bad_entries(); }

 private:
  ExpertGroupsShape shape_;
  DeviceSegmentBuilder builder_;
  GroupViews views_;
};

}  // namespace loratory::gpu
