#pragma once

#include <vector>

#include "gpu/plan/lora_variant.hpp"

namespace loratory::gpu {

/// A kernel of lora_kernel.cuh or quantized_kernel.cuh.
struct LoraKernel {
  LoraOp op;
  LoraVariant variant;
  const void* function;
  int (*shared_bytes)(int h_width);
  int ahead_bytes = 0;   ///< more for each of QuantizedParams::stages_ahead
  int stages_ahead = 0;  ///< at most

  int num_threads() const { return 32 * variant.warps; }
};

using LoraKernels = std::vector<LoraKernel>;

/// The kernels of an operation, one for each row of variant_table.hpp. A shrink writes fp32 h
/// whatever the dtype of y, so it exists with Out = Weight alone; so do gated expands, whose
/// activation has the dtype of the weights.
template <LoraOp kOp, typename Weight, typename Out>
const LoraKernels& lora_kernels();

/// The same for 8-bit weights and quantized_variants.hpp. X of an expand, which reads none, is
/// __half, and Out of a shrink, which writes none, is X, or __half beside 8-bit x.
template <LoraOp kOp, typename X, typename H, typename Out>
const LoraKernels& quantized_kernels();

}  // namespace loratory::gpu
