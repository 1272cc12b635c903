#pragma once

#include "gpu/plan/lora_variant.hpp"

namespace loratory::gpu {

/// A kernel of lora_kernel.cuh or quantized_kernel.cuh.
struct LoraKernel {
  LoraOp op;
  LoraVariant variant;
  const void* function;
  int (*shared_bytes)(int h_width);
  int ahead_bytes = 0;  ///< more, if QuantizedParams::widens_ahead

  int num_threads() const { return 32 * variant.warps; }
};

}  // namespace loratory::gpu
