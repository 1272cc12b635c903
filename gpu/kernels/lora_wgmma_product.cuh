#pragma once

#include "gpu/kernels/lora_exchange.cuh"
#include "gpu/kernels/wgmma.cuh"

namespace loratory::gpu {

/// Of up to 64 tokens and a block of ranks in shared memory: a warpgroup takes half of the ranks
/// and all tokens. Tokens are the rows of a product.
template <typename C>
class WgmmaProduct {
 public:
  using Sums = WgmmaSums<C::kBlockRank / 2>;

  __device__ explicit WgmmaProduct(const Context<C>& context) : c(context) {}

  __device__ bool has_work(const Unit& unit) const { return num_tiles(unit) > 0; }

  /// Of kColumns columns, from `column` on; added to what acc holds, or from 0. On its way until
  /// wait(), and nothing may touch acc: else the compiler lets each instruction wait for the one
  /// before.
  template <int kColumns>
  __device__ void start(const std::byte* x, const std::byte* w, int column, bool adds,
                        Sums& acc) const {
    const uint64_t a = matrix_descriptor(x) + column / 8;
    const uint64_t b = matrix_descriptor(w + first_tile() * 16 * C::kRowBytes) + column / 8;
    begin_wgmma();
#pragma unroll
    for (int i = 0; i < kColumns / 8; i += 2) {
      wgmma<typename C::Weight>(acc, a + i, b + i, i > 0 || adds);
    }
    close_wgmma();
  }
  /// acc can be read, and what was multiplied overwritten.
  __device__ static void wait(Sums& acc) { wait_for_wgmma(acc); }

  __device__ void hand_over(const Unit& unit, const Exchange<C>& exchange, int group,
                            const Sums& sums) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile >= num_tiles(unit)) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = c.warp % 4 * 16 + 8 * half + c.row;
        if (token >= unit.num_tokens) continue;
        const float* const s = sums + 8 * tile + 2 * half;
        exchange.hand_over(unit, unit.first_block, group, token,
                           16 * (first_tile() + tile) + 4 * c.quad, {s[0], s[1], s[4], s[5]}, 0);
      }
    }
  }

 private:
  static constexpr int kTiles = C::kRankTiles / 2;  // of 16 ranks, of a warpgroup

  const Context<C> c;

  __device__ int first_tile() const { return c.warp / 4 * kTiles; }
  __device__ int num_tiles(const Unit& unit) const {
    return unit.num_rank_tiles - unit.first_block * C::kRankTiles - first_tile();
  }
};

}  // namespace loratory::gpu
