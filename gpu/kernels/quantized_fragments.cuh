#pragma once

#include <cuda_fp8.h>

#include "gpu/kernels/fragments.cuh"
#include "reference/numerics/dtype.hpp"

// 8-bit numbers in fragments of m16n8k16. In shared memory a vector of 16 bytes holds sixteen
// neighbouring numbers along k. ldmatrix gives a lane four of them, 4 q to 4 q + 3 of row g; they
// take places 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of a step, and the other operand is laid out alike.
// bf16 and f16 hold every number of the three formats exactly.

namespace loratory::gpu {

/// A step of k16 of a row: numbers 4 q and 4 q + 1, then 4 q + 2 and 4 q + 3.
struct StepPair {
  uint32_t low, high;
};

/// Two bytes to two f16.
template <__nv_fp8_interpretation_t kFormat>
__device__ inline __half2 halves(uint32_t two) {
  return __half2(__nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(two), kFormat));
}

/// Two numbers that f16 holds, as two of `T`.
template <typename T>
__device__ inline uint32_t from_halves(__half2 v) {
  if constexpr (std::is_same_v<T, __half>) {
    return reinterpret_cast<const uint32_t&>(v);
  } else {
    const float2 f = __half22float2(v);
    return pack<T>(f.x, f.y);
  }
}

template <typename T, __nv_fp8_interpretation_t kFormat>
__device__ inline StepPair widen_f8(uint32_t word) {
  return {from_halves<T>(halves<kFormat>(word & 0xFFFF)),
          from_halves<T>(halves<kFormat>(word >> 16))};
}

/// Four i8. 2^23 + 128 + v has v + 128 in its lowest byte.
template <typename T>
__device__ inline StepPair widen_i8(uint32_t word) {
  const uint32_t biased = word ^ 0x80808080;
  float v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = __uint_as_float(0x4B000000 | (biased >> 8 * i & 0xFF)) - 8388736.0F;
  }
  return {pack<T>(v[0], v[1]), pack<T>(v[2], v[3])};
}

/// Four bytes as two words of `T`, bf16 or f16. All lanes have the same format.
template <typename T>
__device__ inline StepPair widen(reference::Dtype format, uint32_t word) {
  if (format == reference::Dtype::f8_e4m3fn) return widen_f8<T, __NV_E4M3>(word);
  if (format == reference::Dtype::f8_e5m2) return widen_f8<T, __NV_E5M2>(word);
  return widen_i8<T>(word);
}

/// One number in fp32.
__device__ inline float decoded(reference::Dtype format, uint8_t bits) {
  if (format == reference::Dtype::i8) return float(int8_t(bits));
  const auto kind = format == reference::Dtype::f8_e4m3fn ? __NV_E4M3 : __NV_E5M2;
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t(bits), kind)));
}

/// The nearest number of the format, ties to even, saturating; NaN keeps its sign (0 in i8): the
/// bits of reference::encode.
__device__ inline uint8_t encoded(reference::Dtype format, float v) {
  if (format == reference::Dtype::i8) {
    if (v != v) return 0;
    return uint8_t(int8_t(rintf(fminf(fmaxf(v, -128.0F), 127.0F))));
  }
  if (v != v) return uint8_t(0x7F | (__float_as_uint(v) >> 24 & 0x80));
  const auto kind = format == reference::Dtype::f8_e4m3fn ? __NV_E4M3 : __NV_E5M2;
  return uint8_t(__nv_cvt_float_to_fp8(v, __NV_SATFINITE, kind));
}

}  // namespace loratory::gpu
