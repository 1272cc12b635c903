#pragma once

#include "gpu/kernels/lora_exchange.cuh"

namespace loratory::gpu {

/// Of up to 32 tokens and 64 ranks in shared memory: a warp takes 16 ranks and half of the tokens.
/// Tokens are the rows of a fragment.
template <typename C>
class MmaProduct {
 public:
  using Sums = float[8];  // a fragment of 16 tokens and 8 ranks, and one of the other 8

  __device__ explicit MmaProduct(const Context<C>& context) : c(context) {}

  __device__ bool has_work(const Unit& unit) const {
    return unit.first_block * C::kRankTiles + rank_tile() < unit.num_rank_tiles &&
           first_token() < unit.num_tokens;
  }

  /// Of kColumns columns, from `column` on; added to what acc holds, or from 0.
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
  __device__ static void wait(Sums&) {}  // nothing is on its way

  __device__ void hand_over(const Unit& unit, const Exchange<C>& exchange, int group,
                            const Sums& sums) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = first_token() + 8 * half + c.row;
      if (token >= unit.num_tokens) continue;
      const float* const s = sums + 2 * half;
      exchange.hand_over(unit, unit.first_block, group, token, 16 * rank_tile() + 4 * c.quad,
                         {s[0], s[1], s[4], s[5]}, 0);
    }
  }

 private:
  const Context<C> c;

  __device__ int rank_tile() const { return c.warp % 4; }
  __device__ int first_token() const { return c.warp / 4 * 16; }

  /// 32 columns, from `piece` on.
  __device__ void multiply(Sums& acc, const std::byte* x, const std::byte* w, int piece) const {
    const int token = first_token() + c.lane % 16;
    const uint4 x0 = load_matrices(x + place_of(token, piece + c.lane / 16));
    const uint4 x1 = load_matrices(x + place_of(token, piece + 2 + c.lane / 16));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 16 * rank_tile() + 8 * j + c.lane % 8;
      const uint4 v = load_matrices(w + place_of(row, piece + c.lane / 8));
      auto& fragment = reinterpret_cast<float(&)[4]>(acc[4 * j]);
      mma<typename C::Weight>(fragment, x0, v.x, v.y);
      mma<typename C::Weight>(fragment, x1, v.z, v.w);
    }
  }
};

}  // namespace loratory::gpu
