#pragma once

#include "gpu/kernels/lora_exchange.cuh"

namespace loratory::gpu {

/// h of a unit of many tokens: the CTA streams 64 ranks of A and all tokens through one ring. A
/// warp takes 16 ranks and half of the tokens, goes through the chunks in order, and hands over
/// what its registers hold.
template <typename C>
class WideShrink {
 public:
  __device__ explicit WideShrink(const Context<C>& context) : c(context), p(context.p) {}

  /// Starts on A, which may be read before the kernel before this one has ended.
  __device__ void begin(const Unit& unit) {
    find_rows(unit);
    begin_loads();
#pragma unroll 1
    for (int i = 0; i + 1 < C::kNumStages; ++i) load_stage<true, false>(unit);
  }

  /// Starts on x, stage by stage behind A.
  __device__ void begin_x(const Unit& unit) {
    begin_loads();
#pragma unroll 1
    for (int i = 0; i + 1 < C::kNumStages; ++i) {
      load_stage<false, true>(unit);
      close_copy_group();
    }
  }

  __device__ void run(const Unit& unit, Exchange<C>& exchange) {
    const bool has_tile = unit.first_block * C::kRankTiles + rank_tile() < unit.num_rank_tiles;
#pragma unroll 1
    for (int i = 0; i < C::kGroupsEach; ++i) {
      Acc total;
      sum_group(unit, has_tile, total);
      if (i == 0) exchange.begin_block(unit, unit.first_block);
      if (has_tile) hand_over(unit, exchange, first_group() + i, total);
    }
    exchange.finish_block(unit, unit.first_block);
    exchange.end_unit(unit);
  }

 private:
  static constexpr int kTokenRows = C::kTokenTiles / 4;  // of a warp, 16 tokens each
  using Acc = float[kTokenRows][2][4];                   // and 16 ranks

  const Context<C> c;
  const LinearParams& p;

  // Where the next stage to load is. A thread copies 16 bytes of every 32nd row; where its rows
  // begin is found once.
  static constexpr int kRowsAtOnce = C::kNumThreads / 8;
  static constexpr int kRows = C::kBlockRank / kRowsAtOnce;
  static_assert(C::kTokens % kRowsAtOnce == 0);
  const std::byte* a_from_[kRows];  // null: does not exist
  int load_group_ = 0, load_column_ = 0, load_slot_ = 0;
  int slot_ = 0;  // of the next stage to multiply

  __device__ int group_columns() const { return kGroupWarps * chunk_size(p.num_in); }
  __device__ int first_group() const { return c.cta * C::kGroupsEach; }
  __device__ int rank_tile() const { return c.warp % 4; }
  __device__ int first_token() const { return c.warp / 4 * 16 * kTokenRows; }
  __device__ static int thread_row() { return int(threadIdx.x) / 8; }

  // --- loads --------------------------------------------------------------------------------

  __device__ void begin_loads() {
    load_group_ = load_column_ = load_slot_ = slot_ = 0;
  }
  __device__ void find_rows(const Unit& unit) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int in_block = i * kRowsAtOnce + thread_row();
      const int tile = unit.first_block * C::kRankTiles + in_block / 16;
      const UnitSlice& s =
          c.slice_of(unit, min(tile, unit.num_rank_tiles - 1), &UnitSlice::first_rank_tile);
      const int rank = 16 * (tile - s.first_rank_tile) + in_block % 16;
      a_from_[i] = rank < s.rank ? s.a + uint64_t(uint32_t(rank)) * s.a_row_bytes : nullptr;
    }
  }

  /// Rank 4 (g / 2) + 2 j + g % 2 of a tile lies in row 8 j + g, where its fragment is read: a
  /// thread then holds four neighbouring ranks of a token.
  __device__ static int place_of_rank(int rank) {
    return rank / 16 * 16 + rank / 2 % 2 * 8 + rank / 4 % 4 * 2 + rank % 2;
  }

  /// The next stage into its slot of the ring; nothing after the last.
  template <bool kA, bool kX>
  __device__ void load_stage(const Unit& unit) {
    if (load_group_ == C::kGroupsEach) return;
    const int piece = int(threadIdx.x) % 8;
    std::byte* const slot = c.ring() + load_slot_ * C::kStageBytes;
    std::byte* const to = slot + place_of(place_of_rank(thread_row()), piece);
    const int column = (first_group() + load_group_) * group_columns() + load_column_ + 8 * piece;
    const int valid = max(0, min(8, p.num_in - column));
    if constexpr (kA) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        copy_eight_or_none<C::kAligned>(to + i * kRowsAtOnce * C::kRowBytes,
                                        a_from_[i] + 2 * int64_t(column),
                                        a_from_[i] != nullptr ? valid : 0);
      }
    }
    if constexpr (kX) {
#pragma unroll
      for (int token = thread_row(); token < C::kTokens; token += kRowsAtOnce) {
        copy_eight_or_none<C::kAligned>(slot + place_of(C::kBlockRank + token, piece),
                                        c.tokens()[token].x + 2 * int64_t(column),
                                        token < unit.num_tokens ? valid : 0);
      }
    }
    load_slot_ = load_slot_ + 1 == C::kNumStages ? 0 : load_slot_ + 1;
    load_column_ += 64;
    if (load_column_ < group_columns()) return;
    load_column_ = 0;
    ++load_group_;
  }

  // --- products -----------------------------------------------------------------------------

  /// The chunks of a group, each summed from 0, added in order: to -0, which changes no bit.
  __device__ void sum_group(const Unit& unit, bool has_tile, Acc& total) {
    const bool works = has_tile && first_token() < unit.num_tokens;
    Acc acc;
    fill(acc, 0.0F);
    fill(total, -0.0F);
    int left = chunk_size(p.num_in);
#pragma unroll 1
    for (int column = 0; column < group_columns(); column += 64) {
      wait_for_copies<C::kNumStages - 2>();
      __syncthreads();  // this stage is there, and the one before has been read
      const std::byte* const a = c.ring() + slot_ * C::kStageBytes;
      slot_ = slot_ + 1 == C::kNumStages ? 0 : slot_ + 1;
      if (works) {
        multiply(a, 0, acc);
        end_step(left, acc, total);
        multiply(a, 4, acc);
        end_step(left, acc, total);
      }
      load_stage<true, true>(unit);
      close_copy_group();
    }
  }

  /// After 32 columns: a chunk may be complete.
  __device__ void end_step(int& left, Acc& acc, Acc& total) const {
    left -= 32;
    if (left > 0) return;
#pragma unroll
    for (int j = 0; j < kTokenRows * 8; ++j) {
      total[j / 8][j / 4 % 2][j % 4] += acc[j / 8][j / 4 % 2][j % 4];
    }
    fill(acc, 0.0F);
    left = chunk_size(p.num_in);
  }

  __device__ static void fill(Acc& acc, float v) {
#pragma unroll
    for (int j = 0; j < kTokenRows * 8; ++j) acc[j / 8][j / 4 % 2][j % 4] = v;
  }

  /// 32 columns of x, from `piece` on. Tokens are the rows of a fragment.
  __device__ void multiply(const std::byte* a, int piece, Acc& acc) const {
    const std::byte* const x = a + C::kBlockRank * C::kRowBytes;
    uint4 w[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 16 * rank_tile() + 8 * j + c.lane % 8;
      w[j] = load_matrices(a + place_of(row, piece + c.lane / 8));
    }
#pragma unroll
    for (int m = 0; m < kTokenRows; ++m) {
      const int token = first_token() + 16 * m + c.lane % 16;
      const uint4 x0 = load_matrices(x + place_of(token, piece + c.lane / 16));
      const uint4 x1 = load_matrices(x + place_of(token, piece + 2 + c.lane / 16));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        mma<typename C::Weight>(acc[m][j], x0, w[j].x, w[j].y);
        mma<typename C::Weight>(acc[m][j], x1, w[j].z, w[j].w);
      }
    }
  }

  __device__ void hand_over(const Unit& unit, const Exchange<C>& exchange, int group,
                            const Acc& total) const {
#pragma unroll
    for (int i = 0; i < 2 * kTokenRows; ++i) {
      const int token = first_token() + 8 * i + c.row;
      if (token >= unit.num_tokens) continue;
      const auto& sum = total[i / 2];
      const int j = i % 2 * 2;
      exchange.hand_over(unit, unit.first_block, group, token, 16 * rank_tile() + 4 * c.quad,
                         {sum[0][j], sum[0][j + 1], sum[1][j], sum[1][j + 1]}, 0);
    }
  }
};

}  // namespace loratory::gpu
