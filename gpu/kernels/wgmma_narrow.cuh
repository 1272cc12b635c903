#pragma once

#include "gpu/kernels/wgmma.cuh"

// wgmma of 16 and 24 columns, beside the 32 and 64 of wgmma.cuh, and sums that stay in flight.

namespace loratory::gpu {

#define LORATORY_SUMS_4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define LORATORY_WGMMA_16(dtypes)                                \
  asm volatile(                                                  \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %10, 0;\n"         \
      "wgmma.mma_async.sync.aligned.m64n16k16.f32." dtypes       \
      " {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, adds, 1, 1, 0, 0;\n}" \
      : LORATORY_SUMS_4(0), LORATORY_SUMS_4(4)                   \
      : "l"(a), "l"(b), "r"(int(adds)))
#define LORATORY_WGMMA_24(dtypes)                                                \
  asm volatile(                                                                  \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %14, 0;\n"                         \
      "wgmma.mma_async.sync.aligned.m64n24k16.f32." dtypes                       \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11}, %12, %13, adds, 1, 1, 0, 0;\n}" \
      : LORATORY_SUMS_4(0), LORATORY_SUMS_4(4), LORATORY_SUMS_4(8)               \
      : "l"(a), "l"(b), "r"(int(adds)))

/// As wgmma(), of 16, 24, 32 or 64 columns.
template <typename Weight, int kCount>
__device__ inline void wgmma_any(float (&c)[kCount], uint64_t a, uint64_t b, bool adds) {
  static_assert(kCount == 8 || kCount == 12 || kCount == 16 || kCount == 32);
  constexpr bool kIsBf16 = std::is_same_v<Weight, __nv_bfloat16>;
  if constexpr (kCount > 12) {
    wgmma<Weight>(c, a, b, adds);
  } else {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (kCount == 8 && kIsBf16)
      LORATORY_WGMMA_16("bf16.bf16");
    else if constexpr (kCount == 8)
      LORATORY_WGMMA_16("f16.f16");
    else if constexpr (kIsBf16)
      LORATORY_WGMMA_24("bf16.bf16");
    else
      LORATORY_WGMMA_24("f16.f16");
#endif
  }
}
#undef LORATORY_WGMMA_16
#undef LORATORY_WGMMA_24

/// Until at most kOpen commits are in flight: the operands of older ones may be overwritten.
template <int kOpen>
__device__ inline void wait_for_older_wgmma() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOpen) : "memory");
#endif
}

/// Afterwards c can be read.
template <int kCount>
__device__ inline void wait_for_sums(float (&c)[kCount]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static_assert(kCount % 4 == 0);
  wait_for_older_wgmma<0>();
#pragma unroll
  for (int i = 0; i < kCount; i += 4) asm volatile("" : LORATORY_SUMS_4(i) : : "memory");
#endif
}
#undef LORATORY_SUMS_4

}  // namespace loratory::gpu
