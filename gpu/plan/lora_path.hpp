#pragma once

#include <cstdint>

#include "gpu/plan/lora_op.hpp"
#include "reference/numerics/dtype.hpp"
#include "reference/numerics/numeric_mode.hpp"

namespace loratory::gpu {

/// The two implementations. They round and sum differently, so a layer never changes from one to
/// the other.
enum class LoraPath : uint8_t {
  tensor_core,  ///< lora_kernel.cuh: 16-bit x, fast
  generic,      ///< generic_lora.hpp: every dtype and mode, and the bits of the reference
};

struct LoraDtypes {
  reference::Dtype x = reference::Dtype::f32;       ///< ignored by expand
  reference::Dtype weight = reference::Dtype::f32;  ///< of A and B
  reference::Dtype h = reference::Dtype::f32;       ///< of the tensor h; ignored by linear
  reference::Dtype y = reference::Dtype::f32;       ///< ignored by shrink
};

/// Depends on what never changes in a layer, and not on sizes, strides or the batch (statement
/// [1.19]). tensor_core needs 16-bit weights, x of their dtype, h fp32, y fp32 or of their dtype,
/// and a scaling that is applied to the accumulator. cast_to_weight with two roundings also needs y
/// of the weights' dtype, because it rounds delta to that dtype.
LoraPath choose_path(LoraOp op, const LoraDtypes& dtypes, const reference::NumericMode& mode);

}  // namespace loratory::gpu
