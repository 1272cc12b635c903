#pragma once

#include "gpu/kernels/wgmma.cuh"

// wgmma of 8 and 128 columns, beside the 32 and 64 of wgmma.cuh, and sums that stay in flight.

namespace loratory::gpu {

#define LORATORY_SUMS_4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define LORATORY_SUMS_16(i) \
  LORATORY_SUMS_4(i), LORATORY_SUMS_4(i + 4), LORATORY_SUMS_4(i + 8), LORATORY_SUMS_4(i + 12)
#define LORATORY_WGMMA_8(dtypes)                          \
  asm volatile(                                           \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %6, 0;\n"   \
      "wgmma.mma_async.sync.aligned.m64n8k16.f32." dtypes \
      " {%0,%1,%2,%3}, %4, %5, adds, 1, 1, 0, 0;\n}"      \
      : LORATORY_SUMS_4(0)                                \
      : "l"(a), "l"(b), "r"(int(adds)))
#define LORATORY_WGMMA_128(dtypes)                                                            \
  asm volatile(                                                                               \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"                                      \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." dtypes                                   \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,"              \
      "%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,"              \
      "%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,"              \
      "%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, adds, 1, 1, 0, 0;\n}"                      \
      : LORATORY_SUMS_16(0), LORATORY_SUMS_16(16), LORATORY_SUMS_16(32), LORATORY_SUMS_16(48) \
      : "l"(a), "l"(b), "r"(int(adds)))

/// As wgmma(), of 8, 32, 64 or 128 columns.
template <typename Weight, int kCount>
__device__ inline void wgmma_any(float (&c)[kCount], uint64_t a, uint64_t b, bool adds) {
  static_assert(kCount == 4 || kCount == 16 || kCount == 32 || kCount == 64);
  constexpr bool kIsBf16 = std::is_same_v<Weight, __nv_bfloat16>;
  if constexpr (kCount == 16 || kCount == 32) {
    wgmma<Weight>(c, a, b, adds);
  } else {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (kCount == 4 && kIsBf16)
      LORATORY_WGMMA_8("bf16.bf16");
    else if constexpr (kCount == 4)
      LORATORY_WGMMA_8("f16.f16");
    else if constexpr (kIsBf16)
      LORATORY_WGMMA_128("bf16.bf16");
    else
      LORATORY_WGMMA_128("f16.f16");
#endif
  }
}
#undef LORATORY_WGMMA_8
#undef LORATORY_WGMMA_128

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
#undef LORATORY_SUMS_16
#undef LORATORY_SUMS_4

}  // namespace loratory::gpu
