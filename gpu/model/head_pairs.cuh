#pragma once

#include "gpu/model/eight.cuh"

// RMSNorm and RoPE of one head, by head_dim / 16 lanes side by side. rotary() and attention have
// the same bits because both take these steps.

namespace loratory::gpu {

/// What a lane holds: eight numbers of the first half of a head, and the eight of the second half
/// that they are paired with.
struct Pairs {
  Eight first, second;
};

/// Numbers [at, at + 8) of each half.
template <typename T>
__device__ inline Pairs load_pairs(const T* head, int half, int at) {
  return {load_vectors(head + at), load_vectors(head + half + at)};
}
template <typename T>
__device__ inline void store_pairs(T* head, int half, int at, const Pairs& pairs) {
  store_vectors(head + at, pairs.first);
  store_vectors(head + half + at, pairs.second);
}

/// 1 / sqrt(mean of squares + eps): a lane's squares in ascending order, then a butterfly. All
/// lanes of the warp call it.
__device__ inline float norm_scale(const Pairs& pairs, int head_dim, float eps) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = __fmaf_rn(pairs.first.v[i], pairs.first.v[i], sum);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = __fmaf_rn(pairs.second.v[i], pairs.second.v[i], sum);
  for (int distance = 1; distance < head_dim / 16; distance *= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(~0U, sum, distance));
  }
  return __frsqrt_rn(__fadd_rn(__fdiv_rn(sum, float(head_dim)), eps));
}

__device__ inline void normalize_pairs(Pairs& pairs, float scale, const Pairs& weights) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    pairs.first.v[i] = __fmul_rn(weights.first.v[i], __fmul_rn(pairs.first.v[i], scale));
    pairs.second.v[i] = __fmul_rn(weights.second.v[i], __fmul_rn(pairs.second.v[i], scale));
  }
}

__device__ inline void rotate_pairs(Pairs& pairs, const Eight& cos, const Eight& sin) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float a = pairs.first.v[i], b = pairs.second.v[i];
    pairs.first.v[i] = __fmaf_rn(a, cos.v[i], -__fmul_rn(b, sin.v[i]));
    pairs.second.v[i] = __fmaf_rn(b, cos.v[i], __fmul_rn(a, sin.v[i]));
  }
}

}  // namespace loratory::gpu
