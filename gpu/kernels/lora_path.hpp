#pragma once

#include <cstdint>
#include <string_view>

#include "gpu/kernels/lora_stage.hpp"
#include "reference/numerics/dtype.hpp"
#include "reference/numerics/numeric_mode.hpp"

namespace loratory::gpu {

/// As in messages: lora_linear, lora_shrink, lora_expand.
std::string_view name(LoraStage stage);

/// The two implementations. They round and sum differently, so a layer never changes between them.
enum class LoraPath : uint8_t {
  tensor_core,  ///< lora_kernel.cuh: 16-bit x, fast
  generic,      ///< generic_lora.hpp: every dtype and mode, and the bits of the reference
};

struct LoraDtypes {
  reference::Dtype x = reference::Dtype::f32;       ///< not looked at by expand
  reference::Dtype weight = reference::Dtype::f32;  ///< of A and B
  reference::Dtype h = reference::Dtype::f32;       ///< of the tensor; not looked at by linear
  reference::Dtype y = reference::Dtype::f32;       ///< not looked at by shrink
};

/// Follows from what never changes in a layer, and not from sizes, strides or the batch (statement
/// [1.19]). tensor_core if x is of the weights' dtype, h fp32, y fp32 or of the weights' dtype, and
/// the scaling meets the accumulator; cast_to_weight with two roundings needs y of the weights'
/// dtype, to which it rounds delta.
LoraPath choose_path(LoraStage stage, const LoraDtypes& dtypes, const reference::NumericMode& mode);

}  // namespace loratory::gpu
