#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/layout/segments.hpp"
#include "gpu/plan/divisor.hpp"

// What the host passes to a kernel by value. Plain data: LoraLayer has checked everything.

namespace loratory::gpu {

inline constexpr int kMaxSlices = 8;

/// Of a row and 16 ranks: the sums of eight splits in fp32.
inline constexpr int kSplitUnitBytes = 8 * 16 * 4;

/// Kernels read it in vectors of 16 bytes.
struct alignas(16) SliceParams {
  const uint16_t* a = nullptr;  ///< [L][E][.][K]; on the generic path of any dtype, as B
  const uint16_t* b = nullptr;  ///< [L][E][N_i][.]
  int64_t a_slot_stride = 0, a_row_stride = 0, b_slot_stride = 0, b_row_stride = 0;  ///< elements
  int64_t a_expert_stride = 0, b_expert_stride = 0;
  const int32_t* ranks = nullptr;   ///< [L]
  const float* scalings = nullptr;  ///< [L]
  int32_t a_rank_steps = 0;         ///< rows of A begin at a_rank_steps · rank
  int32_t num_out = 0;              ///< N_i
  int32_t offset = 0;               ///< first column of y
};

struct KernelParams {
  const uint16_t* x = nullptr;  ///< on the generic path x and h may be of any dtype
  int64_t x_row_stride = 0;
  void* y = nullptr;
  int64_t y_row_stride = 0;
  float* h = nullptr;  ///< [S][T][h_row_stride]; unused by a linear in one launch
  int64_t h_slice_stride = 0, h_row_stride = 0;
  /// Not 0: h is the tree of kNumSplits sums, so many numbers apart.
  int64_t h_split_stride = 0;
  /// Of a shrink through memory: kSplitUnitBytes for each row and rank tile, and counts by the
  /// first row of a segment and rank block.
  std::byte* split_sums = nullptr;
  int32_t* split_counts = nullptr;
  bool h_aligned = false;  ///< rows of h begin at multiples of 16 bytes

  const int32_t* num_segments = nullptr;
  const Segment* segments = nullptr;
  const int32_t* token_indices = nullptr;
  int32_t max_segments = 0;  ///< so many may be read ahead; 0: unknown

  Divisor num_experts;                    ///< E: a segment's slot is slot · E + expert
  Divisor rows_per_x;                     ///< row r of y and h is made from row r / rows_per_x of x
  const float* router_weights = nullptr;  ///< by row of y, or null: what delta is multiplied by
  int32_t num_in = 0;
  Divisor num_slices;
  int32_t max_rank = 0;         ///< no rank is larger
  int32_t max_columns = 0;      ///< of the widest slice
  int32_t num_columns = 0;      ///< of all slices
  int32_t h_width = 0;          ///< ranks of h that fit in shared memory
  bool all_slices_fit = false;  ///< h of all slices fits at once
  Divisor parts_per_segment;    ///< expand: a kernel of fewer tokens takes segments in parts
  Divisor num_items;            ///< work items of a segment, all slices together (WorkList)
  Divisor max_items;            ///< work items of a segment and its widest slice
  Divisor num_clusters;         ///< of the launch
  uint32_t num_sms = 0;         ///< of the GPU
  bool x_is_ready = false;      ///< shrink: x may be read before the previous kernel has ended
  bool may_read_y_early =
      false;  ///< the previous kernel leaves y alone, and began after y's writer
  bool add_inputs = true;
  bool split_h = true;     ///< false: h is rounded to the dtype of the weights
  bool two_round = false;  ///< delta is rounded to y's dtype before it is added
  SliceParams slices[kMaxSlices];

  // Of a gated expand: what silu_mul() makes of y.
  void* activation = nullptr;  ///< [T][activation_row_stride], of y's dtype
  int64_t activation_row_stride = 0;
  int32_t num_rows = 0;  ///< T
  SliceParams next;      ///< A of the layer whose x it is, of a gated_expand_shrink
};

/// Where the weights of a segment's slot begin, in elements.
LORATORY_HOST_DEVICE inline int64_t weights_offset(const KernelParams& p, int32_t slot,
                                                   int64_t slot_stride, int64_t expert_stride) {
  const uint32_t of_adapter = quotient(uint32_t(slot), p.num_experts);
  const uint32_t expert = uint32_t(slot) - of_adapter * uint32_t(p.num_experts);
  return int64_t(of_adapter) * slot_stride + int64_t(expert) * expert_stride;
}

}  // namespace loratory::gpu
