#pragma once

#include <cstdint>
#include <string_view>

namespace loratory::gpu {

/// Which part of y += scaling · (x A^T) B^T a launch computes.
enum class LoraOp : uint8_t {
  linear,  ///< all of it
  shrink,  ///< h = x A^T
  expand,  ///< y += scaling · h B^T
  /// An expand of gate and up that ends with SwiGLU: it leaves y as it is and writes the
  /// activation. Only the second launch of a linear, never the operation of a layer.
  gated_expand,
  /// The same, and the shrink of the layer that takes the activation: the sums of each split of its
  /// K, which go where gate was.
  gated_expand_shrink,
};

constexpr bool is_gated(LoraOp op) {
  return op == LoraOp::gated_expand || op == LoraOp::gated_expand_shrink;
}
/// Of the x of the layer.
constexpr bool shrinks(LoraOp op) { return op == LoraOp::linear || op == LoraOp::shrink; }
constexpr bool expands(LoraOp op) { return op != LoraOp::shrink; }

/// As in messages: "lora_linear", "lora_shrink" and so on.
constexpr std::string_view name(LoraOp op) {
  switch (op) {
    case LoraOp::linear:
      break;
    case LoraOp::shrink:
      return "lora_shrink";
    case LoraOp::expand:
      return "lora_expand";
    case LoraOp::gated_expand:
      return "lora_gated_expand";
    case LoraOp::gated_expand_shrink:
      return "lora_gated_expand_shrink";
  }
  return "lora_linear";
}

}  // namespace loratory::gpu
