#pragma once

#include "gpu/kernels/fragments.cuh"

// y = round(base + scaling · sum), one rounding, in words of y: one fp32 number or two 16-bit ones.
// The other NumericModes reduce to this. Without inputs base is -0, which leaves every delta as it
// is. A delta that is rounded before it is added has a scaling of 1.

namespace loratory::gpu {

template <typename Out>
inline constexpr bool kIsFp32 = sizeof(Out) == 4;

template <typename Out>
inline constexpr uint32_t kMinusZeros = kIsFp32<Out> ? 0x80000000 : 0x80008000;

__device__ inline uint32_t result_of_one(uint32_t base, float scaling, float sum) {
  return __float_as_uint(__fmaf_rn(scaling, sum, __uint_as_float(base)));
}
template <typename Out>
__device__ inline uint32_t result_of_two(uint32_t base, float scaling, float sum0, float sum1) {
  const float2 b = unpack<Out>(base);
  return pack<Out>(__fmaf_rn(scaling, sum0, b.x), __fmaf_rn(scaling, sum1, b.y));
}

/// Four words of a token, two numbers each from neighbouring n8 tiles. The numbers of the next tile
/// lie four further in `sums`.
template <typename Out>
__device__ inline uint4 results_of_tiles(const uint4& base, float scaling, const float* sums) {
  if constexpr (kIsFp32<Out>) {
    return {result_of_one(base.x, scaling, sums[0]), result_of_one(base.y, scaling, sums[1]),
            result_of_one(base.z, scaling, sums[4]), result_of_one(base.w, scaling, sums[5])};
  } else {
    return {result_of_two<Out>(base.x, scaling, sums[0], sums[1]),
            result_of_two<Out>(base.y, scaling, sums[4], sums[5]),
            result_of_two<Out>(base.z, scaling, sums[8], sums[9]),
            result_of_two<Out>(base.w, scaling, sums[12], sums[13])};
  }
}

/// scaling · sum, rounded to y's type.
template <typename Out>
__device__ inline float rounded_delta(float scaling, float sum) {
  const float delta = __fmul_rn(scaling, sum);
  if constexpr (kIsFp32<Out>)
    return delta;
  else
    return to_float<Out>(to_bits<Out>(delta));
}

}  // namespace loratory::gpu
