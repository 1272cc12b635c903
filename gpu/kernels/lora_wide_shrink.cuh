#pragma once

#include "gpu/kernels/lora_exchange.cuh"
#include "gpu/kernels/lora_wide_ring.cuh"

namespace loratory::gpu {

/// h of a unit of up to 32 tokens. A warp takes 16 ranks and half of the tokens, goes through the
/// chunks in order, and hands over what its registers hold.
template <typename C>
class WideShrink {
 public:
  __device__ explicit WideShrink(const Context<C>& context)
      : c(context), p(context.p), ring_(context) {}

  __device__ void begin(const Unit& unit) { ring_.begin(unit); }
  __device__ void begin_x(const Unit&) { ring_.begin_x(); }

  __device__ void run(const Unit& unit, Exchange<C>& exchange) {
    const bool has_tile = unit.first_block * C::kRankTiles + rank_tile() < unit.num_rank_tiles;
#pragma unroll 1
    for (int i = 0; i < C::kGroupsEach; ++i) {
      Acc total;
      sum_group(has_tile && first_token() < unit.num_tokens, total);
      if (i == 0) exchange.begin_block(unit, unit.first_block);
      if (has_tile) hand_over(unit, exchange, ring_.first_group() + i, total);
    }
    exchange.finish_block(unit, unit.first_block);
    exchange.end_unit(unit);
  }

 private:
  using Acc = float[2][4];  // of 16 tokens and 16 ranks

  const Context<C> c;
  const LinearParams& p;
  WideRing<C> ring_;

  __device__ int rank_tile() const { return c.warp % 4; }
  __device__ int first_token() const { return c.warp / 4 * 16; }

  /// The chunks of a group, each summed from 0, added in order: to -0, which changes no bit.
  __device__ void sum_group(bool works, Acc& total) {
    Acc acc;
    fill(acc, 0.0F);
    fill(total, -0.0F);
    int left = chunk_size(p.num_in);
#pragma unroll 1
    for (int column = 0; column < ring_.group_columns(); column += 64) {
      const std::byte* const stage = ring_.wait_for_stage();
      __syncthreads();  // all of it is there, and the one before has been read
      if (works) {
        multiply(stage, 0, acc);
        end_step(left, acc, total);
        multiply(stage, 4, acc);
        end_step(left, acc, total);
      }
      ring_.refill();
    }
  }

  /// After 32 columns: a chunk may be complete.
  __device__ void end_step(int& left, Acc& acc, Acc& total) const {
    left -= 32;
    if (left > 0) return;
#pragma unroll
    for (int j = 0; j < 8; ++j) total[j / 4][j % 4] += acc[j / 4][j % 4];
    fill(acc, 0.0F);
    left = chunk_size(p.num_in);
  }

  __device__ static void fill(Acc& acc, float v) {
#pragma unroll
    for (int j = 0; j < 8; ++j) acc[j / 4][j % 4] = v;
  }

  /// 32 columns of x, from `piece` on. Tokens are the rows of a fragment.
  __device__ void multiply(const std::byte* stage, int piece, Acc& acc) const {
    const std::byte* const x = ring_.x_of(stage);
    const int token = first_token() + c.lane % 16;
    const uint4 x0 = load_matrices(x + place_of(token, piece + c.lane / 16));
    const uint4 x1 = load_matrices(x + place_of(token, piece + 2 + c.lane / 16));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 16 * rank_tile() + 8 * j + c.lane % 8;
      const uint4 w = load_matrices(stage + place_of(row, piece + c.lane / 8));
      mma<typename C::Weight>(acc[j], x0, w.x, w.y);
      mma<typename C::Weight>(acc[j], x1, w.z, w.w);
    }
  }

  __device__ void hand_over(const Unit& unit, const Exchange<C>& exchange, int group,
                            const Acc& total) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = first_token() + 8 * half + c.row;
      if (token >= unit.num_tokens) continue;
      exchange.hand_over(
          unit, unit.first_block, group, token, 16 * rank_tile() + 4 * c.quad,
          {total[0][2 * half], total[0][2 * half + 1], total[1][2 * half], total[1][2 * half + 1]},
          0);
    }
  }
};

}  // namespace loratory::gpu
