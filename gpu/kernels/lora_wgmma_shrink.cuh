#pragma once

#include "gpu/kernels/lora_exchange.cuh"
#include "gpu/kernels/lora_wide_ring.cuh"
#include "gpu/kernels/wgmma.cuh"

namespace loratory::gpu {

/// h of a unit of up to 64 tokens. A warpgroup takes 32 ranks and all tokens, goes through the
/// chunks in order, and hands over what its registers hold. Tokens are the rows of a product.
template <typename C>
class WgmmaShrink {
 public:
  __device__ explicit WgmmaShrink(const Context<C>& context)
      : c(context), p(context.p), ring_(context) {}

  __device__ void begin(const Unit& unit) { ring_.begin(unit); }
  __device__ void begin_x(const Unit&) { ring_.begin_x(); }

  __device__ void run(const Unit& unit, Exchange<C>& exchange) {
    const int num_tiles = unit.num_rank_tiles - unit.first_block * C::kRankTiles;
#pragma unroll 1
    for (int i = 0; i < C::kGroupsEach; ++i) {
      WgmmaSums total;
      sum_group(first_tile() < num_tiles, total);
      if (i == 0) exchange.begin_block(unit, unit.first_block);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (first_tile() + tile < num_tiles)
          hand_over(unit, exchange, ring_.first_group() + i, tile, total);
      }
    }
    exchange.finish_block(unit, unit.first_block);
    exchange.end_unit(unit);
  }

 private:
  static constexpr int kTiles = 2;  // of 16 ranks, of a warpgroup

  const Context<C> c;
  const LinearParams& p;
  WideRing<C> ring_;

  __device__ int first_tile() const { return c.warp / 4 * kTiles; }

  /// The chunks of a group, each summed from 0, added in order: to -0, which changes no bit.
  __device__ void sum_group(bool works, WgmmaSums& total) {
    WgmmaSums acc;
#pragma unroll
    for (int j = 0; j < 16; ++j) total[j] = -0.0F, acc[j] = 0;
    const int chunk = chunk_size(p.num_in);
    int left = chunk;
#pragma unroll 1
    for (int column = 0; column < ring_.group_columns(); column += 64) {
      const std::byte* const stage = ring_.wait_for_stage();
      show_copies_to_wgmma();
      __syncthreads();  // all of it is there, and the one before has been read
      if (works) multiply(stage, chunk, left, acc, total);
      ring_.refill();
      if (works) {
        wait_for_wgmma(acc);
        end_step(chunk, left, acc, total);
      }
    }
  }

  /// 64 columns, of which the first 32 may complete a chunk; the others are left on their way.
  __device__ void multiply(const std::byte* stage, int chunk, int& left, WgmmaSums& acc,
                           WgmmaSums& total) const {
    const uint64_t x = matrix_descriptor(ring_.x_of(stage));
    const uint64_t w = matrix_descriptor(stage + first_tile() * 16 * C::kRowBytes);
    begin_wgmma();
    multiply_half(x, w, left == chunk, acc);
    if (left == 32) {
      close_wgmma();
      wait_for_wgmma(acc);
    }
    end_step(chunk, left, acc, total);
    if (left == chunk) begin_wgmma();
    multiply_half(x + 4, w + 4, left == chunk, acc);
    close_wgmma();
  }
  __device__ static void multiply_half(uint64_t x, uint64_t w, bool is_first, WgmmaSums& acc) {
    wgmma<typename C::Weight>(acc, x, w, !is_first);
    wgmma<typename C::Weight>(acc, x + 2, w + 2, true);
  }

  /// After 32 columns: a chunk may be complete.
  __device__ static void end_step(int chunk, int& left, const WgmmaSums& acc, WgmmaSums& total) {
    left -= 32;
    if (left > 0) return;
#pragma unroll
    for (int j = 0; j < 16; ++j) total[j] += acc[j];
    left = chunk;
  }

  __device__ void hand_over(const Unit& unit, const Exchange<C>& exchange, int group, int tile,
                            const WgmmaSums& total) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = c.warp % 4 * 16 + 8 * half + c.row;
      if (token >= unit.num_tokens) continue;
      const float* const s = total + 8 * tile + 2 * half;
      exchange.hand_over(unit, unit.first_block, group, token,
                         16 * (first_tile() + tile) + 4 * c.quad, {s[0], s[1], s[4], s[5]}, 0);
    }
  }
};

}  // namespace loratory::gpu
