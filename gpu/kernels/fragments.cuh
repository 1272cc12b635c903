#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

// Tensor-core fragments of m16n8k16. In shared memory they are vectors of 16 bytes: eight
// neighbouring numbers along k. ldmatrix gives each lane what its place in the fragment needs.

namespace loratory::gpu {

/// Loads four matrices of eight rows, one vector per row. Lane i names row i % 8 of matrix i / 8
/// and gets two numbers of each matrix, pair i % 4 of row i / 4.
__device__ inline uint4 load_matrices(const std::byte* row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(uint32_t(__cvta_generic_to_shared(row)))
               : "memory");
  return v;
}

/// c += a b^T. a: rows 0-7 and 8-15 of the first eight k, then of the last eight. b: the first
/// eight k, then the last eight.
template <typename Weight>
__device__ inline void mma(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<Weight, __nv_bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  }
}

template <typename Weight>
__device__ inline uint16_t to_bits(float v);
template <>
__device__ inline uint16_t to_bits<__nv_bfloat16>(float v) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(v));
}
template <>
__device__ inline uint16_t to_bits<__half>(float v) {
  return __half_as_ushort(__float2half_rn(v));
}

template <typename Weight>
__device__ inline float to_float(uint16_t bits);
template <>
__device__ inline float to_float<__nv_bfloat16>(uint16_t bits) {
  return __bfloat162float(__ushort_as_bfloat16(bits));
}
template <>
__device__ inline float to_float<__half>(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

/// Packs two numbers into a word, the first into its lower half.
template <typename T>
__device__ inline uint32_t pack(float low, float high);
template <>
__device__ inline uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(v);
}
template <>
__device__ inline uint32_t pack<__half>(float low, float high) {
  const __half2 v = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(v);
}

template <typename T>
__device__ inline float2 unpack(uint32_t word);
template <>
__device__ inline float2 unpack<__nv_bfloat16>(uint32_t word) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000U)};
}
template <>
__device__ inline float2 unpack<__half>(uint32_t word) {
  return __half22float2(reinterpret_cast<const __half2&>(word));
}

}  // namespace loratory::gpu
