#pragma once

#include "gpu/kernels/lora_exchange.cuh"

namespace loratory::gpu {

/// Copies that have arrived may be read by wgmma.
__device__ inline void fence_async_proxy() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/// Rows of 64 numbers, swizzled as place_of() does, from a multiple of 1024 on.
__device__ inline uint64_t matrix_descriptor(const std::byte* rows) {
  const uint64_t address = shared_address(rows);
  return (address & 0x3FFFF) >> 4 | uint64_t{1} << 16 | uint64_t{64} << 32 | uint64_t{1} << 62;
}
__device__ inline void begin_wgmma() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ inline void close_wgmma() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
__device__ inline void wait_for_wgmma(float (&c)[16]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned 0;"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
                 "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]),
                 "+f"(c[13]), "+f"(c[14]), "+f"(c[15])
               :
               : "memory");
#endif
}
/// c = a b^T + c, or without c. 64 rows of a, 32 of b, 16 numbers each.
template <typename Weight>
__device__ inline void wgmma(float (&c)[16], uint64_t a, uint64_t b, bool adds) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (std::is_same_v<Weight, __nv_bfloat16>) {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, adds, 1, 1, 0, 0;\n}"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
          "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),
          "+f"(c[14]), "+f"(c[15])
        : "l"(a), "l"(b), "r"(int(adds)));
  } else {
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, adds, 1, 1, 0, 0;\n}"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
          "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),
          "+f"(c[14]), "+f"(c[15])
        : "l"(a), "l"(b), "r"(int(adds)));
  }
#endif
}

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
    if constexpr (C::kTokenTiles == 8) {
      run_wgmma(unit, exchange);
      return;
    }
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
  static constexpr int kXRows = C::kTokens / kRowsAtOnce;
  const std::byte* a_from_[kRows];  // null: does not exist
  const std::byte* x_from_[kXRows];
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
#pragma unroll
    for (int i = 0; i < kXRows; ++i) {
      const int token = i * kRowsAtOnce + thread_row();
      x_from_[i] = token < unit.num_tokens ? c.tokens()[token].x : nullptr;
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
      std::byte* const x = slot + place_of(C::kBlockRank + thread_row(), piece);
#pragma unroll
      for (int i = 0; i < kXRows; ++i) {
        copy_eight_or_none<C::kAligned>(x + i * kRowsAtOnce * C::kRowBytes,
                                        x_from_[i] + 2 * int64_t(column),
                                        x_from_[i] != nullptr ? valid : 0);
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

  // --- wgmma
  using Sums = float[16];

  __device__ void run_wgmma(const Unit& unit, Exchange<C>& exchange) {
    const int num_tiles = unit.num_rank_tiles - unit.first_block * C::kRankTiles;
    const int first_tile = c.warp / 4 * 2;
#pragma unroll 1
    for (int i = 0; i < C::kGroupsEach; ++i) {
      Sums total;
      sum_wgmma(unit, first_tile < num_tiles, total);
      if (i == 0) exchange.begin_block(unit, unit.first_block);
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        if (first_tile + t >= num_tiles) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int token = c.warp % 4 * 16 + 8 * half + c.row;
          if (token >= unit.num_tokens) continue;
          const float* const s = total + 8 * t + 2 * half;
          exchange.hand_over(unit, unit.first_block, first_group() + i, token,
                             16 * (first_tile + t) + 4 * c.quad, {s[0], s[1], s[4], s[5]}, 0);
        }
      }
    }
    exchange.finish_block(unit, unit.first_block);
    exchange.end_unit(unit);
  }

  __device__ void sum_wgmma(const Unit& unit, bool works, Sums& total) {
    Sums acc;
#pragma unroll
    for (int j = 0; j < 16; ++j) total[j] = -0.0F, acc[j] = 0;
    const int chunk = chunk_size(p.num_in);
    int left = chunk;
#pragma unroll 1
    for (int column = 0; column < group_columns(); column += 64) {
      wait_for_copies<C::kNumStages - 2>();
      fence_async_proxy();
      __syncthreads();  // this stage is there, and the one before has been read
      const std::byte* const a = c.ring() + slot_ * C::kStageBytes;
      slot_ = slot_ + 1 == C::kNumStages ? 0 : slot_ + 1;
      const uint64_t x = matrix_descriptor(a + C::kBlockRank * C::kRowBytes);
      const uint64_t w = matrix_descriptor(a + c.warp / 4 * 32 * C::kRowBytes);
      if (works) {
        begin_wgmma();
        multiply_half(acc, x, w, left == chunk);
        left -= 32;
        if (left == 0) {  // a chunk of an odd number of halves
          close_wgmma();
          wait_for_wgmma(acc);
          end_chunk(acc, total);
          left = chunk;
          begin_wgmma();
        }
        multiply_half(acc, x + 4, w + 4, left == chunk);
        close_wgmma();
      }
      load_stage<true, true>(unit);
      close_copy_group();
      if (works) {
        wait_for_wgmma(acc);
        left -= 32;
        if (left == 0) {
          end_chunk(acc, total);
          left = chunk;
        }
      }
    }
  }
  /// 32 columns of x.
  __device__ static void multiply_half(Sums& acc, uint64_t x, uint64_t w, bool first) {
    wgmma<typename C::Weight>(acc, x, w, !first);
    wgmma<typename C::Weight>(acc, x + 2, w + 2, true);
  }
  __device__ static void end_chunk(const Sums& acc, Sums& total) {
#pragma unroll
    for (int j = 0; j < 16; ++j) total[j] += acc[j];
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
