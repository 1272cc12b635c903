#pragma once

#include "gpu/kernels/cluster_reduction.cuh"
#include "gpu/kernels/wgmma.cuh"

namespace loratory::gpu {

/// Multiplies up to 64 tokens with a rank block in shared memory by wgmma. A warpgroup takes half
/// of the ranks and all tokens. Tokens are the rows of the product.
template <typename C>
class WgmmaProduct {
 public:
  using Sums = WgmmaSums<C::kBlockRanks / 2>;

  __device__ explicit WgmmaProduct(const Context<C>& context) : c(context) {}

  __device__ bool has_work(const WorkTile& work) const { return num_tiles(work) > 0; }

  /// Multiplies kColumns columns from `column` on. The result is added to acc, or acc starts from
  /// 0. The products are in flight until wait(). Nothing may touch acc before: the compiler would
  /// make each instruction wait for the one before.
  template <int kColumns>
  __device__ void start(const std::byte* x, const std::byte* w, int column, bool adds,
                        Sums& acc) const {
    const uint64_t a = matrix_descriptor(x) + column / 8;
    const uint64_t b =
        matrix_descriptor(w + first_rank_tile() * 16 * C::kWgmmaRowBytes) + column / 8;
    fence_wgmma();
#pragma unroll
    for (int i = 0; i < kColumns / 8; i += 2) {
      wgmma<typename C::Weight>(acc, a + i, b + i, i > 0 || adds);
    }
    commit_wgmma();
  }
  /// Afterwards acc can be read, and the operands overwritten.
  __device__ static void wait(Sums& acc) { wait_for_wgmma(acc); }

  __device__ void deliver(const WorkTile& work, const ClusterReduction<C>& reduction, int split,
                          const Sums& sums) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile >= num_tiles(work)) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = c.warp % 4 * 16 + 8 * half + c.row;
        if (token >= work.num_tokens) continue;
        const float* const s = sums + 8 * tile + 2 * half;
        reduction.deliver(work, work.first_block, split, token,
                          16 * (first_rank_tile() + tile) + 4 * c.quad, {s[0], s[1], s[4], s[5]},
                          0);
      }
    }
  }

 private:
  static constexpr int kTiles = C::kRankTiles / 2;  // rank tiles of a warpgroup

  const Context<C> c;

  __device__ int first_rank_tile() const { return c.warp / 4 * kTiles; }
  __device__ int num_tiles(const WorkTile& work) const {
    return work.num_rank_tiles - work.first_block * C::kRankTiles - first_rank_tile();
  }
};

}  // namespace loratory::gpu
