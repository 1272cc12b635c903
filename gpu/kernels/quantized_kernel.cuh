#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include "gpu/kernels/lora_kernel.cuh"
#include "gpu/kernels/lora_kernel_entry.cuh"
#include "gpu/plan/quantized_variants.hpp"

// The kernels of 8-bit weights: those of lora_kernel.cuh, with A and B as bytes in shared memory
// and widened where a fragment is loaded, or before wgmma reads a stage. What differs is in
// `if constexpr (C::kIsQuantized)`.
//
// Numbers  Beside wide x, A is widened to x's dtype; beside 8-bit x, both to f16. h in fp32 is
//          split in bf16 hi + lo, 8-bit h and its B are widened to f16. All of that is exact but
//          for lo, which keeps 16 bits of h.
// Order    of lora_kernel.cuh. Factors come after the last sum, before h or y is rounded.

namespace loratory::gpu {

/// X: of x, bf16, f16 or uint8_t (8-bit of any format). H: of h, float or uint8_t.
template <typename X, typename H, typename Out_, LoraOp kOp_, LoraVariant kVariant>
struct QuantizedConfig
    : KernelShape<kVariant, kOp_, int(sizeof(Out_)), 1, int(sizeof(X)), int(sizeof(H))> {
  using Weight = std::conditional_t<sizeof(X) == 1, __half, X>;
  using Split = std::conditional_t<sizeof(H) == 1, __half, __nv_bfloat16>;
  using Out = Out_;
  static constexpr LoraOp kOp = kOp_;
  static constexpr int kWeightBytes = 1, kXBytes = sizeof(X), kHBytes = sizeof(H);
  static constexpr bool kIsQuantized = true;
  static constexpr bool kCrossesCtas = QuantizedConfig::kCluster > 1 && QuantizedConfig::kShrinks;
};

/// One of eight warps less where registers do not suffice: for fp32 y, for the factors of 8-bit h
/// beside four CTAs, and for a pair's tiles of 64 ranks beside three.
template <typename C>
constexpr int quantized_ctas_per_sm() {
  const bool is_large = sizeof(typename C::Out) == 4 || (C::kHBytes == 1 && C::kRankTiles == 1) ||
                        (C::kGated && C::kRankTiles == 4 && C::kTokenTiles == 1);
  return C::kCtasPerSm - (is_large ? C::kCtasOfEightWarps : 0);
}

template <typename C>
__global__ void __launch_bounds__(C::kNumThreads, quantized_ctas_per_sm<C>())
    quantized_lora_kernel(const __grid_constant__ QuantizedParams params) {
  extern __shared__ __align__(1024) std::byte shared[];
  LoraCta<C>(params, shared).run();
}

template <typename C, LoraVariant kVariant>
LoraKernel quantized_entry() {
  return {.op = C::kOp,
          .variant = kVariant,
          .function = reinterpret_cast<const void*>(&quantized_lora_kernel<C>),
          .shared_bytes = &C::shared_bytes,
          .ahead_bytes = C::kAheadBytes};
}

/// The linears of one type of x, whose y has that type or fp32.
template <typename X, typename Out>
std::vector<LoraKernel> quantized_linears() {
  return []<size_t... i>(std::index_sequence<i...>) {
    return std::vector<LoraKernel>{
        quantized_entry<QuantizedConfig<X, float, Out, LoraOp::linear, kQuantizedLinearVariants[i]>,
                        kQuantizedLinearVariants[i]>()...};
  }
  (std::make_index_sequence<std::size(kQuantizedLinearVariants)>{});
}

/// The shrinks of one type of x.
template <typename X>
std::vector<LoraKernel> quantized_shrinks() {
  return []<size_t... i>(std::index_sequence<i...>) {
    using Out = std::conditional_t<sizeof(X) == 1, __half, X>;  // not used
    return std::vector<LoraKernel>{
        quantized_entry<QuantizedConfig<X, float, Out, LoraOp::shrink, kQuantizedShrinkVariants[i]>,
                        kQuantizedShrinkVariants[i]>()...};
  }
  (std::make_index_sequence<std::size(kQuantizedShrinkVariants)>{});
}

/// The expands of one type of h and of y.
template <typename H, typename Out>
std::vector<LoraKernel> quantized_expands() {
  return []<size_t... i>(std::index_sequence<i...>) {
    return std::vector<LoraKernel>{quantized_entry<
        QuantizedConfig<__half, H, Out, LoraOp::expand, kQuantizedExpandVariants[i]>,
        kQuantizedExpandVariants[i]>()...};
  }
  (std::make_index_sequence<std::size(kQuantizedExpandVariants)>{});
}

/// The expands of wide x that end with SwiGLU.
template <typename Out>
std::vector<LoraKernel> quantized_gated_expands() {
  return []<size_t... i>(std::index_sequence<i...>) {
    return std::vector<LoraKernel>{quantized_entry<
        QuantizedConfig<__half, float, Out, LoraOp::gated_expand, kQuantizedGatedVariants[i]>,
        kQuantizedGatedVariants[i]>()...};
  }
  (std::make_index_sequence<kQuantizedGatedVariants.size()>{});
}

extern template std::vector<LoraKernel> quantized_linears<__nv_bfloat16, __nv_bfloat16>();
extern template std::vector<LoraKernel> quantized_linears<__nv_bfloat16, float>();
extern template std::vector<LoraKernel> quantized_linears<__half, __half>();
extern template std::vector<LoraKernel> quantized_linears<__half, float>();
extern template std::vector<LoraKernel> quantized_gated_expands<__nv_bfloat16>();
extern template std::vector<LoraKernel> quantized_gated_expands<__half>();
extern template std::vector<LoraKernel> quantized_shrinks<__nv_bfloat16>();
extern template std::vector<LoraKernel> quantized_shrinks<__half>();
extern template std::vector<LoraKernel> quantized_shrinks<uint8_t>();
extern template std::vector<LoraKernel> quantized_expands<float, __nv_bfloat16>();
extern template std::vector<LoraKernel> quantized_expands<float, __half>();
extern template std::vector<LoraKernel> quantized_expands<float, float>();
extern template std::vector<LoraKernel> quantized_expands<uint8_t, __nv_bfloat16>();
extern template std::vector<LoraKernel> quantized_expands<uint8_t, __half>();
extern template std::vector<LoraKernel> quantized_expands<uint8_t, float>();

}  // namespace loratory::gpu
