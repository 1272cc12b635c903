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

/// Of all rows of a slot.
__device__ inline bool has_one_factor(const WeightScale& scale) { return scale.row_stride == 0; }
__device__ inline const float* only_factor(const WeightScale& scale, int64_t slot) {
  return scale.data + slot * scale.slot_stride;
}

/// The factors of neighbouring rows of a weight: one division for all of them.
class FactorWalk {
 public:
  __device__ FactorWalk(const WeightScale& scale, int64_t slot, int row)
      : stride_(scale.row_stride), rows_each_(scale.rows_each) {
    const int at = int(quotient(uint32_t(row), scale.rows_each));
    left_ = (at + 1) * rows_each_ - row;
    from_ = scale.data + slot * scale.slot_stride + int64_t(at) * stride_;
  }
  __device__ float here() const { return __ldg(from_); }
  __device__ const float* at() const { return from_; }
  __device__ void advance() {
    if (--left_ > 0) return;
    left_ = rows_each_;
    from_ += stride_;
  }

 private:
  const float* from_;
  int stride_, rows_each_, left_;  // rows under this factor
};

__device__ inline const float* a_factor(const KernelParams& p, const WorkTile& work,
                                        const TileSlice& s, int rank) {
  const WeightScale& scale = quantized(p).of[s.index].a_scale;
  return scale.data + scale.index(work.slot, rank, 0);
}

/// 1 for fp32 h, at compile time.
template <typename C>
__device__ inline float h_factor(const Context<C>& c, const TileSlice& s, int token) {
  if constexpr (C::kHBytes > 1) return 1;
  return c.h_factors()[s.index * C::kTokens + token];
}
template <typename C>
__device__ inline float x_factor(const Context<C>& c, const WorkTile& work, int token) {
  if constexpr (C::kXBytes > 1) return 1;
  const ActivationScale& scale = quantized(c.p).x_scale;
  return scale.data[scale.index(0, row_of(c.p, work, token), 0)];
}

/// Copies the factors of A of the work tile's first rank blocks to shared memory.
template <typename C>
__device__ inline void copy_a_factors(const Context<C>& c, const WorkTile& work) {
  static_assert(C::kFactorBlocks * C::kBlockRanks <= C::kNumThreads);
  const int i = int(threadIdx.x), tile = work.first_block * C::kRankTiles + i / 16;
  const int end = min(work.end_block * C::kRankTiles, work.num_rank_tiles);
  if (i >= C::kFactorBlocks * C::kBlockRanks || tile >= end) return;
  const TileSlice& s = c.slice_of(work, tile, &TileSlice::first_rank_tile);
  const int rank = 16 * (tile - s.first_rank_tile) + i % 16;
  if (rank < s.rank) copy_four_async(c.a_factors() + i, a_factor(c.p, work, s, rank), true);
}

/// Copies the factors of the work tile's tokens.
template <typename C>
__device__ inline void copy_x_factors(const Context<C>& c, const WorkTile& work) {
  if constexpr (C::kXBytes > 1) return;
  const ActivationScale& scale = quantized(c.p).x_scale;
  if (const int token = int(threadIdx.x); token < work.num_tokens) {
    copy_four_async(c.x_factors() + token, scale.data + scale.index(0, row_of(c.p, work, token), 0),
                    true);
  }
}

/// Factors of four neighbouring ranks of A from j on; 1 beyond the rank.
__device__ inline float4 a_factors(const KernelParams& p, const WorkTile& work, const TileSlice& s,
                                   int j) {
  float of[4];
  FactorWalk factor(quantized(p).of[s.index].a_scale, work.slot, j);
#pragma unroll
  for (int i = 0; i < 4; ++i, factor.advance()) of[i] = j + i < s.rank ? factor.here() : 1;
  return {of[0], of[1], of[2], of[3]};
}

/// Four sums of a token times their factors.
__device__ inline float4 scaled_h(const float4& v, float of_x, const float4& of_a) {
  return {__fmul_rn(__fmul_rn(v.x, of_x), of_a.x), __fmul_rn(__fmul_rn(v.y, of_x), of_a.y),
          __fmul_rn(__fmul_rn(v.z, of_x), of_a.z), __fmul_rn(__fmul_rn(v.w, of_x), of_a.w)};
}
/// The same without a factor of x.
__device__ inline float4 scaled_h(const float4& v, const float4& of_a) {
  return {__fmul_rn(v.x, of_a.x), __fmul_rn(v.y, of_a.y), __fmul_rn(v.z, of_a.z),
          __fmul_rn(v.w, of_a.w)};
}

/// What copy_a_factors() has copied, of four neighbouring ranks: `block` counts within the work
/// tile, j within the block, of_slice within the slice.
template <typename C>
__device__ inline float4 copied_a_factors(const Context<C>& c, const WorkTile& work,
                                          const TileSlice& s, int block, int j, int of_slice) {
  if (block >= C::kFactorBlocks) return a_factors(c.p, work, s, of_slice);
  return *reinterpret_cast<const float4*>(c.a_factors() + block * C::kBlockRanks + j);
}

/// Factors of eight neighbouring columns of B. Those beyond the slice do not matter.
struct EightFactors {
  float of[8];
};
__device__ inline EightFactors b_factors(const KernelParams& p, const WorkTile& work,
                                         const TileSlice& s, int column) {
  const WeightScale& scale = quantized(p).of[s.index].b_scale;
  if (has_one_factor(scale)) {
    const float one = __ldg(only_factor(scale, work.slot));
    return {{one, one, one, one, one, one, one, one}};
  }
  EightFactors out;
  FactorWalk factor(scale, work.slot, column);
#pragma unroll
  for (int i = 0; i < 8; ++i, factor.advance()) {
    out.of[i] = column + i < s.num_out ? factor.here() : 0;
  }
  return out;
}

}  // namespace loratory::gpu
