#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpu/kernels/wgmma.cuh"

// The product of weights and values by a warpgroup: weights from registers, values from shared
// memory as they lie in the blocks, with neighbouring columns side by side.

namespace loratory::gpu {

/// Eight keys of 64 columns are 1024 bytes in the swizzle of swizzle_128b(); the next 64 columns
/// are `panel_bytes` away. 16 keys further is a descriptor + 128.
__device__ inline uint64_t values_descriptor(const std::byte* rows, uint32_t panel_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightKeys = uint64_t{1024 / 16} << 32;
  constexpr uint32_t kInCta = 0x3FFFF;
  return (shared_address(rows) & kInCta) / 16 | uint64_t{panel_bytes / 16} << 16 | kEightKeys |
         kSwizzle128;
}

#define LORATORY_SUMS_16(c, i)                                                                \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7]), "+f"(c[i + 8]), "+f"(c[i + 9]), "+f"(c[i + 10]),        \
      "+f"(c[i + 11]), "+f"(c[i + 12]), "+f"(c[i + 13]), "+f"(c[i + 14]), "+f"(c[i + 15])
#define LORATORY_SUMS_32(c, i) LORATORY_SUMS_16(c, i), LORATORY_SUMS_16(c, i + 16)
#define LORATORY_WEIGHTS(w) "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
#define LORATORY_PRODUCT_64(dtypes)                                                          \
  asm volatile(                                                                              \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %37, 0;\n"                                     \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." dtypes                                   \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22," \
      "%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, adds, 1, 1, 1;\n}"      \
      : LORATORY_SUMS_32(c, 0)                                                               \
      : LORATORY_WEIGHTS(w), "l"(v), "r"(int(adds)))
#define LORATORY_PRODUCT_128(dtypes)                                                         \
  asm volatile(                                                                              \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %69, 0;\n"                                     \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." dtypes                                  \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22," \
      "%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43," \
      "%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "   \
      "{%64,%65,%66,%67}, %68, adds, 1, 1, 1;\n}"                                            \
      : LORATORY_SUMS_32(c, 0), LORATORY_SUMS_32(c, 32)                                      \
      : LORATORY_WEIGHTS(w), "l"(v), "r"(int(adds)))

/// c = weights · values, plus c if `adds`, over 16 keys. c is laid out as WgmmaSums; the weights
/// are a fragment of mma.sync for each warp's 16 rows. In flight until wait_for_product().
template <typename T, int kCount>
__device__ inline void multiply_weights(float (&c)[kCount], const uint4& w, uint64_t v, bool adds) {
  static_assert(kCount == 32 || kCount == 64);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr bool kIsBf16 = std::is_same_v<T, __nv_bfloat16>;
  if constexpr (kCount == 32 && kIsBf16)
    LORATORY_PRODUCT_64("bf16.bf16");
  else if constexpr (kCount == 32)
    LORATORY_PRODUCT_64("f16.f16");
  else if constexpr (kIsBf16)
    LORATORY_PRODUCT_128("bf16.bf16");
  else
    LORATORY_PRODUCT_128("f16.f16");
#endif
}
#undef LORATORY_PRODUCT_64
#undef LORATORY_PRODUCT_128

/// Afterwards c can be read, and the values and weights overwritten.
template <int kCount>
__device__ inline void wait_for_product(float (&c)[kCount]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (kCount == 32)
    asm volatile("wgmma.wait_group.sync.aligned 0;" : LORATORY_SUMS_32(c, 0) : : "memory");
  else
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : LORATORY_SUMS_32(c, 0), LORATORY_SUMS_32(c, 32)
                 :
                 : "memory");
#endif
}

/// Waits for all groups but the last one; afterwards c, of an earlier group, can be read.
__device__ inline void wait_for_all_but_last(float (&c)[32]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned 1;" : LORATORY_SUMS_32(c, 0) : : "memory");
#endif
}
#undef LORATORY_SUMS_16
#undef LORATORY_SUMS_32
#undef LORATORY_WEIGHTS

/// For warps of a CTA that give each other registers; all warps of a warpgroup call it.
template <int kRegisters>
__device__ inline void take_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ inline void give_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

}  // namespace loratory::gpu
