#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpu/kernels/ptx.cuh"

// Matrix instructions of a warpgroup, four warps, which read both operands from shared memory. Only
// sm_90 has them. Elsewhere these functions do nothing, and nobody calls them
// (LoraVariant::needs_wgmma).

namespace loratory::gpu {

/// __syncthreads() for one warpgroup of the CTA; a CTA may have up to 15.
__device__ inline void sync_warpgroup(int warpgroup) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");
}

/// Makes the copies that this thread has waited for visible to wgmma.
__device__ inline void fence_async_proxy() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// Rows of 64 numbers, 128 bytes each, in the swizzle of swizzle_128b(), from a multiple of 1024
/// on. A descriptor + 2 is 16 numbers further.
__device__ inline uint64_t matrix_descriptor(const std::byte* rows) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 / 16} << 32;
  constexpr uint32_t kInCta = 0x3FFFF;  // the bits above name the CTA in the cluster
  return (shared_address(rows) & kInCta) / 16 | kEightRows | kSwizzle128;
}

/// The product of 64 rows of a and kColumns rows of b. This thread's number 4 j + i is
/// that of row 16 · (warp of the warpgroup) + lane / 4 and column 8 j + 2 (lane % 4) + i. Number 4
/// j + 2 + i is that of the same column, eight rows below.
template <int kColumns>
using WgmmaSums = float[kColumns / 2];

/// Orders earlier accesses of registers before the next wgmma.
__device__ inline void fence_wgmma() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

#define LORATORY_SUMS_16(c, i)                                                                \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7]), "+f"(c[i + 8]), "+f"(c[i + 9]), "+f"(c[i + 10]),        \
      "+f"(c[i + 11]), "+f"(c[i + 12]), "+f"(c[i + 13]), "+f"(c[i + 14]), "+f"(c[i + 15])
#define LORATORY_WGMMA_32(dtypes)                                                                \
  asm volatile(                                                                                  \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %18, 0;\n"                                         \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." dtypes                                       \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, adds, 1, 1, 0, 0;\n}" \
      : LORATORY_SUMS_16(c, 0)                                                                   \
      : "l"(a), "l"(b), "r"(int(adds)))
#define LORATORY_WGMMA_64(dtypes)                                                            \
  asm volatile(                                                                              \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %34, 0;\n"                                     \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." dtypes                                   \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22," \
      "%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, adds, 1, 1, 0, 0;\n}"                 \
      : LORATORY_SUMS_16(c, 0), LORATORY_SUMS_16(c, 16)                                      \
      : "l"(a), "l"(b), "r"(int(adds)))

/// c = a b^T, plus c if `adds`, over 16 numbers of each row. In flight until wait_for_wgmma().
template <typename Weight, int kCount>
__device__ inline void wgmma(float (&c)[kCount], uint64_t a, uint64_t b, bool adds) {
  static_assert(kCount == 16 || kCount == 32);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr bool kIsBf16 = std::is_same_v<Weight, __nv_bfloat16>;
  if constexpr (kCount == 16 && kIsBf16)
    LORATORY_WGMMA_32("bf16.bf16");
  else if constexpr (kCount == 16)
    LORATORY_WGMMA_32("f16.f16");
  else if constexpr (kIsBf16)
    LORATORY_WGMMA_64("bf16.bf16");
  else
    LORATORY_WGMMA_64("f16.f16");
#endif
}
#undef LORATORY_WGMMA_32
#undef LORATORY_WGMMA_64

__device__ inline void commit_wgmma() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/// Afterwards c can be read, and the operands overwritten.
template <int kCount>
__device__ inline void wait_for_wgmma(float (&c)[kCount]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kCount == 16)
    asm volatile("wgmma.wait_group.sync.aligned 0;" : LORATORY_SUMS_16(c, 0) : : "memory");
  else
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : LORATORY_SUMS_16(c, 0), LORATORY_SUMS_16(c, 16)
                 :
                 : "memory");
#endif
}
#undef LORATORY_SUMS_16
/// For two products that are in flight at once.
template <int kCount, int kCountToo>
__device__ inline void wait_for_wgmma(float (&c)[kCount], float (&too)[kCountToo]) {
  wait_for_wgmma(c);
  wait_for_wgmma(too);
}

}  // namespace loratory::gpu
