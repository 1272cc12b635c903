#pragma once

#include "gpu/kernels/lora_context.cuh"

namespace loratory::gpu {

/// y of one unit from h in shared memory. A warp makes 32 columns of all tokens at a time. Tokens
/// are the 16 rows of a fragment; column g of n8 tile j stands for 8 (g / 2) + 2 j + g % 2, so that
/// a thread holds eight neighbouring columns of a token: one access of y.
template <typename C>
class Expand {
 public:
  __device__ explicit Expand(const Context<C>& context) : c(context), p(context.p) {}

  /// Starts on B, which may be read before the kernel before this one has ended, and brings what
  /// the ring has no room for near. This warp's part of the ring is free.
  __device__ void begin(const Unit& unit) {
    begin_loads(unit);
    slot_ = base_slot_ = slice_ = 0;
#pragma unroll 1
    for (int i = 0; i < C::kNumTileStages; ++i) load_stage<true, false>(unit);
    prefetch(unit);
  }
  /// Starts on y.
  __device__ void begin_base(const Unit& unit) {
    begin_loads(unit);
#pragma unroll
    for (int i = 0; i < C::kTokenTiles; ++i) y_[i] = c.tokens()[8 * i + c.row].y;
#pragma unroll 1
    for (int i = 0; i < C::kNumTileStages; ++i) load_stage<false, true>(unit);
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
  static constexpr bool kFp32 = sizeof(Out) == 4;
  static constexpr int kEach = 8;                              // columns of one thread
  static constexpr int kPieces = C::kTileRanks / 8;            // of a row of a stage
  static constexpr int kTokenRows = (C::kTokenTiles + 1) / 2;  // fragments of 16 tokens
  static constexpr int kHalves = C::kTokenTiles == 1 ? 1 : 2;  // of them that can exist
  static constexpr int kWords = kFp32 ? 8 : 4;                 // of eight columns
  struct Eight {
    uint32_t word[kWords];
  };
  using Acc = float[kTokenRows][4][4];

  const Context<C> c;
  const LinearParams& p;
  // Where the next stage to load is, and the next tile's y; where the next to multiply is.
  int load_tile_ = 0, load_rank_ = 0, load_slot_ = 0, load_base_slot_ = 0, load_slice_ = 0;
  int slot_ = 0, base_slot_ = 0, slice_ = 0;
  std::byte* y_[C::kTokenTiles];  // rows of this thread's tokens

  /// Slice of a tile that is not before the one asked for last.
  __device__ const UnitSlice& slice_at(int tile, int& slice) const {
#pragma unroll 1
    while (c.slices()[slice + 1].first_tile <= tile) ++slice;
    return c.slices()[slice];
  }
  __device__ static void advance(int& slot) { slot = slot + 1 == C::kNumTileStages ? 0 : slot + 1; }

  // --- loads --------------------------------------------------------------------------------

  __device__ void begin_loads(const Unit& unit) {
    load_tile_ = unit.first_tile + c.warp;
    load_rank_ = load_slot_ = load_base_slot_ = load_slice_ = 0;
  }

  /// The next stage into its slot of the ring, and y with the first of a tile; nothing after the
  /// last.
  template <bool kB, bool kBase>
  __device__ void load_stage(const Unit& unit) {
    if (load_tile_ >= unit.end_tile) return;
    const UnitSlice& s = slice_at(load_tile_, load_slice_);
    if constexpr (kB) load_b(s, c.tile_ring() + load_slot_ * C::kTileStageBytes);
    if (load_rank_ == 0) {
      if constexpr (kBase) load_base(unit, s, c.base_ring() + load_base_slot_ * C::kBaseBytes);
      advance(load_base_slot_);
    }
    advance(load_slot_);
    load_rank_ += C::kTileRanks;
    if (load_rank_ < s.rank) return;
    load_rank_ = 0;
    load_tile_ += C::kNumWarps;
  }

  /// kTileRanks ranks of a tile of B. A column lies where its fragment is read: eight lanes then
  /// read neighbouring rows, and banks do not collide.
  __device__ void load_b(const UnitSlice& s, std::byte* to) const {
    const int piece = c.lane % kPieces, first = c.lane / kPieces;
    const int rank = load_rank_ + 8 * piece;
    const int valid = min(8, s.rank - rank);
    const int column = (load_tile_ - s.first_tile) * C::kTileColumns + first;
    const uint32_t row_bytes = s.b_row_bytes;
    const std::byte* from = s.b + uint64_t(uint32_t(column)) * row_bytes + 2 * rank;
    const int left = valid > 0 ? s.num_out - column : 0;
    const bool whole = s.rank % 8 == 0;
#pragma unroll
    for (int i = 0; i < C::kTileColumns; i += 32 / kPieces) {
      const int count = i < left ? valid : 0;
      std::byte* const place = to + place_in_tile<kPieces>(row_of(first + i), piece);
      if (whole)
        copy_eight_or_none<C::kAligned>(place, from, count);
      else
        copy_eight<C::kAligned>(place, from, count);
      from += 32 / kPieces * uint64_t(row_bytes);
    }
  }
  /// Column 8 (g / 2) + 2 j + g % 2 of a tile is column g of n8 tile j.
  __device__ static int row_of(int column) {
    return column / 2 % 4 * 8 + column / 8 * 2 + column % 2;
  }

  /// Brings rows of B near for which the ring has no room yet.
  __device__ void prefetch(const Unit& unit) const {
#pragma unroll 1
    for (int tile = load_tile_; tile < unit.end_tile; tile += C::kNumWarps) {
      const UnitSlice& s = c.slice_of(unit, tile, &UnitSlice::first_tile);
      const int column = min((tile - s.first_tile) * C::kTileColumns + c.lane, s.num_out - 1);
      const std::byte* const row = s.b + uint64_t(uint32_t(column)) * s.b_row_bytes;
#pragma unroll 1
      for (int j = 0; j < s.rank; j += 64) prefetch_l2(row + 2 * j);
    }
  }

  /// What a thread will add to, at the place where it alone reads it.
  __device__ void load_base(const Unit& unit, const UnitSlice& s, std::byte* to) const {
    const int column = column_of(s, load_tile_);
    const int valid = s.num_out - column;
    if (!p.add_inputs || valid <= 0) return;
    std::byte* const place = base_place(to, c.row);
#pragma unroll
    for (int i = 0; i < C::kTokenTiles; ++i) {
      if (8 * i + c.row < unit.num_tokens)
        copy_base(place + 8 * i * C::kBaseRowBytes, y_at(s, i, column), valid);
    }
  }
  __device__ std::byte* base_place(std::byte* base, int token) const {
    return base + token * C::kBaseRowBytes + c.quad * kEach * int(sizeof(Out));
  }
  __device__ static void copy_base(std::byte* to, const std::byte* from, int valid) {
    if constexpr (C::kAligned) {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) copy_async(to + 16 * i, from + 16 * i, true);
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (i < valid) reinterpret_cast<Out*>(to)[i] = reinterpret_cast<const Out*>(from)[i];
      }
    }
  }

  /// Columns of this thread in a tile, and how many of them exist (all or none where aligned).
  __device__ int column_of(const UnitSlice& s, int tile) const {
    return (tile - s.first_tile) * C::kTileColumns + kEach * c.quad;
  }
  __device__ std::byte* y_at(const UnitSlice& s, int token_tile, int column) const {
    return y_[token_tile] + int64_t(s.offset + column) * int64_t(sizeof(Out));
  }

  // --- products -----------------------------------------------------------------------------

  __device__ void make_tile(const Unit& unit, int tile) {
    const UnitSlice s = slice_at(tile, slice_);  // read once, not after each product
    Acc acc = {};
#pragma unroll 1
    for (int rank = 0; rank < s.rank; rank += C::kTileRanks) {
      wait_for_copies<C::kNumTileStages - 1>();
      __syncwarp();
      multiply(unit, c.tile_ring() + slot_ * C::kTileStageBytes, s.h_column + rank, s.rank - rank,
               acc);
      advance(slot_);
      if (rank + C::kTileRanks >= s.rank) store_tile(unit, s, tile, acc);
      __syncwarp();
      load_stage<true, true>(unit);
      close_copy_group();
    }
  }

  /// 16 ranks of four n8 tiles of B.
  struct Weights {
    uint32_t low[4], high[4];
  };
  __device__ Weights load_weights(const std::byte* b, int first_piece) const {
    Weights w;
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const int row = 8 * (j + c.lane / 16) + c.lane % 8;
      const uint4 v = load_matrices(b + place_in_tile<kPieces>(row, first_piece + c.lane / 8 % 2));
      w.low[j] = v.x, w.high[j] = v.y, w.low[j + 1] = v.z, w.high[j + 1] = v.w;
    }
    return w;
  }

  /// A stage in steps of 16 ranks, hi then lo; steps without a rank are left out. Where only eight
  /// tokens can exist the other half of the fragment repeats them.
  __device__ void multiply(const Unit& unit, const std::byte* b, int h_column, int left,
                           Acc& acc) const {
#pragma unroll
    for (int step = 0; step < C::kTileRanks / 16; ++step) {
      if (step > 0 && left <= 16 * step) return;
      const Weights w = load_weights(b, 2 * step);
#pragma unroll
      for (int m = 0; m < kTokenRows; ++m) {
        if (16 * m >= unit.num_tokens) continue;
        const int token = 16 * m + c.lane % (8 * kHalves);
        const std::byte* const h = c.h_place(token, h_column + 16 * step + c.lane / 16 * 8);
        multiply_h(load_matrices(h), w, acc[m]);
        if (p.split_h) multiply_h(load_matrices(h + 16), w, acc[m]);
      }
    }
  }
  __device__ static void multiply_h(const uint4& h, const Weights& w, float (&acc)[4][4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) mma<Weight>(acc[j], h, w.low[j], w.high[j]);
  }

  // --- results ------------------------------------------------------------------------------

  __device__ void store_tile(const Unit& unit, const UnitSlice& s, int tile, const Acc& acc) {
    if (p.add_inputs && !p.two_round)
      store_tile<true>(unit, s, tile, acc);
    else
      store_tile<false>(unit, s, tile, acc);
    advance(base_slot_);
  }

  /// kFast: y = round(base + scaling · sum), one rounding.
  template <bool kFast>
  __device__ void store_tile(const Unit& unit, const UnitSlice& s, int tile, const Acc& acc) const {
    const int column = column_of(s, tile);
    const int valid = s.num_out - column;
    if (valid <= 0) return;
    std::byte* const base = c.base_ring() + base_slot_ * C::kBaseBytes;
#pragma unroll
    for (int m = 0; m < kTokenRows; ++m) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const int token = 16 * m + 8 * half + c.row;
        if (token >= unit.num_tokens) continue;
        const Eight before = load_eight(base_place(base, token));
        Eight out;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 d{acc[m][j][2 * half], acc[m][j][2 * half + 1]};
          set_two<kFast>(out, j, before, s.scaling, d);
        }
        store_eight(y_at(s, 2 * m + half, column), valid, out);
      }
    }
  }
  __device__ static Eight load_eight(const std::byte* place) {
    Eight out;
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const uint4 v = reinterpret_cast<const uint4*>(place)[i];
      out.word[4 * i] = v.x, out.word[4 * i + 1] = v.y;
      out.word[4 * i + 2] = v.z, out.word[4 * i + 3] = v.w;
    }
    return out;
  }

  /// Columns 2j and 2j + 1 of eight.
  template <bool kFast>
  __device__ void set_two(Eight& out, int j, const Eight& base, float scaling, float2 d) const {
    if constexpr (kFp32) {
      out.word[2 * j] =
          __float_as_uint(result<kFast>(__uint_as_float(base.word[2 * j]), scaling, d.x));
      out.word[2 * j + 1] =
          __float_as_uint(result<kFast>(__uint_as_float(base.word[2 * j + 1]), scaling, d.y));
    } else {
      const float2 b = unpack<Out>(base.word[j]);
      out.word[j] = pack<Out>(result<kFast>(b.x, scaling, d.x), result<kFast>(b.y, scaling, d.y));
    }
  }

  /// Before the last rounding. Otherwise as NumericMode says: delta alone, or rounded to y's type
  /// before the sum.
  template <bool kFast>
  __device__ float result(float base, float scaling, float d) const {
    if (kFast) return __fmaf_rn(scaling, d, base);
    if (!p.add_inputs) return __fmul_rn(scaling, d);
    if (!p.two_round) return __fmaf_rn(scaling, d, base);
    return __fadd_rn(base, rounded(__fmul_rn(scaling, d)));
  }
  __device__ static float rounded(float v) {
    if constexpr (kFp32)
      return v;
    else
      return to_float<Out>(to_bits<Out>(v));
  }

  __device__ static void store_eight(std::byte* y, int valid, const Eight& v) {
    if constexpr (C::kAligned) {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        reinterpret_cast<uint4*>(y)[i] = {v.word[4 * i], v.word[4 * i + 1], v.word[4 * i + 2],
                                          v.word[4 * i + 3]};
      }
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (i >= valid) continue;
        if constexpr (kFp32)
          reinterpret_cast<uint32_t*>(y)[i] = v.word[i];
        else
          reinterpret_cast<uint16_t*>(y)[i] = uint16_t(v.word[i / 2] >> 16 * (i % 2));
      }
    }
  }
};

}  // namespace loratory::gpu
