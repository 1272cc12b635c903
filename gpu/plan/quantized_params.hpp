#pragma once

#include <cstdint>

#include "gpu/plan/kernel_params.hpp"
#include "gpu/plan/kernel_shape.hpp"
#include "reference/numerics/dtype.hpp"

// What the host passes to a kernel of 8-bit weights. In the KernelParams a and b then point to
// bytes, x too if it is 8-bit, and h has h_dtype; strides count elements.

namespace loratory::gpu {

/// Factors of a weight: that of row n and column k of a slot lies at
/// slot · slot_stride + n / rows_each · row_stride + k / columns_each · group_stride.
struct WeightScale {
  const float* data = nullptr;
  int64_t slot_stride = 0;
  int32_t row_stride = 0, group_stride = 0;
  Divisor rows_each = 1;     ///< rows under one factor
  int32_t columns_each = 0;  ///< columns under one factor; 0: all

  LORATORY_HOST_DEVICE int64_t index(int64_t slot, int32_t row, int32_t group) const {
    const auto at = int32_t(quotient(uint32_t(row), rows_each));
    return slot * slot_stride + int64_t(at) * row_stride + int64_t(group) * group_stride;
  }
};

/// Factors of x or h: that of a slice, token and column lies at
/// slice · slice_stride + token · token_stride + column / columns_each · group_stride.
struct ActivationScale {
  const float* data = nullptr;  ///< null: activations are not 8-bit
  int64_t slice_stride = 0, token_stride = 0, group_stride = 0;
  int32_t columns_each = 0;  ///< 0: all

  LORATORY_HOST_DEVICE int64_t index(int32_t slice, int64_t token, int32_t group) const {
    return slice * slice_stride + token * token_stride + int64_t(group) * group_stride;
  }
};

struct QuantizedSliceParams {
  reference::Dtype a = reference::Dtype::f8_e4m3fn;
  reference::Dtype b = reference::Dtype::f8_e4m3fn;
  WeightScale a_scale, b_scale;
};

struct QuantizedParams : KernelParams {
  reference::Dtype x_dtype = reference::Dtype::bf16;
  reference::Dtype h_dtype = reference::Dtype::f32;
  reference::Dtype y_dtype = reference::Dtype::bf16;
  ActivationScale x_scale, h_scale;
  /// The previous kernel may still run, and there is room to widen so many stages meanwhile.
  int32_t stages_ahead = 0;
  /// An expand makes 8-bit h, with a factor for each row, from fp32 h, whose strides count bytes.
  bool quantizes_h = false;
  QuantizedSliceParams of[kMaxSlices];
};

/// x of 16 bits beside 8-bit weights: rows of 128 bytes. Four lanes of each of four neighbouring
/// rows read 8 bytes at once, which are 32 neighbouring bytes of each row.
LORATORY_HOST_DEVICE constexpr int swizzle_pairs(int row, int vec) {
  return row * 128 + (vec ^ (row % 4 * 2)) * 16;
}

}  // namespace loratory::gpu
