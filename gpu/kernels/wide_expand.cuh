#pragma once

#include "gpu/kernels/gated_pair.cuh"
#include "gpu/kernels/kernel_context.cuh"
#include "gpu/kernels/output.cuh"
#include "gpu/kernels/quantized_fragments.cuh"
#include "gpu/kernels/quantized_scales.cuh"

namespace loratory::gpu {

/// y of a work tile of up to 32 or 64 tokens, from h in shared memory. A warp computes 32 columns
/// of all tokens at a time, every kTileStep-th of such tiles. Tokens are the 16 rows of a
/// fragment. Column g of n8 tile j is column 8 (g / 2) + 2 j + g % 2, so that a thread owns eight
/// neighbouring columns of a token: one access of y. What loads need of a slice is looked up once
/// for all its tiles.
///
/// A stage of a warp's pipeline has a K tile of B and a base buffer; the base comes with the last K
/// tile of a column tile. Each stage is one group of copies. The first K tiles of B belong to the
/// first groups of y.
template <typename C>
class WideExpand {
 public:
  __device__ explicit WideExpand(const Context<C>& context) : c(context), p(context.p) {}

  /// Starts on B, which may be read before the previous kernel has ended. This warp's pipeline is
  /// free.
  __device__ void begin(const WorkTile& work) {
    begin_loads(work);
#pragma unroll 1
    for (int i = 0; i < C::kNumBStages; ++i) {
      load_k_tile<true, false>(work);
      advance_stage();
    }
    if constexpr (kYComesLate) commit_copies();
  }
  /// Starts on y.
  __device__ void begin_base(const WorkTile& work) {
    begin_loads(work);
#pragma unroll
    for (int i = 0; i < C::kTokenTiles; ++i) {
      y_[i] = reinterpret_cast<Out*>(c.y_row(8 * i + c.row));
    }
    num_rows_ = (work.num_tokens - c.row + 7) / 8;
    is_first_stage_ = true;
    if (!p.add_inputs) fill_base();
#pragma unroll 1
    for (int i = 0; i < C::kNumBStages; ++i) {
      load_k_tile<false, true>(work);
      advance_stage();
      commit_copies();
    }
  }

  __device__ void run(const WorkTile& work) {
    const bool is_usual = p.split_h && !p.two_round;
    int tile = c.first_tile(work);
#pragma unroll 1
    for (int i = C::kGated ? c.half() : 0; tile < work.end_column_tile; ++i) {
      if (!C::kGated && tile >= c.slices()[i + 1].first_column_tile) continue;
      const TileSlice s = c.slices()[i];
      int column = (tile - s.first_column_tile) * C::kTileColumns;
      const int end = end_of_slice(work, i);
      if constexpr (C::kIsQuantized)
        make_quantized_tiles(work, s, column, end);
      else if (C::kRankTiles == 1 && (C::kGated ? c.pair_ranks() : s.rank) <= C::kStageRanks &&
               is_usual)
        make_tiles_of_one_stage(work, s, column, end);
      else
        make_tiles(work, s, column, end);
      tile = s.first_column_tile + column / C::kTileColumns;
    }
  }

 private:
  using Weight = typename C::Split;
  using Out = typename C::Out;
  static_assert(C::kTokenTiles % 2 == 0 && C::kAligned && !C::kShrinks);
  static constexpr int kStep = C::kTileStep * C::kTileColumns;  // to a warp's next tile
  static constexpr int kEach = 8;                               // columns of a thread
  static constexpr int kInVec = 16 / C::kWeightBytes;           // ranks
  static constexpr int kVecs = C::kStageRanks / kInVec;         // of a column in a stage
  static constexpr int kNear =
      8 / kVecs;  // of eight neighbouring columns, those that lanes copy at once
  static constexpr int kFragments = C::kTokenTiles / 2;  // of 16 tokens
  static constexpr int kStagePairBytes = C::kBStageBytes + C::kBaseBytes;
  static constexpr int kOutVecs = kIsFp32<Out> ? 2 : 1;  // of 16 bytes, of eight columns
  using Acc = float[4][4];
  /// Of one stage, the first B is multiplied while y is on its way.
  static constexpr bool kYComesLate = C::kNumBStages == 1 && !C::kIsQuantized;

  /// The slice that is loaded from.
  struct Source {
    const std::byte* b;
    uint32_t row_bytes;
    int rank, num_out, offset;
    int first_column_tile;
    int end;  // of its columns in the work tile, in whole column tiles
  };

  const Context<C> c;
  const KernelParams& p;
  Source from_;
  int load_column_ = 0, load_rank_ = 0, load_slice_ = 0;  // of the next K tile
  std::byte* stage_ = nullptr;                            // to multiply, and then to load into
  Out* y_[C::kTokenTiles];                                // rows of this thread's tokens
  int num_rows_ = 0;                                      // how many of them exist
  bool is_first_stage_ = true;

  __device__ void advance_stage() {
    std::byte* const last = c.b_pipeline() + (C::kNumBStages - 1) * kStagePairBytes;
    stage_ = stage_ == last ? c.b_pipeline() : stage_ + kStagePairBytes;
  }
  /// The end of a slice's columns in the work tile, in whole column tiles.
  __device__ int end_of_slice(const WorkTile& work, int slice) const {
    return (c.end_of_slice(work, slice) - c.slices()[slice].first_column_tile) * C::kTileColumns;
  }

  // --- loads --------------------------------------------------------------------------------

  __device__ void begin_loads(const WorkTile& work) {
    from_ = {.first_column_tile = c.first_tile(work)};  // no slice
    load_column_ = load_rank_ = load_slice_ = 0;
    stage_ = c.b_pipeline();
  }

  /// Loads the next K tile of B into the stage that was just used, and base with the last of a
  /// column tile. Does nothing after the last column tile.
  template <bool kB, bool kBase>
  __device__ void load_k_tile(const WorkTile& work) {
    if (load_column_ >= from_.end && !enter_slice(work)) return;
    if constexpr (kB) load_b();
    load_rank_ += C::kStageRanks;
    if (load_rank_ < (C::kGated ? c.pair_ranks() : from_.rank)) return;
    if constexpr (kBase) load_base();
    load_rank_ = 0;
    load_column_ += kStep;
  }

  /// Finds the slice of the next column tile. False: there is none.
  __device__ bool enter_slice(const WorkTile& work) {
    const int tile = from_.first_column_tile + load_column_ / C::kTileColumns;
    if (tile >= work.end_column_tile) return false;
    const TileSlice& s = c.next_slice_of(tile, load_slice_);
    from_ = {.b = s.b,
             .row_bytes = s.b_row_bytes,
             .rank = s.rank,
             .num_out = s.num_out,
             .offset = s.offset,
             .first_column_tile = s.first_column_tile,
             .end = end_of_slice(work, load_slice_)};
    load_column_ = (tile - s.first_column_tile) * C::kTileColumns;
    return true;
  }

  /// Loads kStageRanks ranks of a column tile of B. A column is stored where its fragment is read:
  /// eight lanes read neighbouring rows, without bank conflicts. Columns beyond the slice repeat
  /// its last one: the products of a column reach no other column.
  __device__ void load_b() const {
    const int vec = c.lane % kVecs, row = c.lane / kVecs;
    const int rank = load_rank_ + kInVec * vec;
    const int valid = max(0, min(kInVec, from_.rank - rank));
    const std::byte* const b = from_.b + C::kWeightBytes * uint32_t(rank);
#pragma unroll
    for (int near = 0; near < 2; near += kNear) {
      const int first = row / kNear * 8 + row % kNear + near;
      std::byte* const to = stage_ + swizzle_rows<kVecs>(row_of_column(first), vec);
#pragma unroll
      for (int i = 0; i < 8 - near; i += max(2, kNear)) {
        const int column = min(load_column_ + first + i, from_.num_out - 1);
        copy_async_some(to + 64 * kVecs * i, row_address(b, uint32_t(column), from_.row_bytes),
                        C::kWeightBytes * valid);
      }
    }
  }

  /// Loads what a thread will add to, to where that thread alone reads it.
  __device__ void load_base() const {
    const int column = load_column_ + kEach * c.quad;
    const int num = column < from_.num_out && p.add_inputs ? num_rows_ : 0;
    uint4* const to = base_vectors();
#pragma unroll
    for (int i = 0; i < C::kTokenTiles; ++i) {
      const Out* const from = y_[i] + (from_.offset + column);
#pragma unroll
      for (int j = 0; j < kOutVecs; ++j) {
        copy_async_if(i < num, to + 32 * (kOutVecs * i + j),
                      reinterpret_cast<const uint4*>(from) + j);
      }
    }
  }
  /// -0 where there is nothing to add: it leaves every sum as it is.
  __device__ void fill_base() {
    const uint4 zeros =
        make_uint4(kMinusZeros<Out>, kMinusZeros<Out>, kMinusZeros<Out>, kMinusZeros<Out>);
#pragma unroll 1
    for (int i = 0; i < C::kNumBStages; ++i) {
#pragma unroll 1
      for (int j = 0; j < C::kTokenTiles * kOutVecs; ++j) {
        base_vectors()[32 * j] = zeros;
      }
      advance_stage();
    }
  }
  /// Eight columns of a token take kOutVecs vectors.
  __device__ uint4* base_vectors() const {
    return reinterpret_cast<uint4*>(stage_ + C::kBStageBytes) + c.lane;
  }

  // --- products -----------------------------------------------------------------------------

  /// The next stage to multiply. All lanes' parts of it have arrived.
  __device__ const std::byte* wait_for_stage() const {
    wait_for_copies<C::kNumBStages - 1>();
    __syncwarp();
    return stage_;
  }
  /// The same, but its y may still be on its way.
  __device__ const std::byte* wait_for_weights() const {
    if (!kYComesLate || !is_first_stage_) return wait_for_stage();
    wait_for_copies<1>();
    __syncwarp();
    return stage_;
  }
  /// Loads the next K tile into that stage, which all lanes have read.
  __device__ void refill(const WorkTile& work) {
    __syncwarp();
    load_k_tile<true, true>(work);
    commit_copies();
    advance_stage();
  }

  /// The fast path for a slice whose ranks fit in one stage: h stays in registers. Each fragment
  /// reads B again, which saves registers. Without ranks h is 0.
  __device__ void make_tiles_of_one_stage(const WorkTile& work, const TileSlice& s, int& column,
                                          int end) {
    uint4 high[kFragments], low[kFragments];
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      const std::byte* const h = h_address(s, m);
      high[m] = load_matrices(h), low[m] = load_matrices(h + 16);
      if (C::kGated && s.rank == 0) high[m] = low[m] = {};
    }
#pragma unroll 1
    for (; column < end; column += kStep) {
      const std::byte* const b = wait_for_stage();
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        if (!exists(work, m)) continue;
        Acc acc = {};
        const Weights w = load_weights(b, 0);
        multiply_h(high[m], w, acc);
        multiply_h(low[m], w, acc);
        store(s.scaling, s, column, m, acc);
      }
      if constexpr (C::kGated) store_activation(s, column);
      refill(work);
    }
  }

  /// For any rank and NumericMode.
  __device__ void make_tiles(const WorkTile& work, const TileSlice& s, int& column, int end) {
#pragma unroll 1
    for (; column < end; column += kStep) {
      Acc acc[kFragments] = {};
#pragma unroll 1
      for (int rank = 0; rank < (C::kGated ? c.pair_ranks() : s.rank); rank += C::kStageRanks) {
        const std::byte* const b = wait_for_weights();
        if (!C::kGated || rank < s.rank) multiply(work, s, rank, b, acc);
        if (rank + C::kStageRanks >= (C::kGated ? c.pair_ranks() : s.rank)) {
          if constexpr (kYComesLate) wait_for_copies<0>();
          store_all(work, s, column, acc);
        }
        is_first_stage_ = false;
        refill(work);
      }
    }
  }

  /// The same with 8-bit B.
  __device__ void make_quantized_tiles(const WorkTile& work, const TileSlice& s, int& column,
                                       int end) {
    float of_h[C::kTokenTiles];
#pragma unroll
    for (int i = 0; i < C::kTokenTiles; ++i) {
      of_h[i] = i < num_rows_ ? h_factor(c, s, 8 * i + c.row) : 0;
    }
#pragma unroll 1
    for (; column < end; column += kStep) {
      Acc acc[kFragments] = {};
      EightFactors factors{};  // without ranks the slot may be none
      if (!C::kGated || s.rank > 0) factors = b_factors(p, work, s, column + kEach * c.quad);
      const int num_ranks = C::kGated ? c.pair_ranks() : s.rank;
#pragma unroll 1
      for (int rank = 0; rank < num_ranks; rank += C::kStageRanks) {
        const std::byte* const b = wait_for_stage();
        if (!C::kGated || rank < s.rank) multiply_bytes(work, s, rank, b, acc);
        if (rank + C::kStageRanks >= num_ranks) {
          scale(of_h, factors, acc);
          store_all(work, s, column, acc);
        }
        refill(work);
      }
    }
  }
  /// Of n8 tile j, sum 2 i + e is column 2 j + e of the eight, and the i-th token of the fragment.
  __device__ static void scale(const float (&of_h)[C::kTokenTiles], const EightFactors& factors,
                               Acc (&acc)[kFragments]) {
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        const int j = e / 4, i = e % 4 / 2;
        acc[m][j][e % 4] =
            __fmul_rn(__fmul_rn(acc[m][j][e % 4], of_h[2 * m + i]), factors.of[2 * j + e % 2]);
      }
    }
  }
  /// As multiply(). A vector has the ranks of a step, of four n8 tiles of B at once.
  __device__ void multiply_bytes(const WorkTile& work, const TileSlice& s, int rank,
                                 const std::byte* b, Acc (&acc)[kFragments]) const {
    const reference::Dtype format = quantized(p).of[s.index].b;
#pragma unroll
    for (int step = 0; step < kVecs; ++step) {
      if (step > 0 && rank + 16 * step >= s.rank) return;
      const uint4 v = load_matrices(b + swizzle_rows<kVecs>(c.lane, step));
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
      Weights w;
      StepPair pairs[4];
      widen<Weight>(format, words, pairs);
#pragma unroll
      for (int j = 0; j < 4; ++j) w.low[j] = pairs[j].low, w.high[j] = pairs[j].high;
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        if (!exists(work, m)) continue;
        const std::byte* const h = h_address(s, m) + 4 * (rank + 16 * step);
        multiply_h(load_matrices(h), w, acc[m]);
        if (p.split_h) multiply_h(load_matrices(h + 16), w, acc[m]);
      }
    }
  }

  __device__ static bool exists(const WorkTile& work, int fragment) {
    return fragment == 0 || 16 * fragment < work.num_tokens;
  }
  /// Where this lane reads h of fragment m.
  __device__ const std::byte* h_address(const TileSlice& s, int m) const {
    return c.h_address(16 * m + c.lane % 16, s.h_column + c.lane / 16 * 8);
  }

  /// 16 ranks of four n8 tiles of B.
  struct Weights {
    uint32_t low[4], high[4];
  };
  __device__ Weights load_weights(const std::byte* b, int first_vec) const {
    Weights w;
    b += swizzle_rows<kVecs>(c.lane / 16 * 8 + c.lane % 8, first_vec + c.lane / 8 % 2);
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const uint4 v = load_matrices(b + 8 * j * 16 * kVecs);
      w.low[j] = v.x, w.high[j] = v.y, w.low[j + 1] = v.z, w.high[j + 1] = v.w;
    }
    return w;
  }

  /// Multiplies a stage in steps of 16 ranks, hi then lo. Steps without a rank are skipped.
  __device__ void multiply(const WorkTile& work, const TileSlice& s, int rank, const std::byte* b,
                           Acc (&acc)[kFragments]) const {
#pragma unroll
    for (int step = 0; step < C::kStageRanks / 16; ++step) {
      if (step > 0 && rank + 16 * step >= s.rank) return;
      const Weights w = load_weights(b, 2 * step);
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        if (!exists(work, m)) continue;
        const std::byte* const h = h_address(s, m) + 4 * (rank + 16 * step);
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

  /// two_round: a delta is rounded before it is added, and its scaling is 1 then.
  __device__ void store_all(const WorkTile& work, const TileSlice& s, int column,
                            Acc (&acc)[kFragments]) {
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      if (!exists(work, m)) continue;
      if (p.two_round) round_deltas(acc[m], s.scaling);
      store(p.two_round ? 1 : s.scaling, s, column, m, acc[m]);
    }
    if constexpr (C::kGated) store_activation(s, column);
  }

  /// Fragment m, 16 tokens of a column tile: y = round(base + scaling · sum), one rounding. A gated
  /// expand puts it where base was.
  __device__ void store(float scaling, const TileSlice& s, int first_column, int m,
                        const Acc& acc) const {
    const int column = first_column + kEach * c.quad;
    const int num = column < s.num_out ? num_rows_ : 0;
    uint4* const base = base_vectors();
#pragma unroll
    for (int i = 2 * m; i < 2 * m + 2; ++i) {
      Out* const to = y_[i] + (s.offset + column);
#pragma unroll
      for (int j = 0; j < kOutVecs; ++j) {
        const auto before = base[32 * (kOutVecs * i + j)];
        const uint4 y = results_of_tiles<Out>(before, scaling, &acc[2 * j][2 * (i % 2)]);
        if constexpr (C::kGated)
          base[32 * i] = y;
        else
          store_if(i < num, reinterpret_cast<uint4*>(to) + j, y);
      }
    }
  }
  /// Of the tokens, each of the pair takes every second one.
  __device__ void store_activation(const TileSlice& s, int first_column) const {
    const GatedPair<C> pair(c);
    const int column = first_column + kEach * c.quad;
    const int num = column < s.num_out ? num_rows_ : 0;
    pair.sync();
#pragma unroll
    for (int i = 0; i < C::kTokenTiles; i += 2) {
      const int mine = i + c.half();
      pair.store(mine < num, pair.activation(base_vectors() + 32 * mine), 8 * mine + c.row, column);
    }
    pair.sync();
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
