#pragma once

#include <cstdint>
#include <string_view>

namespace loratory::gpu {

/// Which part of y += scaling · (x A^T) B^T a launch computes.
enum class LoraOp : uint8_t {
  linear,  ///< all of it
  shrink,  ///< h = x A^T
  expand,  ///< y += scaling · h B^T
};

/// As in messages: "lora_linear", "lora_shrink", "lora_expand".
constexpr std::string_view name(LoraOp op) {
  return op == LoraOp::shrink   ? "lora_shrink"
         : op == LoraOp::expand ? "lora_expand"
                                : "lora_linear";
}

}  // namespace loratory::gpu
