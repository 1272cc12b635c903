#pragma once

#include "gpu/kernels/lora_context.cuh"

namespace loratory::gpu {

/// The stages of a shrink of many tokens: the CTA streams 64 ranks of A and all tokens of the unit
/// through one ring, 64 columns a stage. One stage is being read while the others are under way. A
/// thread copies 16 bytes of every 32nd row; where its rows begin is found once.
template <typename C>
class WideRing {
 public:
  __device__ explicit WideRing(const Context<C>& context) : c(context), p(context.p) {}

  /// Starts on A, which may be read before the kernel before this one has ended.
  __device__ void begin(const Unit& unit) {
    find_rows(unit);
    begin_loads();
#pragma unroll 1
    for (int i = 0; i + 1 < C::kNumStages; ++i) load_stage<true, false>();
  }
  /// Starts on x, stage by stage behind A.
  __device__ void begin_x() {
    begin_loads();
#pragma unroll 1
    for (int i = 0; i + 1 < C::kNumStages; ++i) {
      load_stage<false, true>();
      close_copy_group();
    }
  }

  /// The next stage to multiply, once this thread's part of it is there.
  __device__ const std::byte* wait_for_stage() {
    wait_for_copies<C::kNumStages - 2>();
    const std::byte* const stage = c.ring() + slot_ * C::kStageBytes;
    slot_ = slot_ + 1 == C::kNumStages ? 0 : slot_ + 1;
    return stage;
  }
  /// Into the slot of the stage before that one, which everybody has read.
  __device__ void refill() {
    load_stage<true, true>();
    close_copy_group();
  }

  __device__ int group_columns() const { return kGroupWarps * chunk_size(p.num_in); }
  __device__ int first_group() const { return c.cta * C::kGroupsEach; }
  __device__ static const std::byte* x_of(const std::byte* stage) {
    return stage + C::kBlockRank * C::kRowBytes;
  }

 private:
  const Context<C> c;
  const LinearParams& p;

  static constexpr int kRowsAtOnce = C::kNumThreads / 8;
  static constexpr int kRanks = C::kBlockRank / kRowsAtOnce;  // of a thread
  static constexpr int kTokens = C::kTokens / kRowsAtOnce;
  const std::byte* a_from_[kRanks];  // null: does not exist
  const std::byte* x_from_[kTokens];
  int load_group_ = 0, load_column_ = 0, load_slot_ = 0;  // of the next stage to load
  int slot_ = 0;                                          // of the next stage to multiply

  __device__ static int thread_row() { return int(threadIdx.x) / 8; }

  __device__ void begin_loads() { load_group_ = load_column_ = load_slot_ = slot_ = 0; }

  __device__ void find_rows(const Unit& unit) {
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
      const int in_block = i * kRowsAtOnce + thread_row();
      const int tile = unit.first_block * C::kRankTiles + in_block / 16;
      const UnitSlice& s =
          c.slice_of(unit, min(tile, unit.num_rank_tiles - 1), &UnitSlice::first_rank_tile);
      const int rank = 16 * (tile - s.first_rank_tile) + in_block % 16;
      a_from_[i] = rank < s.rank ? s.a + uint64_t(uint32_t(rank)) * s.a_row_bytes : nullptr;
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int token = i * kRowsAtOnce + thread_row();
      x_from_[i] = token < unit.num_tokens ? c.tokens()[token].x : nullptr;
    }
  }

  /// Rank 4 (g / 2) + 2 j + g % 2 of a tile lies in row 8 j + g, where its fragment is read: a
  /// thread then holds four neighbouring ranks of a token.
  __device__ static int place_of_rank(int rank) {
    return rank / 16 * 16 + rank / 2 % 2 * 8 + rank / 4 % 4 * 2 + rank % 2;
  }

  /// The next stage into its slot; nothing after the last.
  template <bool kA, bool kX>
  __device__ void load_stage() {
    if (load_group_ == C::kGroupsEach) return;
    const int piece = int(threadIdx.x) % 8;
    std::byte* const slot = c.ring() + load_slot_ * C::kStageBytes;
    const int column = (first_group() + load_group_) * group_columns() + load_column_ + 8 * piece;
    const int valid = max(0, min(8, p.num_in - column));
    if constexpr (kA) {
      load_rows(slot + place_of(place_of_rank(thread_row()), piece), a_from_, column, valid);
    }
    if constexpr (kX) {
      load_rows(slot + place_of(C::kBlockRank + thread_row(), piece), x_from_, column, valid);
    }
    load_slot_ = load_slot_ + 1 == C::kNumStages ? 0 : load_slot_ + 1;
    load_column_ += 64;
    if (load_column_ < group_columns()) return;
    load_column_ = 0;
    ++load_group_;
  }
  template <int kRows>
  __device__ static void load_rows(std::byte* to, const std::byte* const (&from)[kRows], int column,
                                   int valid) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      copy_eight_or_none<C::kAligned>(to + i * kRowsAtOnce * C::kRowBytes,
                                      from[i] + 2 * int64_t(column),
                                      from[i] != nullptr ? valid : 0);
    }
  }
};

}  // namespace loratory::gpu
