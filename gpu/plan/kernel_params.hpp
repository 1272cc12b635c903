#pragma once

#include <cstdint>

#include "gpu/layout/segments.hpp"

// What the host passes to a kernel by value. Plain data: LoraLayer has checked everything.

namespace loratory::gpu {

inline constexpr int kMaxSlices = 8;

struct SliceParams {
  const uint16_t* a = nullptr;  ///< [L][.][K]; on the generic path A and B may be of any dtype
  const uint16_t* b = nullptr;  ///< [L][N_i][.]
  int64_t a_slot_stride = 0, a_row_stride = 0, b_slot_stride = 0, b_row_stride = 0;  ///< elements
  const int32_t* ranks = nullptr;                                                    ///< [L]
  const float* scalings = nullptr;                                                   ///< [L]
  int32_t a_rank_steps = 0;  ///< rows of A begin at a_rank_steps · rank
  int32_t num_out = 0;       ///< N_i
  int32_t offset = 0;        ///< first column of y
};

struct KernelParams {
  const uint16_t* x = nullptr;  ///< on the generic path x and h may be of any dtype
  int64_t x_row_stride = 0;
  void* y = nullptr;
  int64_t y_row_stride = 0;
  float* h = nullptr;  ///< [S][T][h_row_stride]; unused by a linear in one launch
  int64_t h_slice_stride = 0, h_row_stride = 0;
  bool h_aligned = false;  ///< rows of h begin at multiples of 16 bytes

  const int32_t* num_segments = nullptr;
  const Segment* segments = nullptr;
  const int32_t* token_indices = nullptr;
  int32_t max_segments = 0;  ///< so many may be read ahead; 0: unknown

  int32_t num_in = 0;
  int32_t num_slices = 0;
  int32_t max_rank = 0;           ///< no rank is larger
  int32_t max_columns = 0;        ///< of the widest slice
  int32_t num_columns = 0;        ///< of all slices
  int32_t h_width = 0;            ///< ranks of h that fit in shared memory
  bool all_slices_fit = false;    ///< h of all slices fits at once
  int32_t parts_per_segment = 1;  ///< expand: a kernel of fewer tokens takes segments in parts
  int32_t num_items = 0;          ///< work items of a segment, all slices together (WorkList)
  int32_t max_items = 0;          ///< work items of a segment and its widest slice
  uint32_t num_sms = 0;           ///< of the GPU
  bool may_read_y_early =
      false;  ///< the previous kernel leaves y alone, and began after y's writer
  bool add_inputs = true;
  bool split_h = true;     ///< false: h is rounded to the dtype of the weights
  bool two_round = false;  ///< delta is rounded to y's dtype before it is added
  SliceParams slices[kMaxSlices];
};

}  // namespace loratory::gpu
