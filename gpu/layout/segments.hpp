#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/layout/batch_layout.hpp"

namespace loratory::gpu {

/// Some tokens of one slot, consecutive in BatchLayout::token_indices_sorted. 16 bytes: one load.
struct Segment {
  int32_t slot;
  int32_t first;  ///< index into token_indices_sorted
  int32_t num_tokens;
  int32_t unused;

  friend bool operator==(const Segment&, const Segment&) = default;
};

/// The segments of a step, the same for all layers. Every token with an adapter belongs to exactly
/// one segment, base tokens to none.
struct SegmentList {
  int32_t segment_size = 0;
  std::vector<Segment> segments;  ///< slots ascending; of each slot the full segments first
};

/// A SegmentList on the device.
struct SegmentView {
  const int32_t* num_segments = nullptr;   ///< [1]
  const Segment* segments = nullptr;       ///< [num_segments]
  const int32_t* token_indices = nullptr;  ///< BatchLayout::token_indices_sorted
  int32_t segment_size = 0;
  /// So many segments and token indices have memory: kernels may read them ahead, and the grid is
  /// sized for no more. 0: unknown, which only costs time.
  int32_t max_segments = 0;
};

/// What a builder of segments may have room for.
/// Errors   InputError naming the argument: max_tokens outside 0 to 2^30, max_loras outside 1 to
/// 2^30,
///          a segment size < 1.
void check_segment_limits(int64_t max_tokens, int32_t max_loras,
                          std::span<const int32_t> segment_sizes);

/// Most segments that num_tokens tokens of max_loras slots can need.
/// Errors   InputError: segment_size < 1.
int64_t max_segments(int64_t num_tokens, int32_t max_loras, int32_t segment_size);

/// Writes all of `list` whatever it held before; keeps its memory.
/// Errors   InputError: segment_size < 1.   Cost  O(T + L).
void build(const reference::BatchLayout& layout, int32_t segment_size, SegmentList& list);

}  // namespace loratory::gpu
