#pragma once

#include <type_traits>
#include <vector>

#include "gpu/kernels/lora_kernel.cuh"
#include "gpu/kernels/lora_variant.hpp"

// The kernels that exist, one table for each pair of dtypes so that they compile side by side.

namespace loratory::gpu {

struct LoraKernel {
  LoraStage stage;
  LoraVariant variant;
  const void* function;
  int num_threads;
  int (*shared_bytes)(int h_width);
};

template <typename Weight, typename Out, LoraStage kStage, int kRankTiles, int kTokenTiles,
          int kCluster, int kStages, bool kAligned>
LoraKernel lora_kernel_entry() {
  using C = Config<Weight, Out, kRankTiles, kTokenTiles, kCluster, kStages, kAligned, kStage>;
  return {kStage,
          {kRankTiles, kTokenTiles, kCluster, kStages, kAligned},
          reinterpret_cast<const void*>(&lora_kernel<C>),
          C::kNumThreads,
          &C::shared_bytes};
}

template <typename Weight, typename Out>
void append_linear(std::vector<LoraKernel>& list) {
  constexpr LoraStage k = LoraStage::linear;
  list.insert(list.end(), {lora_kernel_entry<Weight, Out, k, 1, 1, 8, 2, true>(),
                           lora_kernel_entry<Weight, Out, k, 1, 1, 2, 3, true>(),
                           lora_kernel_entry<Weight, Out, k, 1, 1, 1, 2, true>(),
                           lora_kernel_entry<Weight, Out, k, 2, 1, 8, 2, true>(),
                           lora_kernel_entry<Weight, Out, k, 2, 1, 8, 2, false>(),
                           lora_kernel_entry<Weight, Out, k, 1, 1, 1, 2, false>()});
}

/// Of many tokens, by wgmma.
template <typename Weight>
void append_wgmma_shrink(std::vector<LoraKernel>& list) {
  constexpr LoraStage k = LoraStage::shrink;
  list.insert(list.end(), {lora_kernel_entry<Weight, Weight, k, 4, 8, 8, 3, true>(),
                           lora_kernel_entry<Weight, Weight, k, 4, 8, 8, 4, true>(),
                           lora_kernel_entry<Weight, Weight, k, 4, 8, 4, 3, true>(),
                           lora_kernel_entry<Weight, Weight, k, 4, 8, 4, 4, true>(),
                           lora_kernel_entry<Weight, Weight, k, 4, 8, 2, 4, true>(),
                           lora_kernel_entry<Weight, Weight, k, 4, 8, 2, 3, true>(),
                           lora_kernel_entry<Weight, Weight, k, 4, 8, 1, 4, true>(),
                           lora_kernel_entry<Weight, Weight, k, 4, 8, 1, 3, true>(),
                           lora_kernel_entry<Weight, Weight, k, 8, 8, 4, 3, true>(),
                           lora_kernel_entry<Weight, Weight, k, 8, 8, 2, 3, true>(),
                           lora_kernel_entry<Weight, Weight, k, 8, 8, 1, 3, true>()});
}

/// Writes fp32 h, whatever the dtype of y would be: it stands in one of a weight's tables.
template <typename Weight>
void append_shrink(std::vector<LoraKernel>& list) {
  constexpr LoraStage k = LoraStage::shrink;
  list.insert(list.end(), {lora_kernel_entry<Weight, Weight, k, 1, 1, 8, 2, true>(),
                           lora_kernel_entry<Weight, Weight, k, 1, 1, 4, 2, true>(),
                           lora_kernel_entry<Weight, Weight, k, 1, 1, 2, 2, true>(),
                           lora_kernel_entry<Weight, Weight, k, 2, 1, 4, 1, true>(),
                           lora_kernel_entry<Weight, Weight, k, 2, 1, 2, 1, true>(),
                           lora_kernel_entry<Weight, Weight, k, 2, 1, 8, 1, true>(),
                           lora_kernel_entry<Weight, Weight, k, 2, 1, 8, 2, true>(),
                           lora_kernel_entry<Weight, Weight, k, 4, 1, 8, 1, true>(),
                           lora_kernel_entry<Weight, Weight, k, 4, 4, 8, 4, true>(),
                           lora_kernel_entry<Weight, Weight, k, 2, 1, 8, 2, false>(),
                           lora_kernel_entry<Weight, Weight, k, 1, 1, 1, 2, true>(),
                           lora_kernel_entry<Weight, Weight, k, 1, 1, 1, 2, false>()});
  append_wgmma_shrink<Weight>(list);
}

template <typename Weight, typename Out>
void append_expand(std::vector<LoraKernel>& list) {
  constexpr LoraStage k = LoraStage::expand;
  list.insert(list.end(), {lora_kernel_entry<Weight, Out, k, 1, 1, 1, 1, true>(),
                           lora_kernel_entry<Weight, Out, k, 2, 1, 1, 1, true>(),
                           lora_kernel_entry<Weight, Out, k, 2, 1, 1, 2, true>(),
                           lora_kernel_entry<Weight, Out, k, 4, 1, 1, 1, true>(),
                           lora_kernel_entry<Weight, Out, k, 4, 1, 1, 2, true>(),
                           lora_kernel_entry<Weight, Out, k, 1, 4, 1, 2, true>(),
                           lora_kernel_entry<Weight, Out, k, 2, 4, 1, 2, true>(),
                           lora_kernel_entry<Weight, Out, k, 1, 8, 1, 2, true>(),
                           lora_kernel_entry<Weight, Out, k, 4, 8, 1, 2, true>(),
                           lora_kernel_entry<Weight, Out, k, 4, 8, 1, 3, true>(),
                           lora_kernel_entry<Weight, Out, k, 1, 1, 1, 3, false>()});
}

/// Every variant of every stage, of one pair of dtypes.
template <typename Weight, typename Out>
std::vector<LoraKernel> lora_kernels() {
  std::vector<LoraKernel> out;
  append_linear<Weight, Out>(out);
  if constexpr (std::is_same_v<Weight, Out>) append_shrink<Weight>(out);
  append_expand<Weight, Out>(out);
  return out;
}

extern template std::vector<LoraKernel> lora_kernels<__nv_bfloat16, __nv_bfloat16>();
extern template std::vector<LoraKernel> lora_kernels<__nv_bfloat16, float>();
extern template std::vector<LoraKernel> lora_kernels<__half, __half>();
extern template std::vector<LoraKernel> lora_kernels<__half, float>();

}  // namespace loratory::gpu
