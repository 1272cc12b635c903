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
  int (*shared_bytes)(int num_in, int h_width);
};

constexpr LoraStage public_stage(Stage stage) {
  if (stage == Stage::kShrink) return LoraStage::shrink;
  return stage == Stage::kExpand ? LoraStage::expand : LoraStage::linear;
}

template <typename Weight, typename Out, int kRankTiles, int kTokenTiles, int kCluster,
          bool kAligned, Stage kStage>
LoraKernel lora_kernel_entry() {
  using C = Config<Weight, Out, kRankTiles, kTokenTiles, kCluster, kAligned, kStage>;
  return {public_stage(kStage),
          {kRankTiles, kTokenTiles, kCluster, kAligned},
          reinterpret_cast<const void*>(&lora_kernel<C>),
          C::kNumThreads,
          &C::shared_bytes};
}

template <typename Weight, typename Out, Stage kStage>
void append_kernels(std::vector<LoraKernel>& list) {
  list.insert(list.end(), {lora_kernel_entry<Weight, Out, 1, 1, 8, true, kStage>(),
                           lora_kernel_entry<Weight, Out, 1, 1, 4, true, kStage>(),
                           lora_kernel_entry<Weight, Out, 1, 1, 2, true, kStage>(),
                           lora_kernel_entry<Weight, Out, 1, 1, 1, true, kStage>(),
                           lora_kernel_entry<Weight, Out, 2, 1, 8, true, kStage>(),
                           lora_kernel_entry<Weight, Out, 1, 2, 8, true, kStage>(),
                           lora_kernel_entry<Weight, Out, 1, 4, 8, true, kStage>(),
                           lora_kernel_entry<Weight, Out, 2, 1, 8, false, kStage>()});
}

/// Every variant of every stage, of one pair of dtypes. A shrink writes h, which is fp32.
template <typename Weight, typename Out>
std::vector<LoraKernel> lora_kernels() {
  std::vector<LoraKernel> out;
  append_kernels<Weight, Out, Stage::kLinear>(out);
  append_kernels<Weight, Out, Stage::kExpand>(out);
  if constexpr (std::is_same_v<Out, float>) append_kernels<Weight, Out, Stage::kShrink>(out);
  return out;
}

extern template std::vector<LoraKernel> lora_kernels<__nv_bfloat16, __nv_bfloat16>();
extern template std::vector<LoraKernel> lora_kernels<__nv_bfloat16, float>();
extern template std::vector<LoraKernel> lora_kernels<__half, __half>();
extern template std::vector<LoraKernel> lora_kernels<__half, float>();

}  // namespace loratory::gpu
