#pragma once

#include <type_traits>
#include <utility>

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

/// One CTA of eight warps less on an SM where registers run out: for fp32 y, for the factors of
/// 8-bit h beside four CTAs, and for a pair's tiles of 64 ranks beside three.
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
          .ahead_bytes = C::kAheadBytes,
          .stages_ahead = C::kStagesAhead};
}

template <LoraOp kOp, typename X, typename H, typename Out>
const LoraKernels& quantized_kernels() {
  static const LoraKernels all = []<size_t... i>(std::index_sequence<i...>) {
    return LoraKernels{quantized_entry<QuantizedConfig<X, H, Out, kOp, quantized_variants(kOp)[i]>,
                                       quantized_variants(kOp)[i]>()...};
  }
  (std::make_index_sequence<quantized_variants(kOp).size()>{});
  return all;
}

}  // namespace loratory::gpu
