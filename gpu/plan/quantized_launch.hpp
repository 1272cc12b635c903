#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/plan/launch_order.hpp"
#include "gpu/plan/lora_path.hpp"
#include "gpu/plan/lora_variant.hpp"
#include "gpu/plan/quantized_params.hpp"

struct CUstream_st;

namespace loratory::gpu {

/// A validated launch with 8-bit weights: a linear, a shrink, or an expand, gated or not.
struct QuantizedLaunch {
  LoraOp op;
  LoraPath path;
  LoraVariant variant;  ///< of the tensor_core path
  QuantizedParams params;
  CUstream_st* stream;
  LaunchOrder order;
};
void launch_quantized(const QuantizedLaunch& launch);
/// Its generic path.
void launch_generic_quantized(const QuantizedLaunch& launch);

/// h between the stages of a w8a8 linear: reference::quantize() of the covered numbers of each
/// slice, to the bit.
struct QuantizeHParams {
  const float* h = nullptr;  ///< [S][T][h_row_stride]
  int64_t h_slice_stride = 0, h_row_stride = 0;
  uint8_t* bits = nullptr;  ///< [S][T][bits_row_stride]
  int64_t bits_slice_stride = 0, bits_row_stride = 0;
  float* scale = nullptr;
  ActivationScale of;  ///< strides of `scale`; columns_each 0: one factor for a row or for all
  bool by_tensor = false;
  reference::Dtype dtype = reference::Dtype::f8_e4m3fn;
  const int32_t* num_segments = nullptr;
  const Segment* segments = nullptr;
  const int32_t* token_indices = nullptr;
  int32_t segment_size = 0;  ///< no segment has more tokens
  int32_t num_slices = 0, num_tokens = 0;
  const int32_t* ranks[kMaxSlices] = {};
};
/// Two kernels by tensor, else one. Bitwise repeatable: a largest number has no order.
void launch_quantize_h(const QuantizeHParams& params, CUstream_st* stream, LaunchOrder order);

}  // namespace loratory::gpu
