#pragma once

#include "gpu/kernels/lora_kernel.cuh"
#include "gpu/kernels/lora_linear.hpp"

// The kernels that exist, one table for each pair of dtypes so that they compile side by side.

namespace loratory::gpu {

struct LoraKernel {
  LoraStage stage;
  LoraVariant variant;
  const void* function;
  int num_threads;
  int (*shared_bytes)(int max_rank);
};

template <typename Weight, typename Out, int kRankTiles, int kTokenTiles, int kCluster,
          bool kAligned>
LoraKernel lora_kernel_entry() {
  using S = Shape<kRankTiles, kTokenTiles, kCluster, Stage::kLinear>;
  return {
      LoraStage::linear,
      {kRankTiles, kTokenTiles, kCluster, kAligned},
      reinterpret_cast<const void*>(
          &lora_kernel<Weight, Out, kRankTiles, kTokenTiles, kCluster, kAligned, Stage::kLinear>),
      S::kNumThreads,
      &S::shared_bytes};
}

/// Every variant, of one pair of dtypes.
template <typename Weight, typename Out>
std::vector<LoraKernel> lora_kernels() {
  return {lora_kernel_entry<Weight, Out, 1, 1, 8, true>(),
          lora_kernel_entry<Weight, Out, 1, 1, 2, true>(),
          lora_kernel_entry<Weight, Out, 4, 1, 8, true>(),
          lora_kernel_entry<Weight, Out, 1, 4, 8, true>(),
          lora_kernel_entry<Weight, Out, 1, 4, 1, true>(),
          lora_kernel_entry<Weight, Out, 2, 4, 8, true>(),
          lora_kernel_entry<Weight, Out, 2, 4, 1, true>(),
          lora_kernel_entry<Weight, Out, 2, 1, 8, false>()};
}

extern template std::vector<LoraKernel> lora_kernels<__nv_bfloat16, __nv_bfloat16>();
extern template std::vector<LoraKernel> lora_kernels<__nv_bfloat16, float>();
extern template std::vector<LoraKernel> lora_kernels<__half, __half>();
extern template std::vector<LoraKernel> lora_kernels<__half, float>();

}  // namespace loratory::gpu
