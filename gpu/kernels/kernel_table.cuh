#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include "gpu/kernels/lora_kernel.cuh"
#include "gpu/kernels/lora_kernel_entry.cuh"
#include "gpu/plan/variant_table.hpp"

// One kernel for each row of variant_table.hpp. Each pair of dtypes has a file of its own, and so
// have gated expands of each dtype, so that the files compile side by side.

namespace loratory::gpu {

template <typename Weight, typename Out, LoraOp kOp, LoraVariant kVariant>
LoraKernel kernel_entry() {
  using C = Config<Weight, Out, kOp, kVariant>;
  return {.op = kOp,
          .variant = kVariant,
          .function = reinterpret_cast<const void*>(&lora_kernel<C>),
          .shared_bytes = &C::shared_bytes};
}

template <typename Weight, typename Out, LoraOp kOp>
void append_kernels(std::vector<LoraKernel>& list) {
  [&]<size_t... i>(std::index_sequence<i...>) {
    (list.push_back(kernel_entry<Weight, Out, kOp, variants_of(kOp)[i]>()), ...);
  }
  (std::make_index_sequence<variants_of(kOp).size()>{});
}

/// Every kernel of one pair of dtypes. A shrink writes fp32 h whatever the dtype of y, so it exists
/// once per dtype of the weights.
template <typename Weight, typename Out>
std::vector<LoraKernel> lora_kernels() {
  std::vector<LoraKernel> out;
  append_kernels<Weight, Out, LoraOp::linear>(out);
  if constexpr (std::is_same_v<Weight, Out>) append_kernels<Weight, Out, LoraOp::shrink>(out);
  append_kernels<Weight, Out, LoraOp::expand>(out);
  return out;
}

/// Those that end with SwiGLU: y is of the dtype of the weights.
template <typename Weight>
std::vector<LoraKernel> gated_kernels() {
  std::vector<LoraKernel> out;
  append_kernels<Weight, Weight, LoraOp::gated_expand>(out);
  append_kernels<Weight, Weight, LoraOp::gated_expand_shrink>(out);
  return out;
}

extern template std::vector<LoraKernel> gated_kernels<__nv_bfloat16>();
extern template std::vector<LoraKernel> gated_kernels<__half>();
extern template std::vector<LoraKernel> lora_kernels<__nv_bfloat16, __nv_bfloat16>();
extern template std::vector<LoraKernel> lora_kernels<__nv_bfloat16, float>();
extern template std::vector<LoraKernel> lora_kernels<__half, __half>();
extern template std::vector<LoraKernel> lora_kernels<__half, float>();

}  // namespace loratory::gpu
