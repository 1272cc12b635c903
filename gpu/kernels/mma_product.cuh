#pragma once

#include "gpu/kernels/cluster_reduction.cuh"

namespace loratory::gpu {

/// Multiplies up to 32 tokens with 64 ranks in shared memory by mma.sync. A warp takes 16 ranks and
/// half of the tokens. Tokens are the rows of a fragment.
template <typename C>
class MmaProduct {
 public:
  using Sums = float[8];  // two fragments of 16 tokens and 8 ranks

  __device__ explicit MmaProduct(const Context<C>& context) : c(context) {}

  __device__ bool has_work(const WorkTile& work) const {
    return work.first_block * C::kRankTiles + rank_tile() < work.num_rank_tiles &&
           first_token() < work.num_tokens;
  }

  /// Multiplies kColumns columns from `column` on. The result is added to acc, or acc starts from
  /// 0.
  template <int kColumns>
  __device__ void start(const std::byte* x, const std::byte* w, int column, bool adds,
                        Sums& acc) const {
    if (!adds) {
#pragma unroll
      for (int j = 0; j < 8; ++j) acc[j] = 0;
    }
#pragma unroll
    for (int i = 0; i < kColumns; i += 32) multiply(acc, x, w, (column + i) / 8);
  }
  __device__ static void wait(Sums&) {}  // mma.sync is synchronous

  __device__ void deliver(const WorkTile& work, const ClusterReduction<C>& reduction, int split,
                          const Sums& sums) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = first_token() + 8 * half + c.row;
      if (token >= work.num_tokens) continue;
      const float* const s = sums + 2 * half;
      reduction.deliver(work, work.first_block, split, token, 16 * rank_tile() + 4 * c.quad,
                        {s[0], s[1], s[4], s[5]}, 0);
    }
  }

 private:
  const Context<C> c;

  __device__ int rank_tile() const { return c.warp % 4; }
  __device__ int first_token() const { return c.warp / 4 * 16; }

  /// 32 columns from vector `vec` on.
  __device__ void multiply(Sums& acc, const std::byte* x, const std::byte* w, int vec) const {
    const int token = first_token() + c.lane % 16;
    const uint4 x0 = load_matrices(x + swizzle_128b(token, vec + c.lane / 16));
    const uint4 x1 = load_matrices(x + swizzle_128b(token, vec + 2 + c.lane / 16));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 16 * rank_tile() + 8 * j + c.lane % 8;
      const uint4 v = load_matrices(w + swizzle_128b(row, vec + c.lane / 8));
      auto& fragment = reinterpret_cast<float(&)[4]>(acc[4 * j]);
      mma<typename C::Weight>(fragment, x0, v.x, v.y);
      mma<typename C::Weight>(fragment, x1, v.z, v.w);
    }
  }
};

}  // namespace loratory::gpu
