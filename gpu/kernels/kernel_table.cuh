#pragma once

#include <utility>

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

template <LoraOp kOp, typename Weight, typename Out>
const LoraKernels& lora_kernels() {
  static const LoraKernels all = []<size_t... i>(std::index_sequence<i...>) {
    return LoraKernels{kernel_entry<Weight, Out, kOp, variants_of(kOp)[i]>()...};
  }
  (std::make_index_sequence<variants_of(kOp).size()>{});
  return all;
}

}  // namespace loratory::gpu
