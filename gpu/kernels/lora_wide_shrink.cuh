#pragma once

#include "gpu/kernels/lora_exchange.cuh"

namespace loratory::gpu {

/// h of a unit of many tokens: the CTA streams 64 ranks of A and all tokens through one ring. A
/// warp takes 16 ranks and half of the tokens, goes through the chunks in order, and hands over what
/// its registers hold.
template <typename C>
class WideShrink {
 public:
  __device__ explicit WideShrink(const Context<C>& context) : c(context), p(context.p) {}

  /// `meanwhile` runs once the ring is free, while sums are under way.
  template <typename Meanwhile>
  __device__ void run(const Unit& unit, Exchange<C>& exchange, PreviousKernel& previous,
                      Meanwhile&& meanwhile) {
    const int num_blocks = (unit.num_rank_tiles + C::kRankTiles - 1) / C::kRankTiles;
    begin_stages(unit, num_blocks, previous);
#pragma unroll 1
    for (int block = 0; block < num_blocks; ++block) {
      const bool has_tile = block * C::kRankTiles + rank_tile() < unit.num_rank_tiles;
#pragma unroll 1
      for (int i = 0; i < C::kGroupsEach; ++i) {
        Acc total;
        sum_group(unit, has_tile, total);
        if (i == 0 && block > 0) exchange.finish_block(unit, block - 1);
        __syncthreads();  // the ring is free, and the block before has been read
        if (block + 1 == num_blocks && i + 1 == C::kGroupsEach) meanwhile();
        if (i == 0) exchange.begin_block(unit, block);
        if (has_tile) hand_over(unit, exchange, block, first_group() + i, total);
      }
    }
    exchange.finish_block(unit, num_blocks - 1);
    exchange.end_unit(unit, num_blocks);
  }

 private:
  static constexpr int kTokenRows = C::kTokenTiles / 4;  // fragments of 16 tokens, of one warp
  using Acc = float[kTokenRows][2][4];

  const Context<C> c;
  const LinearParams& p;

  // Where the next stage to load is.
  int num_blocks_ = 0, group_columns_ = 0;
  int load_block_ = 0, load_group_ = 0, load_column_ = 0, load_slot_ = 0;
  int slot_ = 0;  // of the next stage to multiply

  __device__ static int first_group() { return cluster_rank() * C::kGroupsEach; }
  __device__ int rank_tile() const { return c.warp % 4; }
  __device__ int first_token() const { return c.warp / 4 * (C::kTokens / 2); }

  // --- loads --------------------------------------------------------------------------------

  /// Weights first: they may be read before the kernel before this one has ended, x may not.
  __device__ void begin_stages(const Unit& unit, int num_blocks, PreviousKernel& previous) {
    num_blocks_ = num_blocks;
    group_columns_ = kGroupWarps * chunk_size(p.num_in);
    load_block_ = load_group_ = load_column_ = load_slot_ = slot_ = 0;
#pragma unroll 1
    for (int i = 0; i + 1 < C::kNumStages; ++i) load_stage<true, false>(unit);
    previous.wait();
    load_block_ = load_group_ = load_column_ = load_slot_ = 0;
#pragma unroll 1
    for (int i = 0; i + 1 < C::kNumStages; ++i) {
      load_stage<false, true>(unit);
      close_copy_group();
    }
  }

  /// The next stage into its slot of the ring; nothing after the last.
  template <bool kA, bool kX>
  __device__ void load_stage(const Unit& unit) {
    if (load_block_ == num_blocks_) return;
    std::byte* const to = c.ring() + load_slot_ * C::kStageBytes;
    const int piece = int(threadIdx.x) % 8;
    const int column = (first_group() + load_group_) * group_columns_ + load_column_ + 8 * piece;
    const int valid = max(0, min(8, p.num_in - column));
    if constexpr (kA) load_a(unit, column, valid, to);
    if constexpr (kX) load_x(unit, column, valid, to + C::kBlockRank * C::kRowBytes);
    load_slot_ = load_slot_ + 1 == C::kNumStages ? 0 : load_slot_ + 1;
    load_column_ += 64;
    if (load_column_ < group_columns_) return;
    load_column_ = 0;
    if (++load_group_ < C::kGroupsEach) return;
    load_group_ = 0;
    ++load_block_;
  }

  // A thread copies 16 bytes of every 32nd row.
  static constexpr int kRowsAtOnce = C::kNumThreads / 8;

  __device__ void load_a(const Unit& unit, int column, int valid, std::byte* to) const {
#pragma unroll
    for (int row = 0; row < C::kBlockRank; row += kRowsAtOnce) {
      const int in_block = row + int(threadIdx.x) / 8;
      const int tile = load_block_ * C::kRankTiles + in_block / 16;
      const UnitSlice& s =
          c.slice_of(unit, min(tile, unit.num_rank_tiles - 1), &UnitSlice::first_rank_tile);
      const int rank = 16 * (tile - s.first_rank_tile) + in_block % 16;
      const std::byte* const from =
          s.a + uint64_t(uint32_t(rank)) * s.a_row_bytes + 2 * int64_t(column);
      copy_eight_or_none<C::kAligned>(to + place_of(in_block, int(threadIdx.x) % 8), from,
                                      rank < s.rank ? valid : 0);
    }
  }

  __device__ void load_x(const Unit& unit, int column, int valid, std::byte* to) const {
#pragma unroll
    for (int row = 0; row < C::kTokens; row += kRowsAtOnce) {
      const int token = row + int(threadIdx.x) / 8;
      const std::byte* const from = c.tokens()[token].x + 2 * int64_t(column);
      copy_eight_or_none<C::kAligned>(to + place_of(token, int(threadIdx.x) % 8), from,
                                      token < unit.num_tokens ? valid : 0);
    }
  }

  // --- products -----------------------------------------------------------------------------

  /// The chunks of a group, each summed from 0, added in order.
  __device__ void sum_group(const Unit& unit, bool has_tile, Acc& total) {
    const int chunk = chunk_size(p.num_in);
    Acc acc = {};
    int left = chunk;  // of the chunk
    bool first = true;
#pragma unroll 1
    for (int column = 0; column < group_columns_; column += 64) {
      wait_for_copies<C::kNumStages - 2>();
      __syncthreads();  // this stage is there, and the one before has been read
      load_stage<true, true>(unit);
      close_copy_group();
      const std::byte* const a = c.ring() + slot_ * C::kStageBytes;
      slot_ = slot_ + 1 == C::kNumStages ? 0 : slot_ + 1;
      if (!has_tile) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        multiply(unit, a, 4 * i + c.quad, acc);
        left -= 32;
        if (left > 0) continue;
        add_chunk(first, acc, total);
        first = false;
        left = chunk;
      }
    }
  }

  __device__ static void add_chunk(bool first, Acc& acc, Acc& total) {
#pragma unroll
    for (int m = 0; m < kTokenRows; ++m) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[m][j][i] = first ? acc[m][j][i] : total[m][j][i] + acc[m][j][i];
          acc[m][j][i] = 0;
        }
      }
    }
  }

  /// Tokens are the rows of a fragment. Column g of n8 tile j stands for rank 4 (g / 2) + 2 j +
  /// g % 2, so that a thread holds four neighbouring ranks of a token.
  __device__ void multiply(const Unit& unit, const std::byte* a, int piece, Acc& acc) const {
    const std::byte* const x = a + C::kBlockRank * C::kRowBytes;
    uint4 w[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      w[j] = read_piece(a, 16 * rank_tile() + c.row / 2 * 4 + 2 * j + c.row % 2, piece);
    }
#pragma unroll
    for (int m = 0; m < kTokenRows; ++m) {
      const int token = first_token() + 16 * m;
      if (token >= unit.num_tokens) continue;
      const uint4 x0 = read_piece(x, token + c.row, piece);
      const uint4 x1 = read_piece(x, token + 8 + c.row, piece);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        mma<typename C::Weight>(acc[m][j], x0.x, x1.x, x0.y, x1.y, w[j].x, w[j].y);
        mma<typename C::Weight>(acc[m][j], x0.z, x1.z, x0.w, x1.w, w[j].z, w[j].w);
      }
    }
  }

  __device__ void hand_over(const Unit& unit, const Exchange<C>& exchange, int block, int group,
                            const Acc& total) const {
#pragma unroll
    for (int m = 0; m < kTokenRows; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = first_token() + 16 * m + 8 * half + c.row;
        if (token >= unit.num_tokens) continue;
        const auto& low = total[m][0];
        const auto& high = total[m][1];
        exchange.hand_over(block, group, token, 16 * rank_tile() + 4 * c.quad,
                           {low[2 * half], low[2 * half + 1], high[2 * half], high[2 * half + 1]},
                           0);
      }
    }
  }
};

}  // namespace loratory::gpu
