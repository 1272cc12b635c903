#include "gpu/plan/lora_path.hpp"

namespace loratory::gpu {

using reference::Dtype;
using reference::IntermediateMode;
using reference::ScaleMode;
using reference::SumMode;

LoraPath choose_path(LoraOp op, const LoraDtypes& dtypes, const reference::NumericMode& mode) {
  if (dtypes.weight == Dtype::f32) return LoraPath::generic;
  const bool x_fits = op == LoraOp::expand || dtypes.x == dtypes.weight;
  const bool h_fits = op == LoraOp::linear || dtypes.h == Dtype::f32;
  if (!x_fits || !h_fits) return LoraPath::generic;
  if (op == LoraOp::shrink) return LoraPath::tensor_core;
  const bool y_is_weight = dtypes.y == dtypes.weight;
  const bool rounds_delta_to_weight =
      mode.h == IntermediateMode::cast_to_weight && mode.sum == SumMode::two_round;
  const bool y_fits = y_is_weight || (dtypes.y == Dtype::f32 && !rounds_delta_to_weight);
  return y_fits && mode.scale == ScaleMode::accumulator ? LoraPath::tensor_core : LoraPath::generic;
}

}  // namespace loratory::gpu
