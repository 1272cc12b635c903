#include "gpu/kernels/lora_path.hpp"

namespace loratory::gpu {

using reference::Dtype;
using reference::IntermediateMode;
using reference::ScaleMode;
using reference::SumMode;

std::string_view name(LoraStage stage) {
  switch (stage) {
    case LoraStage::shrink:
      return "lora_shrink";
    case LoraStage::expand:
      return "lora_expand";
    default:
      return "lora_linear";
  }
}

LoraPath choose_path(LoraStage stage, const LoraDtypes& dtypes,
                     const reference::NumericMode& mode) {
  const bool x_fits = stage == LoraStage::expand || dtypes.x == dtypes.weight;
  const bool h_fits = stage == LoraStage::linear || dtypes.h == Dtype::f32;
  if (!x_fits || !h_fits) return LoraPath::generic;
  if (stage == LoraStage::shrink) return LoraPath::tensor_core;
  const bool y_is_weight = dtypes.y == dtypes.weight;
  // Delta would be rounded to the weights' dtype and not to y's.
  const bool other_delta =
      mode.h == IntermediateMode::cast_to_weight && mode.sum == SumMode::two_round && !y_is_weight;
  const bool y_fits = (y_is_weight || dtypes.y == Dtype::f32) && !other_delta;
  return y_fits && mode.scale == ScaleMode::accumulator ? LoraPath::tensor_core : LoraPath::generic;
}

}  // namespace loratory::gpu
