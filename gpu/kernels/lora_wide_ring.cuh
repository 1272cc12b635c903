#pragma once

#include "gpu/kernels/lora_context.cuh"
#include "gpu/kernels/wgmma.cuh"

namespace loratory::gpu {

/// The stages of a shrink of many tokens: the CTA streams its groups' columns of a block of ranks
/// of A and of all tokens of the unit through one ring, 64 columns a stage. One stage is being read
/// while the others are under way. A thread copies 16 bytes of every 32nd row.
template <typename C>
class WideRing {
  static_assert(C::kAligned);

 public:
  __device__ explicit WideRing(const Context<C>& context) : c(context), p(context.p) {}

  /// Starts on A, which may be read before the kernel before this one has ended.
  __device__ void begin(const Unit& unit) {
    find_rows(unit);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load_a(i * C::kStageBytes, 64 * i);
  }
  /// Starts on x, stage by stage behind A.
  __device__ void begin_x() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      load_x(i * C::kStageBytes, 64 * i);
      close_copy_group();
    }
    slot_ = 0;
    free_slot_ = kAhead * C::kStageBytes;
    column_ = 64 * kAhead;
  }

  /// Of a group. A multiple of four: more than are under way at once.
  __device__ int num_stages() const { return group_columns() / 64; }

  /// The next stage to multiply, once this thread's part of it is there.
  __device__ const std::byte* wait_for_stage() const {
    wait_for_copies<kAhead - 1>();
    if constexpr (C::kWgmma) show_copies_to_wgmma();
    return c.ring() + slot_;
  }
  /// Into the slot of the stage before that one, which everybody has read.
  __device__ void refill() {
    if (column_ < C::kGroupsEach * group_columns()) {
      load_a(free_slot_, column_);
      load_x(free_slot_, column_);
    }
    close_copy_group();
    column_ += 64;
    free_slot_ = slot_;
    slot_ = slot_ == kAhead * C::kStageBytes ? 0 : slot_ + C::kStageBytes;
  }

  __device__ static const std::byte* x_of(const std::byte* stage) {
    return stage + C::kBlockRank * C::kRowBytes;
  }

 private:
  const Context<C> c;
  const LinearParams& p;

  static constexpr int kAhead = C::kNumStages - 1;  // stages under way
  static_assert(kAhead <= 4, "every unit has so many stages");
  static constexpr int kRowsAtOnce = C::kNumThreads / 8;
  static constexpr int kRanks = C::kBlockRank / kRowsAtOnce;  // of a thread
  static constexpr int kTokens = C::kTokens / kRowsAtOnce;
  const std::byte* a_from_[kRanks];  // this thread's piece of the first stage
  const std::byte* x_from_[kTokens];
  uint32_t existing_;     // bit i: the i-th rank, or token behind the ranks
  int column_;            // of the next stage to load, of the CTA's
  int free_slot_, slot_;  // of the next stage to load, and to multiply: bytes

  __device__ static int row() { return int(threadIdx.x) / 8; }
  __device__ static int piece() { return int(threadIdx.x) % 8; }
  __device__ int group_columns() const { return kGroupWarps * chunk_size(p.num_in); }
  __device__ int first_column() const {
    return c.cta * C::kGroupsEach * group_columns() + 8 * piece();
  }

  __device__ void find_rows(const Unit& unit) {
    existing_ = 0;
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
      const int in_block = i * kRowsAtOnce + row();
      const int tile = unit.first_block * C::kRankTiles + in_block / 16;
      const UnitSlice& s =
          c.slice_of(unit, min(tile, unit.num_rank_tiles - 1), &UnitSlice::first_rank_tile);
      const int rank = 16 * (tile - s.first_rank_tile) + in_block % 16;
      a_from_[i] = s.a + uint64_t(uint32_t(rank)) * s.a_row_bytes + 2 * int64_t(first_column());
      existing_ |= uint32_t(rank < s.rank) << i;
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int token = i * kRowsAtOnce + row();
      x_from_[i] = c.tokens(unit.table)[token].x + 2 * int64_t(first_column());
      existing_ |= uint32_t(token < unit.num_tokens) << (kRanks + i);
    }
  }

  __device__ void load_a(int slot, int column) const {
    load_rows<0>(c.ring() + slot + place_of(row_of_rank(row()), piece()), a_from_, column);
  }
  __device__ void load_x(int slot, int column) const {
    load_rows<kRanks>(c.ring() + slot + place_of(C::kBlockRank + row(), piece()), x_from_, column);
  }
  /// Aligned rows have all eight numbers of a piece or none.
  template <int kFirst, int kRows>
  __device__ void load_rows(std::byte* to, const std::byte* const (&from)[kRows],
                            int column) const {
    const uint32_t existing = column + first_column() < p.num_in ? existing_ : 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      copy_async(to + i * kRowsAtOnce * C::kRowBytes, from[i] + 2 * int64_t(column),
                 existing & 1U << (kFirst + i));
    }
  }
};

}  // namespace loratory::gpu
