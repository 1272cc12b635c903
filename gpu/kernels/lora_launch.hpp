#pragma once

#include "gpu/kernels/lora_desc.hpp"
#include "gpu/kernels/lora_params.hpp"
#include "gpu/kernels/lora_path.hpp"
#include "gpu/kernels/lora_variant.hpp"

struct CUstream_st;

namespace loratory::gpu {

/// What is left once everything is checked; lora_launch.cu, the only part that needs CUDA, does it.
struct LoraLaunch {
  LoraStage stage;
  LoraPath path;
  LoraVariant variant;  ///< of the tensor_core path
  LoraDtypes dtypes;
  reference::NumericMode mode;  ///< of the generic path; the other reads it from params
  LinearParams params;
  CUstream_st* stream;
  LaunchOrder order;
};

/// On a GPU before sm_90 LaunchOrder::overlaps_previous is after_previous.
/// Errors   InputError: no kernel of this stage, variant and dtypes, or a variant with clusters on
///          a GPU without. std::runtime_error: CUDA's name and text.
void launch_lora(const LoraLaunch& launch);

/// The variants that the tensor_core path has kernels for and this GPU can launch (linear: in one
/// launch or in two); none in a build without CUDA.
std::vector<LoraVariant> lora_variants(LoraStage stage, const LoraDtypes& dtypes);

}  // namespace loratory::gpu
