#pragma once

#include "gpu/plan/lora_path.hpp"
#include "gpu/plan/lora_variant.hpp"

namespace loratory::gpu {

/// What decides how a stage of 8-bit weights is computed. All of it is a layer's: dtypes, strides
/// and alignment, never the number of tokens.
struct QuantizedStage {
  reference::Dtype from = reference::Dtype::bf16;  ///< x of a shrink, h of an expand
  reference::Dtype to = reference::Dtype::f32;     ///< h of a shrink, y of an expand
  /// Rows of the weights, of 8-bit or wide x, and of y begin at multiples of 16 bytes and hold a
  /// multiple of 16 bytes.
  bool aligned = true;
  bool one_group = true;  ///< all columns of a weight row are under one factor
};

/// tensor_core: aligned, one group; a shrink of bf16, f16 or 8-bit x into fp32 h, an expand of fp32
/// or 8-bit h. Else generic, which gives the bits of the reference.
LoraPath choose_quantized_path(LoraOp op, const QuantizedStage& stage);

/// The rules for 8-bit weights, as choose_variant(). The bits of all variants are equal. Those up
/// to 128 tokens were measured on an H200, the others derived from 16-bit weights by counting bytes
/// (docs/kernel_measurements.md). `fits_one_launch`: a linear by tensor cores whose x is not
/// 8-bit, and whose y has its dtype or fp32.
LoraVariant choose_quantized_variant(const LaunchShape& shape, bool fits_one_launch = false);
/// For an expand as choose_expand_variant(). `h_is_wide`: of fp32, not 8-bit; false if unknown.
LoraVariant choose_quantized_expand(const LaunchShape& shape, int token_tiles, bool h_is_wide);

}  // namespace loratory::gpu
