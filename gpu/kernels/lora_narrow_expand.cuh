#pragma once

#include "gpu/kernels/lora_context.cuh"
#include "gpu/kernels/lora_output.cuh"

namespace loratory::gpu {

/// y of one unit of up to eight tokens from h in shared memory. A warp makes 64 columns at a time:
/// columns are the rows of a fragment, tokens its columns. Row 8 h + g of fragment t stands for
/// column 8 g + 2 t + h, so that a thread holds eight neighbouring columns of a token: one access
/// of y, and eight lanes one of a line. Its tokens are q and q + 4, so that up to four cost half.
template <typename C>
class NarrowExpand {
 public:
  __device__ explicit NarrowExpand(const Context<C>& context) : c(context), p(context.p) {}

  /// Starts on B, which may be read before the kernel before this one has ended. This warp's part
  /// of the ring is free.
  __device__ void begin(const Unit& unit) {
    load_tile_ = unit.first_tile + c.warp;
    load_rank_ = load_slot_ = load_slice_ = slot_ = slice_ = 0;
#pragma unroll 1
    for (int i = 0; i < C::kNumTileStages; ++i) load_stage(unit);
  }
  /// Starts on y.
  __device__ void begin_base(const Unit& unit) {
    base_tile_ = unit.first_tile + c.warp;
    base_slot_ = base_slice_ = 0;
#pragma unroll 1
    for (int i = 0; i < C::kNumBaseStages; ++i) {
      if (!p.add_inputs) fill_base();
      load_base(unit);
      advance<C::kNumBaseStages>(base_slot_);
    }
  }

  __device__ void run(const Unit& unit) {
    close_copy_group();
    wait_for_copies<0>();
#pragma unroll 1
    for (int tile = unit.first_tile + c.warp; tile < unit.end_tile; tile += C::kNumWarps) {
      make_tile(unit, tile);
    }
  }

 private:
  using Weight = typename C::Weight;
  using Out = typename C::Out;
  static constexpr int kEach = 8;                      // columns of one thread
  static constexpr int kWords = kIsFp32<Out> ? 8 : 4;  // of eight columns
  static constexpr int kPieces = C::kTileRanks / 8;    // of a row of a stage
  static constexpr int kFragments = C::kTileColumns / 16;
  using Acc = float[kFragments][4];

  const Context<C> c;
  const LinearParams& p;
  // Where the next stage to load is, and the next y; where the next to multiply is.
  int load_tile_ = 0, load_rank_ = 0, load_slot_ = 0, load_slice_ = 0;
  int base_tile_ = 0, base_slot_ = 0, base_slice_ = 0;
  int slot_ = 0, slice_ = 0;

  template <int kNum>
  __device__ static void advance(int& slot) {
    slot = slot + 1 == kNum ? 0 : slot + 1;
  }

  // --- loads --------------------------------------------------------------------------------

  /// The next stage into its slot of the ring; nothing after the last.
  __device__ void load_stage(const Unit& unit) {
    if (load_tile_ >= unit.end_tile) return;
    const UnitSlice& s = c.next_slice_of(load_tile_, load_slice_);
    load_b(s, c.tile_ring() + load_slot_ * C::kTileStageBytes);
    advance<C::kNumTileStages>(load_slot_);
    load_rank_ += C::kTileRanks;
    if (load_rank_ < s.rank) return;
    load_rank_ = 0;
    load_tile_ += C::kNumWarps;
  }

  /// kTileRanks ranks of a tile of B.
  __device__ void load_b(const UnitSlice& s, std::byte* to) const {
    const int piece = c.lane % kPieces, first = c.lane / kPieces;
    const int rank = load_rank_ + 8 * piece;
    const int valid = min(8, s.rank - rank);
    const int column = (load_tile_ - s.first_tile) * C::kTileColumns + first;
    const uint32_t row_bytes = s.b_row_bytes;
    const std::byte* const from = s.b + uint64_t(uint32_t(column)) * row_bytes + 2 * rank;
    const int left = valid > 0 ? s.num_out - column : 0;
    if (s.rank % 8 == 0)
      load_columns<true>(to, from, row_bytes, left, valid);
    else
      load_columns<false>(to, from, row_bytes, left, valid);
  }
  /// kWhole: all eight ranks of a piece exist, or none.
  template <bool kWhole>
  __device__ void load_columns(std::byte* to, const std::byte* from, uint32_t row_bytes, int left,
                               int valid) const {
    constexpr int kAtOnce = 32 / kPieces;
#pragma unroll
    for (int i = 0; i < C::kTileColumns; i += kAtOnce) {
      std::byte* const place =
          to + place_of_column<kPieces>(i + c.lane / kPieces, c.lane % kPieces);
      if constexpr (kWhole)
        copy_eight_or_none<C::kAligned>(place, from, i < left ? valid : 0);
      else
        copy_eight<C::kAligned>(place, from, i < left ? valid : 0);
      from += kAtOnce * uint64_t(row_bytes);
    }
  }

  /// What this thread will add to in the next tile of y, at the place where it alone reads it;
  /// nothing after the last.
  __device__ void load_base(const Unit& unit) {
    if (!p.add_inputs || base_tile_ >= unit.end_tile) return;
    const UnitSlice& s = c.next_slice_of(base_tile_, base_slice_);
    const int column = column_of(s, base_tile_);
    base_tile_ += C::kNumWarps;
    const int valid = s.num_out - column;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (valid > 0 && token_of(i) < unit.num_tokens) copy_base(i, y_at(s, i, column), valid);
    }
  }
  __device__ void copy_base(int i, const std::byte* y, int valid) {
    if constexpr (C::kAligned) {
#pragma unroll
      for (int j = 0; j < kWords / 4; ++j) copy_async(base_place(i, 4 * j), y + 16 * j, true);
    } else {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        auto* const word = reinterpret_cast<Out*>(base_place(i, j * kWords / kEach));
        if (j < valid) word[j % (kEach / kWords)] = reinterpret_cast<const Out*>(y)[j];
      }
    }
  }
  /// Where there is nothing to add.
  __device__ void fill_base() {
#pragma unroll
    for (int j = 0; j < 2 * kWords; ++j) {
      *reinterpret_cast<uint32_t*>(base_place(j / kWords, j % kWords)) = kMinusZeros<Out>;
    }
  }
  /// A word of what this thread adds to: 16 bytes a lane.
  __device__ std::byte* base_place(int i, int word) const {
    return c.base_ring() + base_slot_ * C::kBaseBytes +
           ((i * kWords + word) / 4 * 32 + c.lane) * 16 + word % 4 * 4;
  }

  /// Tokens of this thread: two.
  __device__ int token_of(int i) const { return 4 * i + c.quad; }

  /// Columns of this thread in a tile, and where they lie in a row of y.
  __device__ int column_of(const UnitSlice& s, int tile) const {
    return (tile - s.first_tile) * C::kTileColumns + kEach * c.row;
  }
  __device__ std::byte* y_at(const UnitSlice& s, int i, int column) const {
    return c.tokens()[token_of(i)].y +
           int64_t(s.offset + column) * int64_t(sizeof(typename C::Out));
  }

  // --- products -----------------------------------------------------------------------------

  __device__ void make_tile(const Unit& unit, int tile) {
    const UnitSlice& s = c.next_slice_of(tile, slice_);
    const int num_ranks = s.rank, h_column = s.h_column;  // read once, not after each product
    Acc acc = {};
#pragma unroll 1
    for (int rank = 0; rank < num_ranks; rank += C::kTileRanks) {
      wait_for_copies<C::kNumTileStages - 1>();
      __syncwarp();
      multiply(h_column + rank, num_ranks - rank, acc);
      advance<C::kNumTileStages>(slot_);
      if (rank + C::kTileRanks >= num_ranks) finish_tile(unit, s, tile, acc);
      __syncwarp();
      load_stage(unit);
      close_copy_group();
    }
  }

  /// A stage in steps of 16 ranks, hi then lo; steps without a rank are left out.
  __device__ void multiply(int h_column, int left, Acc& acc) const {
    const std::byte* const b = c.tile_ring() + slot_ * C::kTileStageBytes;
    const int column = c.lane % 8 * 8 + c.lane / 8 % 2;  // of fragment 0
#pragma unroll
    for (int step = 0; step < C::kTileRanks / 16; ++step) {
      if (step > 0 && left <= 16 * step) return;
      const uint4 h = load_h(h_column + 16 * step);
      uint4 w[kFragments];
#pragma unroll
      for (int t = 0; t < kFragments; ++t) {
        w[t] = load_matrices(b + place_of_column<kPieces>(column + 2 * t, 2 * step + c.lane / 16));
      }
#pragma unroll
      for (int t = 0; t < kFragments; ++t) mma<Weight>(acc[t], w[t], h.x, h.y);
      if (!p.split_h) continue;
#pragma unroll
      for (int t = 0; t < kFragments; ++t) mma<Weight>(acc[t], w[t], h.z, h.w);
    }
  }
  /// 16 ranks of eight tokens: hi of the first eight ranks and of the others, lo of both. Column n
  /// of the fragment is token n / 2, of odd ones four further.
  __device__ uint4 load_h(int column) const {
    const int token = c.lane % 8 / 2 + c.lane % 2 * 4;
    return load_matrices(c.h_place(token, column + c.lane / 8 % 2 * 8) + c.lane / 16 * 16);
  }

  // --- results ------------------------------------------------------------------------------

  /// y, and room for another.
  __device__ void finish_tile(const Unit& unit, const UnitSlice& s, int tile, Acc& acc) {
    // Else y has come with the stages before.
    if (C::kNumBaseStages < C::kNumTileStages && s.rank <= (C::kNumTileStages - 1) * C::kTileRanks)
      wait_for_copies<0>();
    if (p.two_round) round_deltas(acc, s.scaling);
    store_tile(unit, s, tile, p.two_round ? 1 : s.scaling, acc);
    load_base(unit);
    advance<C::kNumBaseStages>(base_slot_);
  }
  __device__ static void round_deltas(Acc& acc, float scaling) {
#pragma unroll
    for (int i = 0; i < 4 * kFragments; ++i) {
      acc[i / 4][i % 4] = rounded_delta<Out>(scaling, acc[i / 4][i % 4]);
    }
  }

  __device__ void store_tile(const Unit& unit, const UnitSlice& s, int tile, float scaling,
                             const Acc& acc) const {
    const int column = column_of(s, tile);
    const int valid = s.num_out - column;
    if (valid <= 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (token_of(i) >= unit.num_tokens) continue;
#pragma unroll
      for (int j = 0; j < kWords; j += 4) {
        const uint4 base = *reinterpret_cast<const uint4*>(base_place(i, j));
        store_piece(y_at(s, i, column) + 4 * j, valid - j * kEach / kWords,
                    results(base, scaling, i, acc + j / 2));
      }
    }
  }
  /// 16 bytes of y: of fragments 0 to 3, or of two where y is fp32.
  __device__ static uint4 results(const uint4& base, float scaling, int i, const float (*sums)[4]) {
    if constexpr (kIsFp32<Out>) {
      return {result_of_one(base.x, scaling, sums[0][i]),
              result_of_one(base.y, scaling, sums[0][2 + i]),
              result_of_one(base.z, scaling, sums[1][i]),
              result_of_one(base.w, scaling, sums[1][2 + i])};
    } else {
      return {result_of_two<Out>(base.x, scaling, sums[0][i], sums[0][2 + i]),
              result_of_two<Out>(base.y, scaling, sums[1][i], sums[1][2 + i]),
              result_of_two<Out>(base.z, scaling, sums[2][i], sums[2][2 + i]),
              result_of_two<Out>(base.w, scaling, sums[3][i], sums[3][2 + i])};
    }
  }
  /// `valid` of its columns exist.
  __device__ static void store_piece(std::byte* y, int valid, const uint4& v) {
    if constexpr (C::kAligned) {
      store_if(true, y, v);
    } else {
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4 * kEach / kWords; ++i) {
        if (i >= valid) continue;
        if constexpr (kIsFp32<Out>)
          reinterpret_cast<uint32_t*>(y)[i] = words[i];
        else
          reinterpret_cast<uint16_t*>(y)[i] = uint16_t(words[i / 2] >> 16 * (i % 2));
      }
    }
  }
};

}  // namespace loratory::gpu
