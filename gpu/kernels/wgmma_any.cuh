#pragma once

#include <algorithm>
#include <iterator>

#include "gpu/kernels/wgmma.cuh"

// wgmma of other numbers of columns than the 32 and 64 of wgmma.cuh, and sums that stay in flight.

namespace loratory::gpu {

#define LORATORY_SUMS_4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define LORATORY_SUMS_8(i) LORATORY_SUMS_4(i), LORATORY_SUMS_4(i + 4)
#define LORATORY_SUMS_16(i) LORATORY_SUMS_8(i), LORATORY_SUMS_8(i + 8)
#define LORATORY_SUMS_24(i) LORATORY_SUMS_16(i), LORATORY_SUMS_8(i + 16)
#define LORATORY_SUMS_48(i) LORATORY_SUMS_24(i), LORATORY_SUMS_24(i + 24)
#define LORATORY_SUMS_64(i) LORATORY_SUMS_48(i), LORATORY_SUMS_16(i + 48)
#define LORATORY_SUMS_80(i) LORATORY_SUMS_64(i), LORATORY_SUMS_16(i + 64)
#define LORATORY_SUMS_96(i) LORATORY_SUMS_80(i), LORATORY_SUMS_16(i + 80)
#define LORATORY_SUMS_112(i) LORATORY_SUMS_96(i), LORATORY_SUMS_16(i + 96)
#define LORATORY_SUMS_128(i) LORATORY_SUMS_112(i), LORATORY_SUMS_16(i + 112)

#define LORATORY_NAMES_4 "%0,%1,%2,%3"
#define LORATORY_NAMES_8 LORATORY_NAMES_4 ",%4,%5,%6,%7"
#define LORATORY_NAMES_24 \
  LORATORY_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23"
#define LORATORY_NAMES_48                                            \
  LORATORY_NAMES_24                                                  \
  ",%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39" \
  ",%40,%41,%42,%43,%44,%45,%46,%47"
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

/// As wgmma(), of as many columns as c is for: 8, 16, 32, 48, 64, 96, 128, 160, 192, 224 or 256.
template <typename Weight, int kCount>
__device__ inline void wgmma_any(float (&c)[kCount], uint64_t a, uint64_t b, bool adds) {
  constexpr int kOthers[] = {4, 8, 24, 48, 64, 80, 96, 112, 128};
  constexpr bool kIsBf16 = std::is_same_v<Weight, __nv_bfloat16>;
  if constexpr (kCount == 16 || kCount == 32) {
    wgmma<Weight>(c, a, b, adds);
  } else {
    static_assert(std::find(std::begin(kOthers), std::end(kOthers), kCount) != std::end(kOthers));
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    LORATORY_WGMMA_IF(8, 4, 5, 6);
    LORATORY_WGMMA_IF(16, 8, 9, 10);
    LORATORY_WGMMA_IF(48, 24, 25, 26);
    LORATORY_WGMMA_IF(96, 48, 49, 50);
    LORATORY_WGMMA_IF(128, 64, 65, 66);
    LORATORY_WGMMA_IF(160, 80, 81, 82);
    LORATORY_WGMMA_IF(192, 96, 97, 98);
    LORATORY_WGMMA_IF(224, 112, 113, 114);
    LORATORY_WGMMA_IF(256, 128, 129, 130);
#endif
  }
}
#undef LORATORY_WGMMA
#undef LORATORY_WGMMA_IF

#undef LORATORY_NAMES_4
#undef LORATORY_NAMES_8
#undef LORATORY_NAMES_24
#undef LORATORY_NAMES_48
#undef LORATORY_NAMES_64
#undef LORATORY_NAMES_80
#undef LORATORY_NAMES_96
#undef LORATORY_NAMES_112
#undef LORATORY_NAMES_128
#undef LORATORY_SUMS_8
#undef LORATORY_SUMS_16
#undef LORATORY_SUMS_24
#undef LORATORY_SUMS_48
#undef LORATORY_SUMS_64
#undef LORATORY_SUMS_80
#undef LORATORY_SUMS_96
#undef LORATORY_SUMS_112
#undef LORATORY_SUMS_128

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
