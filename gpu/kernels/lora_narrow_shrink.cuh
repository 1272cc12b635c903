#pragma once

#include "gpu/kernels/lora_exchange.cuh"

namespace loratory::gpu {

/// h of a unit of few tokens: every warp streams a chunk of A through a ring of its own and waits
/// for nobody; the CTA then adds up the chunks.
template <typename C>
class NarrowShrink {
 public:
  __device__ explicit NarrowShrink(const Context<C>& context) : c(context), p(context.p) {}

  /// Starts on A, which may be read before the kernel before this one has ended.
  __device__ void begin(const Unit& unit) {
    chunk_ = chunk_size(p.num_in);
    num_steps_ = (chunk_ + 63) / 64;
    load_block_ = unit.first_block;
    load_group_ = load_step_ = load_slot_ = slot_ = 0;
#pragma unroll 1
    for (int i = 0; i < C::kNumStages; ++i) load_stage<true, false>(unit);
  }

  /// Starts on x, stage by stage behind A.
  __device__ void begin_x(const Unit& unit) {
    load_block_ = unit.first_block;
    load_group_ = load_step_ = load_slot_ = 0;
#pragma unroll 1
    for (int i = 0; i < C::kNumStages; ++i) {
      load_stage<false, true>(unit);
      close_copy_group();
    }
  }

  __device__ void run(const Unit& unit, Exchange<C>& exchange) {
#pragma unroll 1
    for (int block = unit.first_block; block < unit.end_block; ++block) {
#pragma unroll 1
      for (int i = 0; i < C::kGroupsEach; i += kAtOnce) {
        Acc acc[kAtOnce] = {};
#pragma unroll
        for (int g = 0; g < kAtOnce; ++g) sum_chunk(unit, acc[g]);
        __syncthreads();  // the sums before have been read
#pragma unroll
        for (int g = 0; g < kAtOnce; ++g) store_partial(g, acc[g]);
        if (C::kSends && i == 0 && block > unit.first_block) {
          exchange.finish_block(unit, block - 1);
          exchange.release();
        }
        __syncthreads();
        if (i == 0) exchange.begin_block(unit, block);
        add_chunks(unit, exchange, block, i);
      }
      if constexpr (!C::kSends) {
        __syncthreads();  // a thread reads the sums of two
        exchange.finish_block(unit, block);
      }
    }
    if constexpr (C::kSends) exchange.finish_block(unit, unit.end_block - 1);
    exchange.end_unit(unit);
  }

 private:
  using Acc = float[C::kRankTiles][4];
  static constexpr int kAtOnce = C::kGroupsAtOnce;

  const Context<C> c;
  const LinearParams& p;

  // Where the next stage to load is.
  int chunk_ = 0, num_steps_ = 0;
  int load_block_ = 0, load_group_ = 0, load_step_ = 0, load_slot_ = 0;
  int slot_ = 0;  // of the next stage to multiply

  __device__ int first_group() const { return c.cta * C::kGroupsEach; }

  // --- loads --------------------------------------------------------------------------------

  /// The next stage into its slot of the ring; nothing after the last.
  template <bool kA, bool kX>
  __device__ void load_stage(const Unit& unit) {
    if (load_block_ == unit.end_block) return;
    std::byte* const to = c.warp_ring() + load_slot_ * C::kStageBytes;
    const int group = first_group() + load_group_;
    if constexpr (kA) load_a(unit, group, load_step_, to);
    if constexpr (kX) load_x(unit, group, load_step_, to + C::kBlockRank * C::kRowBytes);
    load_slot_ = load_slot_ + 1 == C::kNumStages ? 0 : load_slot_ + 1;
    if (++load_step_ < num_steps_) return;
    load_step_ = 0;
    if (++load_group_ < C::kGroupsEach) return;
    load_group_ = 0;
    ++load_block_;
  }

  // A lane copies 16 bytes of every fourth row.
  static constexpr int kPieces = 8;
  static constexpr int kRowsAtOnce = 4;

  /// First column of this lane's piece, and how many of its eight exist.
  __device__ int column_of(int group, int step) const {
    return (group * kGroupWarps + c.warp) * chunk_ + 64 * step + 8 * (c.lane % kPieces);
  }
  __device__ int valid_from(int group, int column) const {
    const int end = min((group * kGroupWarps + c.warp + 1) * chunk_, p.num_in);
    return max(0, min(8, end - column));
  }

  __device__ void load_a(const Unit& unit, int group, int step, std::byte* to) const {
    const int column = column_of(group, step);
    const int valid = valid_from(group, column);
#pragma unroll
    for (int i = 0; i < C::kRankTiles; ++i) {
      const int tile = load_block_ * C::kRankTiles + i;
      if (tile >= unit.num_rank_tiles) break;
      const UnitSlice& s = c.slice_of(unit, tile, &UnitSlice::first_rank_tile);
      const int rank = 16 * (tile - s.first_rank_tile) + c.lane / kPieces;
      const uint32_t row_bytes = s.a_row_bytes;
      const std::byte* from = s.a + uint64_t(uint32_t(rank)) * row_bytes + 2 * int64_t(column);
      const int left = valid > 0 ? s.rank - rank : 0;
#pragma unroll
      for (int row = 0; row < 16; row += kRowsAtOnce) {
        copy_eight_or_none<C::kAligned>(
            to + place_of(16 * i + row + c.lane / kPieces, c.lane % kPieces), from,
            row < left ? valid : 0);
        from += kRowsAtOnce * uint64_t(row_bytes);
      }
    }
  }

  __device__ void load_x(const Unit& unit, int group, int step, std::byte* to) const {
    const int column = column_of(group, step);
    const int valid = valid_from(group, column);
#pragma unroll
    for (int row = 0; row < C::kTokens; row += kRowsAtOnce) {
      const int token = row + c.lane / kPieces;
      const std::byte* const from = c.tokens()[token].x + 2 * int64_t(column);
      copy_eight_or_none<C::kAligned>(to + place_of(token, c.lane % kPieces), from,
                                      token < unit.num_tokens ? valid : 0);
    }
  }

  // --- products -----------------------------------------------------------------------------

  /// One warp: its chunk of one group, in steps of 16 columns of x.
  __device__ void sum_chunk(const Unit& unit, Acc& acc) {
#pragma unroll 1
    for (int step = 0; step < num_steps_; ++step) {
      wait_for_copies<C::kNumStages - 1>();
      __syncwarp();
      const std::byte* const a = c.warp_ring() + slot_ * C::kStageBytes;
#pragma unroll
      for (int i = 0; i < 2; ++i) multiply(a, 4 * i, acc);
      slot_ = slot_ + 1 == C::kNumStages ? 0 : slot_ + 1;
      __syncwarp();
      load_stage<true, true>(unit);
      close_copy_group();
    }
  }

  /// 32 columns of x, from `piece` on. Weights are the rows of a fragment, tokens the columns.
  __device__ void multiply(const std::byte* a, int piece, Acc& acc) const {
    const std::byte* const x = a + C::kBlockRank * C::kRowBytes;
    const uint4 v = load_matrices(x + place_of(c.lane % 8, piece + c.lane / 8));
#pragma unroll
    for (int i = 0; i < C::kRankTiles; ++i) {
      const int row = 16 * i + c.lane % 16;
      mma<typename C::Weight>(acc[i], load_matrices(a + place_of(row, piece + c.lane / 16)), v.x,
                              v.y);
      mma<typename C::Weight>(acc[i], load_matrices(a + place_of(row, piece + 2 + c.lane / 16)),
                              v.z, v.w);
    }
  }

  // --- sums ---------------------------------------------------------------------------------

  __device__ void store_partial(int g, const Acc& acc) const {
    float* const token = c.partial() + (g * kGroupWarps + c.warp) * C::kTileFloats +
                         2 * c.quad * C::kRowFloats + c.row;
#pragma unroll
    for (int i = 0; i < C::kRankTiles; ++i) {
      token[16 * i] = acc[i][0];
      token[16 * i + C::kRowFloats] = acc[i][1];
      token[16 * i + 8] = acc[i][2];
      token[16 * i + 8 + C::kRowFloats] = acc[i][3];
    }
  }

  /// Adds the chunks of each group, four sums a thread, and hands them over: a thread for each CTA
  /// they go to.
  __device__ void add_chunks(const Unit& unit, Exchange<C>& exchange, int block, int first) const {
    constexpr uint32_t kQuads = C::kBlockRank / 4;
    constexpr uint32_t kCopies = Exchange<C>::kCopies;
    const uint32_t count = uint32_t(unit.num_tokens) * kAtOnce * kQuads * kCopies;
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < count; e += C::kNumThreads) {
      const uint32_t j = e / kCopies % kQuads * 4;
      const uint32_t g = e / kCopies / kQuads % kAtOnce;
      const uint32_t token = e / kCopies / kQuads / kAtOnce;
      const float* const from =
          c.partial() + g * kGroupWarps * C::kTileFloats + token * C::kRowFloats + j;
      float4 sum = *reinterpret_cast<const float4*>(from);
#pragma unroll
      for (int w = 1; w < kGroupWarps; ++w) {
        sum = added(sum, *reinterpret_cast<const float4*>(from + w * C::kTileFloats));
      }
      exchange.hand_over(unit, block, first_group() + first + int(g), int(token), int(j), sum,
                         int(e % kCopies));
    }
  }
};

}  // namespace loratory::gpu
