#pragma once

#include "gpu/kernels/ptx.cuh"

// Numbers in tensor-core fragments of m16n8k16: ptx.cuh loads and multiplies them.

namespace loratory::gpu {

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
