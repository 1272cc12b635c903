#pragma once

#include "gpu/kernels/lora_context.cuh"
#include "gpu/kernels/lora_output.cuh"

namespace loratory::gpu {

/// y of one unit of up to 32 or 64 tokens from h in shared memory. A warp makes 32 columns of all
/// tokens at a time, every eighth of such tiles. Tokens are the 16 rows of a fragment; column g of
/// n8 tile j stands for 8 (g / 2) + 2 j + g % 2, so that a thread holds eight neighbouring columns
/// of a token: one access of y. What loads need of a slice is found once for all its tiles.
///
/// A warp's ring has slots of a stage of B and a tile of y, which belongs to the last stage of the
/// tile. A stage is one group of copies; those of the first B are in the first group of y.
template <typename C>
class WideExpand {
 public:
  __device__ explicit WideExpand(const Context<C>& context) : c(context), p(context.p) {}

  /// Starts on B, which may be read before the kernel before this one has ended. This warp's part
  /// of the ring is free.
  __device__ void begin(const Unit& unit) {
    begin_loads(unit);
#pragma unroll 1
    for (int i = 0; i < C::kNumTileStages; ++i) {
      load_stage<true, false>(unit);
      advance_slot();
    }
  }
  /// Starts on y.
  __device__ void begin_base(const Unit& unit) {
    begin_loads(unit);
#pragma unroll
    for (int i = 0; i < C::kTokenTiles; ++i) {
      y_[i] = reinterpret_cast<Out*>(c.tokens()[8 * i + c.row].y);
    }
    num_rows_ = (unit.num_tokens - c.row + 7) / 8;
    if (!p.add_inputs) fill_base();
#pragma unroll 1
    for (int i = 0; i < C::kNumTileStages; ++i) {
      load_stage<false, true>(unit);
      advance_slot();
      close_copy_group();
    }
  }

  __device__ void run(const Unit& unit) {
    const bool is_usual = p.split_h && !p.two_round;
    int tile = unit.first_tile + c.warp;
#pragma unroll 1
    for (int i = 0; tile < unit.end_tile; ++i) {
      if (tile >= c.slices()[i + 1].first_tile) continue;
      const UnitSlice s = c.slices()[i];
      int column = (tile - s.first_tile) * C::kTileColumns;
      const int end = end_of_slice(unit, i);
      if (C::kRankTiles == 1 && s.rank <= C::kTileRanks && is_usual)
        make_tiles_of_one_stage(unit, s, column, end);
      else
        make_tiles(unit, s, column, end);
      tile = s.first_tile + column / C::kTileColumns;
    }
  }

 private:
  using Weight = typename C::Weight;
  using Out = typename C::Out;
  static_assert(C::kTokenTiles % 2 == 0 && C::kAligned && !C::kShrinks);
  static constexpr int kStep = C::kNumWarps * C::kTileColumns;  // to a warp's next tile
  static constexpr int kEach = 8;                               // columns of one thread
  static constexpr int kPieces = C::kTileRanks / 8;             // of a row of a stage
  static constexpr int kNear = 8 / kPieces;  // columns of eight neighbours that go together
  static constexpr int kFragments = C::kTokenTiles / 2;  // of 16 tokens
  static constexpr int kSlotBytes = C::kTileStageBytes + C::kBaseBytes;
  static constexpr int kOutPieces = kIsFp32<Out> ? 2 : 1;  // of 16 bytes, of eight columns
  using Acc = float[4][4];

  /// The slice that loads are from.
  struct Source {
    const std::byte* b;
    uint32_t row_bytes;
    int rank, num_out, offset;
    int first_tile;
    int end;  // of its columns in the unit, in whole tiles
  };

  const Context<C> c;
  const LinearParams& p;
  Source from_;
  int load_column_ = 0, load_rank_ = 0, load_slice_ = 0;  // of the next stage
  std::byte* slot_ = nullptr;  // where the stage to multiply lies, and the one to load after it
  Out* y_[C::kTokenTiles];     // rows of this thread's tokens
  int num_rows_ = 0;           // of them that exist

  __device__ void advance_slot() {
    std::byte* const last = c.tile_ring() + (C::kNumTileStages - 1) * kSlotBytes;
    slot_ = slot_ == last ? c.tile_ring() : slot_ + kSlotBytes;
  }
  /// Of the columns of a slice, in whole tiles.
  __device__ int end_of_slice(const Unit& unit, int slice) const {
    const UnitSlice* const s = c.slices() + slice;
    return (min(unit.end_tile, s[1].first_tile) - s->first_tile) * C::kTileColumns;
  }

  // --- loads --------------------------------------------------------------------------------

  __device__ void begin_loads(const Unit& unit) {
    from_ = {.first_tile = unit.first_tile + c.warp};  // no slice
    load_column_ = load_rank_ = load_slice_ = 0;
    slot_ = c.tile_ring();
  }

  /// The next stage into the slot of the one just used, and y with the last of a tile; nothing
  /// after all tiles.
  template <bool kB, bool kBase>
  __device__ void load_stage(const Unit& unit) {
    if (load_column_ >= from_.end && !enter_slice(unit)) return;
    if constexpr (kB) load_b();
    load_rank_ += C::kTileRanks;
    if (load_rank_ < from_.rank) return;
    if constexpr (kBase) load_base();
    load_rank_ = 0;
    load_column_ += kStep;
  }

  /// The slice of the next tile. False: there is none.
  __device__ bool enter_slice(const Unit& unit) {
    const int tile = from_.first_tile + load_column_ / C::kTileColumns;
    if (tile >= unit.end_tile) return false;
    const UnitSlice& s = c.next_slice_of(tile, load_slice_);
    from_ = {.b = s.b,
             .row_bytes = s.b_row_bytes,
             .rank = s.rank,
             .num_out = s.num_out,
             .offset = s.offset,
             .first_tile = s.first_tile,
             .end = end_of_slice(unit, load_slice_)};
    load_column_ = (tile - s.first_tile) * C::kTileColumns;
    return true;
  }

  /// kTileRanks ranks of a tile of B. A column lies where its fragment is read: eight lanes then
  /// read neighbouring rows, and banks do not collide. In place of columns beyond the slice its
  /// last one is read: a column's products reach no other column.
  __device__ void load_b() const {
    const int piece = c.lane % kPieces, row = c.lane / kPieces;
    const int rank = load_rank_ + 8 * piece;
    const int valid = max(0, min(8, from_.rank - rank));
    const std::byte* const b = from_.b + 2 * uint32_t(rank);
#pragma unroll
    for (int near = 0; near < 2; near += kNear) {
      const int first = row / kNear * 8 + row % kNear + near;
      std::byte* const to = slot_ + place_in_tile<kPieces>(row_of_column(first), piece);
#pragma unroll
      for (int i = 0; i < 8 - near; i += max(2, kNear)) {
        const int column = min(load_column_ + first + i, from_.num_out - 1);
        copy_async_some(to + 64 * kPieces * i, row_address(b, uint32_t(column), from_.row_bytes),
                        2 * valid);
      }
    }
  }

  /// What a thread will add to, at the place where it alone reads it.
  __device__ void load_base() const {
    const int column = load_column_ + kEach * c.quad;
    const int num = column < from_.num_out && p.add_inputs ? num_rows_ : 0;
    uint4* const to = base_places();
#pragma unroll
    for (int i = 0; i < C::kTokenTiles; ++i) {
      const Out* const from = y_[i] + (from_.offset + column);
#pragma unroll
      for (int j = 0; j < kOutPieces; ++j) {
        copy_async_if(i < num, to + 32 * (kOutPieces * i + j),
                      reinterpret_cast<const uint4*>(from) + j);
      }
    }
  }
  /// Where there is nothing to add: -0, which leaves every sum as it is.
  __device__ void fill_base() {
    const uint4 zeros =
        make_uint4(kMinusZeros<Out>, kMinusZeros<Out>, kMinusZeros<Out>, kMinusZeros<Out>);
#pragma unroll 1
    for (int i = 0; i < C::kNumTileStages; ++i) {
#pragma unroll 1
      for (int j = 0; j < C::kTokenTiles * kOutPieces; ++j) {
        base_places()[32 * j] = zeros;
      }
      advance_slot();
    }
  }
  /// Eight columns of a token take kOutPieces pieces of 16 bytes.
  __device__ uint4* base_places() const {
    return reinterpret_cast<uint4*>(slot_ + C::kTileStageBytes) + c.lane;
  }

  // --- products -----------------------------------------------------------------------------

  /// The next stage to multiply, once all lanes' parts of it are there.
  __device__ const std::byte* wait_for_stage() const {
    wait_for_copies<C::kNumTileStages - 1>();
    __syncwarp();
    return slot_;
  }
  /// Into its slot, which all lanes have read.
  __device__ void refill(const Unit& unit) {
    __syncwarp();
    load_stage<true, true>(unit);
    close_copy_group();
    advance_slot();
  }

  /// The shortest way, of a slice whose ranks are one stage: h stays in registers. The fragments
  /// read B again each, which takes fewer of them.
  __device__ void make_tiles_of_one_stage(const Unit& unit, const UnitSlice& s, int& column,
                                          int end) {
    uint4 high[kFragments], low[kFragments];
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      const std::byte* const h = h_place(s, m);
      high[m] = load_matrices(h), low[m] = load_matrices(h + 16);
    }
#pragma unroll 1
    for (; column < end; column += kStep) {
      const std::byte* const b = wait_for_stage();
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        if (!exists(unit, m)) continue;
        Acc acc = {};
        const Weights w = load_weights(b, 0);
        multiply_h(high[m], w, acc);
        multiply_h(low[m], w, acc);
        store(s.scaling, s, column, m, acc);
      }
      refill(unit);
    }
  }

  /// Of any ranks and NumericMode.
  __device__ void make_tiles(const Unit& unit, const UnitSlice& s, int& column, int end) {
#pragma unroll 1
    for (; column < end; column += kStep) {
      Acc acc[kFragments] = {};
#pragma unroll 1
      for (int rank = 0; rank < s.rank; rank += C::kTileRanks) {
        multiply(unit, s, rank, wait_for_stage(), acc);
        if (rank + C::kTileRanks >= s.rank) store_all(unit, s, column, acc);
        refill(unit);
      }
    }
  }

  __device__ static bool exists(const Unit& unit, int fragment) {
    return fragment == 0 || 16 * fragment < unit.num_tokens;
  }
  /// Of a lane's token of fragment m.
  __device__ const std::byte* h_place(const UnitSlice& s, int m) const {
    return c.h_place(16 * m + c.lane % 16, s.h_column + c.lane / 16 * 8);
  }

  /// 16 ranks of four n8 tiles of B.
  struct Weights {
    uint32_t low[4], high[4];
  };
  __device__ Weights load_weights(const std::byte* b, int first_piece) const {
    Weights w;
    b += place_in_tile<kPieces>(c.lane / 16 * 8 + c.lane % 8, first_piece + c.lane / 8 % 2);
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const uint4 v = load_matrices(b + 8 * j * 16 * kPieces);
      w.low[j] = v.x, w.high[j] = v.y, w.low[j + 1] = v.z, w.high[j + 1] = v.w;
    }
    return w;
  }

  /// A stage in steps of 16 ranks, hi then lo; steps without a rank are left out.
  __device__ void multiply(const Unit& unit, const UnitSlice& s, int rank, const std::byte* b,
                           Acc (&acc)[kFragments]) const {
#pragma unroll
    for (int step = 0; step < C::kTileRanks / 16; ++step) {
      if (step > 0 && rank + 16 * step >= s.rank) return;
      const Weights w = load_weights(b, 2 * step);
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        if (!exists(unit, m)) continue;
        const std::byte* const h = h_place(s, m) + 4 * (rank + 16 * step);
        multiply_h(load_matrices(h), w, acc[m]);
        if (p.split_h) multiply_h(load_matrices(h + 16), w, acc[m]);
      }
    }
  }
  __device__ static void multiply_h(const uint4& h, const Weights& w, Acc& acc) {
#pragma unroll
    for (int j = 0; j < 4; ++j) mma<Weight>(acc[j], h, w.low[j], w.high[j]);
  }

  // --- results ------------------------------------------------------------------------------

  /// two_round: a delta is rounded before it is added; its scaling is 1 then.
  __device__ void store_all(const Unit& unit, const UnitSlice& s, int column,
                            Acc (&acc)[kFragments]) {
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      if (!exists(unit, m)) continue;
      if (p.two_round) round_deltas(acc[m], s.scaling);
      store(p.two_round ? 1 : s.scaling, s, column, m, acc[m]);
    }
  }

  /// Fragment m: 16 tokens of a tile. y = round(base + scaling · sum), one rounding.
  __device__ void store(float scaling, const UnitSlice& s, int first_column, int m,
                        const Acc& acc) const {
    const int column = first_column + kEach * c.quad;
    const int num = column < s.num_out ? num_rows_ : 0;
    const uint4* const base = base_places();
#pragma unroll
    for (int i = 2 * m; i < 2 * m + 2; ++i) {
      Out* const to = y_[i] + (s.offset + column);
#pragma unroll
      for (int j = 0; j < kOutPieces; ++j) {
        const auto before = base[32 * (kOutPieces * i + j)];
        store_if(i < num, reinterpret_cast<uint4*>(to) + j,
                 results_of_tiles<Out>(before, scaling, &acc[2 * j][2 * (i % 2)]));
      }
    }
  }
  __device__ static void round_deltas(Acc& acc, float scaling) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[j][i] = rounded_delta<Out>(scaling, acc[j][i]);
    }
  }
};

}  // namespace loratory::gpu
