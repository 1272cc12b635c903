#pragma once

#include "gpu/kernels/kernel_context.cuh"
#include "gpu/plan/quantized_params.hpp"

// The factors of 8-bit numbers. They come after the sum: (sum · factor of x or h) · factor of the
// weight, in fp32 [1.46]. Factors of weights may be read before the previous kernel has ended,
// those of activations after.

namespace loratory::gpu {

__device__ inline const QuantizedParams& quantized(const KernelParams& p) {
  return static_cast<const QuantizedParams&>(p);
}

/// The row of a token of the work tile.
__device__ inline int row_of(const KernelParams& p, const WorkTile& work, int token) {
  return __ldg(p.token_indices + work.first_token + token);
}

__device__ inline const float* a_factor(const KernelParams& p, const WorkTile& work,
                                        const TileSlice& s, int rank) {
  const WeightScale& scale = quantized(p).of[s.index].a_scale;
  return scale.data + scale.index(work.slot, rank, 0);
}
__device__ inline const float* b_factor(const KernelParams& p, const WorkTile& work,
                                        const TileSlice& s, int column) {
  const WeightScale& scale = quantized(p).of[s.index].b_scale;
  return scale.data + scale.index(work.slot, column, 0);
}

/// 1 if h is not 8-bit.
__device__ inline float h_factor(const KernelParams& p, const WorkTile& work, const TileSlice& s,
                                 int token) {
  const ActivationScale& scale = quantized(p).h_scale;
  if (scale.data == nullptr) return 1;
  return scale.data[scale.index(s.index, row_of(p, work, token), 0)];
}

/// Fetches the factors of A that the work tile will need.
template <typename C>
__device__ inline void prefetch_a_factors(const Context<C>& c, const WorkTile& work) {
  const int end = min(work.end_block * C::kRankTiles, work.num_rank_tiles) * 16;
  for (int i = work.first_block * C::kBlockRanks + int(threadIdx.x); i < end; i += C::kNumThreads) {
    const TileSlice& s = c.slice_of(work, i / 16, &TileSlice::first_rank_tile);
    const int rank = i - 16 * s.first_rank_tile;
    if (rank < s.rank) prefetch_line(a_factor(c.p, work, s, rank));
  }
}

/// Four sums of a token, ranks j..j+3 of a slice, times their factors.
template <typename C>
__device__ inline float4 scaled_h(const Context<C>& c, const WorkTile& work, const TileSlice& s,
                                  int token, int j, const float4& v) {
  const ActivationScale& scale = quantized(c.p).x_scale;
  float of[4] = {v.x, v.y, v.z, v.w};
  const float of_x =
      scale.data == nullptr ? 1 : scale.data[scale.index(0, row_of(c.p, work, token), 0)];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (j + i >= s.rank) continue;
    of[i] = __fmul_rn(__fmul_rn(of[i], of_x), __ldg(a_factor(c.p, work, s, j + i)));
  }
  return {of[0], of[1], of[2], of[3]};
}

/// Factors of eight neighbouring columns of B, 0 beyond the slice.
struct EightFactors {
  float of[8];
};
__device__ inline EightFactors b_factors(const KernelParams& p, const WorkTile& work,
                                         const TileSlice& s, int column) {
  EightFactors out;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    out.of[i] = column + i < s.num_out ? __ldg(b_factor(p, work, s, column + i)) : 0;
  }
  return out;
}

}  // namespace loratory::gpu
