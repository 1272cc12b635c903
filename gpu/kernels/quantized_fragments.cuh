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

/// Two numbers that f16 holds, as two of `T`.
template <typename T>
__device__ inline uint32_t from_halves(uint32_t two) {
  if constexpr (std::is_same_v<T, __half>) return two;
  const float2 f = unpack<__half>(two);
  return pack<T>(f.x, f.y);
}

/// How the upper two of four e4m3fn are converted. in_place: from the upper half of the register.
/// shifted: by the intrinsic, which shifts them down first, one more instruction. Some kernels of
/// wgmma and of strips of 32 tokens spill without it.
enum class Upper { in_place, shifted };

/// Four bytes as four f16 in two words.
template <__nv_fp8_interpretation_t kFormat, Upper kUpper>
__device__ inline StepPair halves_of_f8(uint32_t word) {
  const auto halves = [](uint32_t two) {
    const __half2 v = __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(two), kFormat);
    return reinterpret_cast<const uint32_t&>(v);
  };
#if __CUDA_ARCH__ >= 900
  if constexpr (kFormat == __NV_E4M3 && kUpper == Upper::in_place) {
    uint32_t upper;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, high;\n}"
        : "=r"(upper)
        : "r"(word));
    return {halves(word & 0xFFFF), upper};
  }
#endif
  return {halves(word & 0xFFFF), halves(word >> 16)};
}
/// 0x6400 + 128 + v are the bits of the f16 1152 + v.
__device__ inline StepPair halves_of_i8(uint32_t word) {
  const auto halves = [biased = word ^ 0x80808080](uint32_t bytes) {
    const uint32_t bits = __byte_perm(biased, 0x64646464, bytes);
    const __half2 v =
        __hsub2(reinterpret_cast<const __half2&>(bits), __half2half2(__ushort_as_half(0x6480)));
    return reinterpret_cast<const uint32_t&>(v);
  };
  return {halves(0x4140), halves(0x4342)};
}

/// Words of two numbers that f16 holds, as two of `T`.
template <typename T, int kWords>
__device__ inline void from_halves(StepPair (&words)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    words[i] = {from_halves<T>(words[i].low), from_halves<T>(words[i].high)};
  }
}

/// The format that adapters mostly have: narrow kernels have code of their own for it.
struct E4m3fn {};

/// Four bytes of each word as two words of `T`, bf16 or f16.
template <typename T, Upper kUpper = Upper::in_place, int kWords>
__device__ inline void widen(E4m3fn, const uint32_t (&words)[kWords], StepPair (&out)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) out[i] = halves_of_f8<__NV_E4M3, kUpper>(words[i]);
  from_halves<T>(out);
}
/// The format is the same in all lanes. One branch for all words: branches cost more than the
/// conversions.
template <typename T, Upper kUpper = Upper::in_place, int kWords>
__device__ inline void widen(reference::Dtype format, const uint32_t (&words)[kWords],
                             StepPair (&out)[kWords]) {
  if (format == reference::Dtype::f8_e4m3fn) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) out[i] = halves_of_f8<__NV_E4M3, kUpper>(words[i]);
  } else if (format == reference::Dtype::f8_e5m2) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) out[i] = halves_of_f8<__NV_E5M2, kUpper>(words[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kWords; ++i) out[i] = halves_of_i8(words[i]);
  }
  from_halves<T>(out);
}
template <typename T>
__device__ inline StepPair widen(reference::Dtype format, uint32_t word) {
  const uint32_t words[1] = {word};
  StepPair out[1];
  widen<T>(format, words, out);
  return out[0];
}

/// Sixteen neighbouring numbers each, which become two vectors of eight: numbers 8 j to 8 j + 7 of
/// vector i go to to(i, j).
template <typename T, int kVectors, typename To>
__device__ inline void widen_vectors(reference::Dtype format, const uint4 (&bytes)[kVectors],
                                     const To& to) {
  uint32_t words[4 * kVectors];
  StepPair of[4 * kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    words[4 * i] = bytes[i].x, words[4 * i + 1] = bytes[i].y;
    words[4 * i + 2] = bytes[i].z, words[4 * i + 3] = bytes[i].w;
  }
  widen<T, Upper::shifted>(format, words, of);
#pragma unroll
  for (int i = 0; i < 2 * kVectors; ++i) {
    const StepPair &first = of[2 * i], &second = of[2 * i + 1];
    *reinterpret_cast<uint4*>(to(i / 2, i % 2)) = {first.low, first.high, second.low, second.high};
  }
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
