#pragma once

#include <cstdint>

namespace loratory::gpu {

/// Which part of y += scaling · (x A^T) B^T a kernel computes.
enum class LoraStage : uint8_t {
  linear,  ///< all of it; h never leaves the chip
  shrink,  ///< h = x A^T
  expand,  ///< y += scaling · h B^T
};

}  // namespace loratory::gpu
