#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include "gpu/kernels/ptx.cuh"

// Matrix instructions of a warpgroup, four warps, which read both operands from shared memory. Only
// sm_90 has them. Elsewhere these functions do nothing, and no kernel that calls them is launched:
// LoRA and attention have others (LoraVariant::needs_wgmma), launch_skinny_product() throws.

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

#define LORATORY_SUMS_4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define LORATORY_SUMS_8(i) LORATORY_SUMS_4(i), LORATORY_SUMS_4(i + 4)
#define LORATORY_SUMS_16(i) LORATORY_SUMS_8(i), LORATORY_SUMS_8(i + 8)
#define LORATORY_SUMS_24(i) LORATORY_SUMS_16(i), LORATORY_SUMS_8(i + 16)
#define LORATORY_SUMS_32(i) LORATORY_SUMS_16(i), LORATORY_SUMS_16(i + 16)
#define LORATORY_SUMS_48(i) LORATORY_SUMS_32(i), LORATORY_SUMS_16(i + 32)
#define LORATORY_SUMS_64(i) LORATORY_SUMS_32(i), LORATORY_SUMS_32(i + 32)
#define LORATORY_SUMS_80(i) LORATORY_SUMS_64(i), LORATORY_SUMS_16(i + 64)
#define LORATORY_SUMS_96(i) LORATORY_SUMS_64(i), LORATORY_SUMS_32(i + 64)
#define LORATORY_SUMS_112(i) LORATORY_SUMS_96(i), LORATORY_SUMS_16(i + 96)
#define LORATORY_SUMS_128(i) LORATORY_SUMS_96(i), LORATORY_SUMS_32(i + 96)

#define LORATORY_NAMES_4 "%0,%1,%2,%3"
#define LORATORY_NAMES_8 LORATORY_NAMES_4 ",%4,%5,%6,%7"
#define LORATORY_NAMES_16 LORATORY_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define LORATORY_NAMES_24 LORATORY_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define LORATORY_NAMES_32 LORATORY_NAMES_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define LORATORY_NAMES_48 \
  LORATORY_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define LORATORY_NAMES_64 \
  LORATORY_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define LORATORY_NAMES_80 \
  LORATORY_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define LORATORY_NAMES_96 \
  LORATORY_NAMES_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define LORATORY_NAMES_112 \
  LORATORY_NAMES_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define LORATORY_NAMES_128 \
  LORATORY_NAMES_112       \
  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

/// a, b and adds are the operands behind the sums.
#define LORATORY_WGMMA(columns, count, at_b, at_adds, dtypes)                                 \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #at_adds                            \
               ", 0;\n"                                                                       \
               "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." dtypes                 \
               " {" LORATORY_NAMES_##count "}, %" #count ", %" #at_b ", adds, 1, 1, 0, 0;\n}" \
               : LORATORY_SUMS_##count(0)                                                     \
               : "l"(a), "l"(b), "r"(int(adds)))
#define LORATORY_WGMMA_IF(columns, count, at_b, at_adds)        \
  if constexpr (kCount == count && kIsBf16)                     \
    LORATORY_WGMMA(columns, count, at_b, at_adds, "bf16.bf16"); \
  else if constexpr (kCount == count)                           \
  LORATORY_WGMMA(columns, count, at_b, at_adds, "f16.f16")

/// c = a b^T, plus c if `adds`, over 16 numbers of each row, of as many columns of b as c is for:
/// 8, 16, 32, 48, 64, 96, 128, 160, 192, 224 or 256. In flight until it is waited for.
template <typename Weight, int kCount>
__device__ inline void wgmma(float (&c)[kCount], uint64_t a, uint64_t b, bool adds) {
  constexpr int kCounts[] = {4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128};
  static_assert(std::find(std::begin(kCounts), std::end(kCounts), kCount) != std::end(kCounts));
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr bool kIsBf16 = std::is_same_v<Weight, __nv_bfloat16>;
  LORATORY_WGMMA_IF(8, 4, 5, 6);
  LORATORY_WGMMA_IF(16, 8, 9, 10);
  LORATORY_WGMMA_IF(32, 16, 17, 18);
  LORATORY_WGMMA_IF(48, 24, 25, 26);
  LORATORY_WGMMA_IF(64, 32, 33, 34);
  LORATORY_WGMMA_IF(96, 48, 49, 50);
  LORATORY_WGMMA_IF(128, 64, 65, 66);
  LORATORY_WGMMA_IF(160, 80, 81, 82);
  LORATORY_WGMMA_IF(192, 96, 97, 98);
  LORATORY_WGMMA_IF(224, 112, 113, 114);
  LORATORY_WGMMA_IF(256, 128, 129, 130);
#endif
}
#undef LORATORY_WGMMA
#undef LORATORY_WGMMA_IF

#undef LORATORY_NAMES_4
#undef LORATORY_NAMES_8
#undef LORATORY_NAMES_16
#undef LORATORY_NAMES_24
#undef LORATORY_NAMES_32
#undef LORATORY_NAMES_48
#undef LORATORY_NAMES_64
#undef LORATORY_NAMES_80
#undef LORATORY_NAMES_96
#undef LORATORY_NAMES_112
#undef LORATORY_NAMES_128

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
    asm volatile("wgmma.wait_group.sync.aligned 0;" : LORATORY_SUMS_16(0) : : "memory");
  else
    asm volatile("wgmma.wait_group.sync.aligned 0;" : LORATORY_SUMS_32(0) : : "memory");
#endif
}
/// For two products that are in flight at once.
template <int kCount, int kCountToo>
__device__ inline void wait_for_wgmma(float (&c)[kCount], float (&too)[kCountToo]) {
  wait_for_wgmma(c);
  wait_for_wgmma(too);
}

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
#undef LORATORY_SUMS_8
#undef LORATORY_SUMS_16
#undef LORATORY_SUMS_24
#undef LORATORY_SUMS_32
#undef LORATORY_SUMS_48
#undef LORATORY_SUMS_64
#undef LORATORY_SUMS_80
#undef LORATORY_SUMS_96
#undef LORATORY_SUMS_112
#undef LORATORY_SUMS_128

}  // namespace loratory::gpu
