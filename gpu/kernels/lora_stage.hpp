#pragma once

#include <cstdint>

namespace loratory::gpu {

/// Which part of y += scaling · (x A^T) B^T a kernel computes.
enum class LoraStage : uint8_t {
  linear,  ///< all of it; h never leaves the chip
  shrink,  ///< h = x A^T
  expand,  ///< y += scaling · h B^T
};

/// In which order a shrink adds.
enum class SumOrder : uint8_t {
  fixed,  ///< K alone decides it: a row has the same bits in every batch and by every kernel
  /// Steps of many tokens: in a row, as far as one CTA goes through K. Then h depends on the step's
  /// size, by which the kernel is chosen; a repeat gives the same bits. Within the same bound.
  fast,
};

}  // namespace loratory::gpu
