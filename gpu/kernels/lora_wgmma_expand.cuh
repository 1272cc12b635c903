#pragma once

#include "gpu/kernels/lora_context.cuh"
#include "gpu/kernels/lora_output.cuh"
#include "gpu/kernels/wgmma.cuh"

namespace loratory::gpu {

/// y of one unit of up to 64 tokens from h in shared memory. A warpgroup makes 64 columns of all
/// tokens at a time, every second of such tiles: tokens are the rows of a product, and B's columns
/// lie so that a thread holds eight neighbouring ones of a token, twice.
///
/// A warpgroup's ring has stages of 64 ranks of B, which its threads copy for each other, and then
/// two tiles of y, of which a thread copies what it alone reads.
template <typename C>
class WgmmaExpand {
 public:
  __device__ explicit WgmmaExpand(const Context<C>& context) : c(context), p(context.p) {}

  /// Starts on B, which may be read before the kernel before this one has ended. The ring is free.
  __device__ void begin(const Unit& unit) {
    load_ = {.tile = unit.first_tile + group()};
    load_rank_ = slot_ = 0;
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) load_b(unit, i);
    free_slot_ = kAhead;
  }
  /// Starts on y.
  __device__ void begin_base(const Unit& unit) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 16 * (c.warp % 4) + 8 * i + c.row;
      y_[i] = static_cast<Out*>(p.y) + c.rows()[token] * p.y_row_stride;
      exists_[i] = token < unit.num_tokens;
    }
    base_ = {.tile = unit.first_tile + group()};
    base_slot_ = 0;
#pragma unroll 1
    for (int i = 0; i < C::kNumBaseStages; ++i) {
      if (!p.add_inputs) fill_base(i);
      load_base(unit, i);
    }
    close_copy_group();
  }

  __device__ void run(const Unit& unit) {
    wait_for_copies<0>();
    Walk walk{.tile = unit.first_tile + group()};
#pragma unroll 1
    for (; enter_tile(unit, walk); walk.tile += C::kTileRings) {
      const UnitSlice& s = walk.slice;
      Sums acc;
      multiply(unit, s, acc);
      // y of this tile was asked for with the stage after the tile kNumBaseStages before it.
      if constexpr (kAhead >= C::kNumBaseStages) wait_for_copies<C::kNumBaseStages - 1>();
      if (p.two_round) round_deltas(s.scaling, acc);
      store(p.two_round ? 1 : s.scaling, walk, acc);
      load_base(unit, base_slot_);
      base_slot_ = 1 - base_slot_;
    }
  }

 private:
  using Weight = typename C::Weight;
  using Out = typename C::Out;
  using Sums = WgmmaSums<C::kTileColumns>;
  static_assert(C::kAligned && C::kTileWarps == 4 && C::kTileRings == 2 && C::kTileColumns == 64 &&
                C::kTileRanks == kPanelRanks && C::kNumBaseStages == 2);
  static constexpr int kAhead = C::kNumTileStages - 1;  // stages under way
  static constexpr int kNumThreads = 32 * C::kTileWarps;
  static constexpr int kEach = 8;                          // neighbouring columns of one thread
  static constexpr int kOutPieces = kIsFp32<Out> ? 2 : 1;  // of 16 bytes, of eight columns

  /// Through a warpgroup's tiles. What it needs of a tile's slice stays in registers: each stage
  /// would wait for shared memory.
  struct Walk {
    int tile;
    int end = 0;    // of the slice's tiles in the unit
    int index = 0;  // of the slice
    UnitSlice slice;
  };

  const Context<C> c;
  const LinearParams& p;
  Walk load_, base_;              // to the next stage of B, and the next tile of y
  int load_rank_ = 0;             // of that stage
  int free_slot_ = 0, slot_ = 0;  // of that stage, and of the one to multiply
  int base_slot_ = 0;             // of that tile
  Out* y_[2];                     // rows of this thread's tokens
  bool exists_[2];                // whether these are tokens of the unit

  __device__ int group() const { return c.warp / C::kTileWarps; }
  __device__ int thread() const { return int(threadIdx.x) % kNumThreads; }
  __device__ std::byte* stage(int slot) const { return c.tile_ring() + slot * C::kTileStageBytes; }
  /// This thread's pieces of a tile of y, kNumThreads pieces apart.
  __device__ uint4* base(int slot) const {
    return reinterpret_cast<uint4*>(c.base_ring() + slot * C::kBaseBytes) + thread();
  }

  /// False: the walk has ended.
  __device__ bool enter_tile(const Unit& unit, Walk& walk) const {
    if (walk.tile < walk.end) return true;
    if (walk.tile >= unit.end_tile) return false;
    walk.slice = c.next_slice_of(walk.tile, walk.index);
    walk.end = min(unit.end_tile, c.slices()[walk.index + 1].first_tile);
    return true;
  }

  // --- loads --------------------------------------------------------------------------------

  /// The next stage of B; nothing after the last. A column lies where its n8 tile is read. In place
  /// of columns beyond the slice its last one is read: a column's products reach no other column.
  __device__ void load_b(const Unit& unit, int slot) {
    if (load_rank_ == 0 && !enter_tile(unit, load_)) return;
    const UnitSlice& s = load_.slice;
    constexpr int kPieces = kPanelRanks / 8, kAtOnce = kNumThreads / kPieces;
    const int piece = thread() % kPieces, row = thread() / kPieces;
    const int rank = load_rank_ + 8 * piece;
    const int valid = max(0, min(8, s.rank - rank));
    const int first = (load_.tile - s.first_tile) * C::kTileColumns;
#pragma unroll
    for (int i = row; i < row + C::kTileColumns; i += kAtOnce) {
      const int column = min(first + i, s.num_out - 1);
      const int place = place_of(i / 32 * 32 + row_of_column(i % 32), piece);
      copy_async_some(stage(slot) + place,
                      row_address(s.b, uint32_t(column), s.b_row_bytes) + 2 * rank, 2 * valid);
    }
    load_rank_ += kPanelRanks;
    if (load_rank_ < s.rank) return;
    load_rank_ = 0;
    load_.tile += C::kTileRings;
  }

  /// What a thread will add to in the next tile.
  __device__ void load_base(const Unit& unit, int slot) {
    if (!enter_tile(unit, base_)) return;
    for_pieces(base_, [&](int, bool exists, Out* at, int piece) {
      copy_async_if(exists && p.add_inputs, base(slot) + kNumThreads * piece, at);
    });
    base_.tile += C::kTileRings;
  }
  /// Where there is nothing to add: -0, which leaves every sum as it is.
  __device__ void fill_base(int slot) const {
    const uint4 zeros =
        make_uint4(kMinusZeros<Out>, kMinusZeros<Out>, kMinusZeros<Out>, kMinusZeros<Out>);
#pragma unroll
    for (int i = 0; i < 4 * kOutPieces; ++i) base(slot)[kNumThreads * i] = zeros;
  }

  /// This thread's accesses of 16 bytes to a tile of y: of both its tokens, in both halves of the
  /// columns. Each has the number of its first sum, and its own.
  template <typename Access>
  __device__ void for_pieces(const Walk& walk, Access access) const {
    const UnitSlice& s = walk.slice;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = (walk.tile - s.first_tile) * C::kTileColumns + 32 * half + kEach * c.quad;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Out* const at = y_[i] + (s.offset + column);
#pragma unroll
        for (int j = 0; j < kOutPieces; ++j) {
          access(16 * half + 8 * j + 2 * i, exists_[i] && column < s.num_out,
                 at + kEach / kOutPieces * j, kOutPieces * (2 * half + i) + j);
        }
      }
    }
  }

  // --- products -----------------------------------------------------------------------------

  /// A tile, 64 ranks at a time. Products run while the slot of the stage before is filled again,
  /// which the whole warpgroup has read by then.
  __device__ void multiply(const Unit& unit, const UnitSlice& s, Sums& acc) {
#pragma unroll
    for (int j = 0; j < C::kTileColumns / 2; ++j) acc[j] = 0;
#pragma unroll 1
    for (int rank = 0; rank < s.rank; rank += kPanelRanks) {
      wait_for_copies<kAhead - 1>();
      show_copies_to_wgmma();
      sync_warpgroup(group());
      start(s, rank, stage(slot_), acc);
      load_b(unit, free_slot_);
      close_copy_group();
      free_slot_ = slot_;
      slot_ = slot_ == kAhead ? 0 : slot_ + 1;
      wait_for_wgmma(acc);
    }
  }
  /// In steps of 16 ranks, hi then lo; steps without a rank are left out. All four are in straight
  /// line, and on their way when this returns; between branches each waits for the one before.
  __device__ void start(const UnitSlice& s, int rank, const std::byte* stage, Sums& acc) const {
    const uint64_t h = matrix_descriptor(c.h_place(0, s.h_column + rank));
    const uint64_t b = matrix_descriptor(stage);
    if (p.split_h && s.rank - rank > kPanelRanks - 16) {
      begin_wgmma();
#pragma unroll
      for (int i = 0; i < kPanelRanks / 8; i += 2) {
        wgmma<Weight>(acc, h + i, b + i, i > 0 || rank > 0);
        wgmma<Weight>(acc, h + i + C::kLowBytes / 16, b + i, true);
      }
      close_wgmma();
    } else {
#pragma unroll 1
      for (int i = 0; i < kPanelRanks / 8 && rank + 8 * i < s.rank; i += 2) {
        begin_wgmma();
        wgmma<Weight>(acc, h + i, b + i, i > 0 || rank > 0);
        close_wgmma();
        wait_for_wgmma(acc);
        if (!p.split_h) continue;
        begin_wgmma();
        wgmma<Weight>(acc, h + i + C::kLowBytes / 16, b + i, true);
        close_wgmma();
        wait_for_wgmma(acc);
      }
    }
  }

  // --- results ------------------------------------------------------------------------------

  /// A delta is rounded before it is added; its scaling is 1 then.
  __device__ static void round_deltas(float scaling, Sums& acc) {
#pragma unroll
    for (float& sum : acc) sum = rounded_delta<Out>(scaling, sum);
  }
  __device__ void store(float scaling, const Walk& walk, const Sums& acc) const {
    for_pieces(walk, [&](int sum, bool exists, Out* at, int piece) {
      const uint4 before = base(base_slot_)[kNumThreads * piece];
      store_if(exists, at, results_of_tiles<Out>(before, scaling, acc + sum));
    });
  }
};

}  // namespace loratory::gpu
