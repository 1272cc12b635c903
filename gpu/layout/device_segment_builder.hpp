#pragma once

#include <span>

#include "gpu/layout/expert_pairs.hpp"
#include "gpu/layout/segments.hpp"
#include "gpu/runtime/device_buffer.hpp"

struct CUstream_st;

namespace loratory::gpu {

inline constexpr int kMaxSegmentSizes = 3;

/// What the host passes to the kernel by value.
struct SegmentBuilderParams {
  struct List {
    int32_t segment_size;
    int32_t* num_segments;  ///< [1]
    Segment* segments;
  };

  const int32_t* token_to_slot = nullptr;    ///< [num_tokens]
  ExpertPairs pairs{};                       ///< instead, for rows of experts
  const int32_t* num_tokens_used = nullptr;  ///< [1], null: all of num_tokens
  int32_t num_tokens = 0;
  int32_t max_loras = 0;
  int32_t* token_indices = nullptr;
  int64_t* num_bad_entries = nullptr;
  int32_t num_lists = 0;
  List lists[kMaxSegmentSizes] = {};
};

/// Builds the segments of a step on the device, from a mapping in device memory. A captured graph
/// may contain this; each replay then follows what the mapping says by then.
///
///   token_indices = the tokens, stably sorted by slot, base tokens first
///   segments      = of each slot, ascending, its tokens cut into segment_size at a time
///
/// Equal, number for number, to make_batch_layout() and build() of segments.hpp on the host.
/// Repeats  always: the order of atomics does not show. Nothing of an earlier step is left. Past
///          num_segments and num_tokens the arrays hold anything.
/// Cost     one launch of ceil(T / 1,024) CTAs, each reading all T slots: one CTA for decode, and
///          O(T²/1,024) reads from L2 for prefill.
/// Source   statements [2.1], [2.2], [2.18].
class DeviceSegmentBuilder {
 public:
  /// Room for the largest step, and a list for each of 1 to kMaxSegmentSizes segment sizes.
  /// Errors   InputError: a count or size out of range; more slots than shared memory has room to
  ///          count (1,900 and three sizes fit on every GPU from sm_80, on Hopper 4,400).
  ///          std::runtime_error from CUDA.
  DeviceSegmentBuilder(int64_t max_tokens, int32_t max_loras,
                       std::span<const int32_t> segment_sizes);

  /// token_to_slot int32 [num_tokens] on the device: -1 for base tokens, else a slot below
  /// max_loras. Any other entry counts as a base token, and into num_bad_entries().
  /// num_tokens_used, if given, is an int32 on the device: only the first so many tokens exist, and
  /// nothing of the others is read or written. A value outside [0, num_tokens] becomes the nearer
  /// bound and counts as one bad entry.
  ///
  /// Never allocates, never waits, may be captured. The launch follows from num_tokens alone. A
  /// kernel that reads the segments must come later in the stream, and the first such kernel must
  /// not be launched with LaunchOrder::overlaps_previous.
  /// Errors   InputError: more tokens than there is room for, a null mapping; std::runtime_error.
  void build(const int32_t* token_to_slot, int64_t num_tokens, CUstream_st* stream,
             const int32_t* num_tokens_used = nullptr) const;

  /// The same of the rows of an expert layer, whose slots are pair_of(). `max_loras` is L·E, or E
  /// to group by expert alone. Rows that do not exist count into num_bad_entries(); they get no
  /// segment.
  void build(const ExpertPairs& pairs, CUstream_st* stream) const;

  /// Errors   InputError: not one of the segment sizes.
  SegmentView view(int32_t segment_size) const;

  /// On the device: bad entries of all builds since construction, for the host to read when it
  /// waits for the stream anyway.
  const int64_t* num_bad_entries() const { return params_.num_bad_entries; }

 private:
  SegmentBuilderParams params_;  // all but the mapping
  int64_t max_tokens_;
  DeviceBuffer device_;

  void launch(const SegmentBuilderParams& params, bool of_experts, CUstream_st* stream) const;
};

}  // namespace loratory::gpu
