#pragma once

#include "gpu/kernels/kernel_context.cuh"

namespace loratory::gpu {

/// Neighbours first, then neighbouring pairs, then both halves: the balanced tree errs little.
template <int kNum>
__device__ inline float4 tree_sum(float4 (&sums)[kNum]) {
#pragma unroll
  for (int step = 1; step < kNum; step *= 2) {
#pragma unroll
    for (int g = 0; g < kNum; g += 2 * step) sums[g] = added(sums[g], sums[g + step]);
  }
  return sums[0];
}

/// Four ranks of a token of `s`, from j on, to p.h. `adds`: to what this thread has written before.
template <typename C>
__device__ inline void write_h(const Context<C>& c, const WorkTile& work, const TileSlice& s,
                               int token, int j, float4 v, bool adds) {
  const KernelParams& p = c.p;
  float* const h =
      reinterpret_cast<float*>(c.tokens(work.table)[token].y) + s.index * p.h_slice_stride + j;
  if (p.h_aligned && j + 4 <= s.rank) {
    auto& four = *reinterpret_cast<float4*>(h);
    four = adds ? added(four, v) : v;
    return;
  }
  const float of[] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (j + i < s.rank) h[i] = adds ? h[i] + of[i] : of[i];
  }
}

}  // namespace loratory::gpu
