#pragma once

#include <cstdint>

#include "gpu/plan/kernel_params.hpp"
#include "gpu/plan/launch_order.hpp"
#include "gpu/plan/lora_path.hpp"
#include "gpu/plan/lora_variant.hpp"

struct CUstream_st;

namespace loratory::gpu {

/// What is left once everything is checked. kernels/launch.cu does it, the only part that needs
/// CUDA.
struct LoraLaunch {
  LoraOp op;
  LoraPath path;
  LoraVariant variant;  ///< of the tensor_core path
  LoraDtypes dtypes;
  reference::NumericMode mode;  ///< of the generic path; the tensor_core path reads it from params
  KernelParams params;
  CUstream_st* stream;
  LaunchOrder order;
};

/// Before sm_90 every LaunchOrder behaves as after_previous.
/// Errors   InputError: the variant needs more shared memory than the GPU has. std::runtime_error:
///          CUDA's name and text.
void launch_lora(const LoraLaunch& launch);

}  // namespace loratory::gpu
