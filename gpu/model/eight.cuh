#pragma once

#include <type_traits>

#include "gpu/kernels/fragments.cuh"

// Eight neighbouring numbers, which a thread reads and writes at once: one vector of 16 bytes, two
// of fp32. A kernel whose sums go by eights has the same order of sums whether it can use vectors
// or not.

namespace loratory::gpu {

struct Eight {
  float v[8];
};

/// v as T keeps it.
template <typename T>
__device__ inline float rounded_to(float v) {
  return float(T(v));  // to nearest even
}

/// Of T of 16 bits.
template <typename T>
__device__ inline Eight unpacked(const uint4& words) {
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
  Eight out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = unpack<T>(word[i]);
    out.v[2 * i] = two.x;
    out.v[2 * i + 1] = two.y;
  }
  return out;
}

template <typename T>
__device__ inline Eight load_vectors(const T* from) {
  if constexpr (std::is_same_v<T, float>) {
    const float4 a = reinterpret_cast<const float4*>(from)[0];
    const float4 b = reinterpret_cast<const float4*>(from)[1];
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
  } else {
    return unpacked<T>(*reinterpret_cast<const uint4*>(from));
  }
}

template <typename T>
__device__ inline void store_vectors(T* to, const Eight& from) {
  const float* const v = from.v;
  if constexpr (std::is_same_v<T, float>) {
    reinterpret_cast<float4*>(to)[0] = {v[0], v[1], v[2], v[3]};
    reinterpret_cast<float4*>(to)[1] = {v[4], v[5], v[6], v[7]};
  } else {
    *reinterpret_cast<uint4*>(to) = {pack<T>(v[0], v[1]), pack<T>(v[2], v[3]), pack<T>(v[4], v[5]),
                                     pack<T>(v[6], v[7])};
  }
}

/// Numbers [first, first + 8) of a row of `size`; 0 beyond its end. Vectors need an aligned row
/// and a size that is a multiple of 8.
template <typename T, bool kVectors>
__device__ inline Eight load_eight(const T* row, int first, int size) {
  if constexpr (kVectors) {
    return load_vectors(row + first);
  } else {
    Eight out;
#pragma unroll
    for (int i = 0; i < 8; ++i) out.v[i] = first + i < size ? float(row[first + i]) : 0.0f;
    return out;
  }
}

template <typename T, bool kVectors>
__device__ inline void store_eight(T* row, int first, int size, const Eight& from) {
  if constexpr (kVectors) {
    store_vectors(row + first, from);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (first + i < size) row[first + i] = T(from.v[i]);
    }
  }
}

}  // namespace loratory::gpu
