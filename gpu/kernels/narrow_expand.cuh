#pragma once

#include "gpu/kernels/gated_pair.cuh"
#include "gpu/kernels/kernel_context.cuh"
#include "gpu/kernels/output.cuh"
#include "gpu/kernels/quantized_fragments.cuh"
#include "gpu/kernels/quantized_scales.cuh"

namespace loratory::gpu {

/// y of a work tile of up to eight tokens, from h in shared memory. A warp computes 64 columns at a
/// time. Columns are the rows of a fragment, tokens its columns. Row 8 h + g of fragment t is
/// column 8 g + 2 t + h, so that a thread owns eight neighbouring columns of a token: one access of
/// y, and eight lanes access one line. The tokens of a thread are q and q + 4, so that four tokens
/// or fewer cost half.
template <typename C>
class NarrowExpand {
 public:
  __device__ explicit NarrowExpand(const Context<C>& context) : c(context), p(context.p) {}

  /// Starts on B, which may be read before the previous kernel has ended. This warp's pipeline is
  /// free.
  __device__ void begin(const WorkTile& work) {
    load_tile_ = c.first_tile(work);
    load_rank_ = load_stage_ = load_slice_ = read_stage_ = slice_ = 0;
    if constexpr (C::kIsQuantized) of_bytes_ = {};
#pragma unroll 1
    for (int i = 0; i < C::kNumBStages; ++i) load_k_tile(work);
    commit_copies();
  }
  /// Of 8-bit B: widens the first stages of a tile, and loads its next ones into them. It waits for
  /// B, which pays while the previous kernel runs.
  __device__ void prepare(const WorkTile& work) {
    const int tile = c.first_tile(work);
    if (tile >= work.end_column_tile || c.warp >= C::kWarpsAhead) return;
    const TileSlice& s = c.next_slice_of(tile, slice_);
    wait_for_copies<0>();
    __syncwarp();
    const int most = C::kStagesAhead > 1 ? quantized(p).stages_ahead : 1;
    int stages = 0;
#pragma unroll 1
    do {
      widen_stage(quantized(p).of[s.index].b, stages++);
    } while (stages < most && stages * C::kStageRanks < s.rank);
    __syncwarp();
    of_bytes_.widened_ranks = stages * C::kStageRanks;
    if constexpr (kLoadsNextAhead) {
#pragma unroll 1
      for (; of_bytes_.num_next < stages && load_rank_ > 0; ++of_bytes_.num_next) load_k_tile(work);
      commit_copies();
    }
  }
  /// Looks up the first tile: in an expand before it waits for the previous kernel.
  __device__ void find_first(const WorkTile& work) {
    const int tile = c.first_tile(work);
    if (tile >= work.end_column_tile) return;
    if constexpr (C::kIsQuantized)
      of_bytes_.tile = tile_at(tile);
    else
      find_ranks(tile);
  }
  /// Starts on y.
  __device__ void begin_base(const WorkTile& work) {
    base_tile_ = c.first_tile(work);
    base_buffer_ = base_slice_ = 0;
#pragma unroll 1
    for (int i = 0; i < C::kNumBaseBuffers; ++i) {
      if (!p.add_inputs) fill_base();
      load_base(work);
      advance<C::kNumBaseBuffers>(base_buffer_);
    }
  }

  __device__ void run(const WorkTile& work) {
    commit_copies();
    if constexpr (C::kIsQuantized) {
      if constexpr (C::kShrinks) find_first(work);
      if constexpr (C::kNumBStages > 1) wait_for_copies<1>();  // all stages are of one group
      return run_bytes(work);
    }
    wait_for_copies<kYComesLate ? 1 : 0>();
    int tile = c.first_tile(work);
    if (C::kShrinks) find_first(work);
#pragma unroll 1
    for (bool is_first = true; tile < work.end_column_tile;) {
      make_tile(work, tile, is_first);
      is_first = false;
      tile += C::kTileStep;
      if (tile < work.end_column_tile) find_ranks(tile);
    }
  }

 private:
  using Weight = typename C::Split;
  using Out = typename C::Out;
  static constexpr int kEach = 8;                        // columns of a thread
  static constexpr int kWords = kIsFp32<Out> ? 8 : 4;    // of eight columns
  static constexpr int kInVec = 16 / C::kWeightBytes;    // ranks
  static constexpr int kVecs = C::kStageRanks / kInVec;  // of a column in a stage
  static constexpr int kWideVecs = C::kStageRanks / 8;   // once its numbers have 16 bits
  static constexpr int kFragments = C::kTileColumns / 16;
  using Acc = float[kFragments][4];
  /// The first B is multiplied while y is on its way. A gated expand has no register left for it.
  static constexpr bool kYComesLate = !C::kGated && !C::kIsQuantized;
  /// The only stage is filled again before y is written. A linear gains nothing by it, and gated
  /// expands of two stages spill.
  static constexpr bool kLoadsBeforeY = !C::kShrinks && C::kNumBStages == 1;

  /// Of 8-bit B: behind the stages that are widened ahead, the next ones of the tile are loaded.
  static constexpr bool kLoadsNextAhead = C::kRankTiles > 1;

  const Context<C> c;
  const KernelParams& p;
  // The next K tile of B to load and its stage; the next base to load; the next stage to multiply.
  int load_tile_ = 0, load_rank_ = 0, load_stage_ = 0, load_slice_ = 0;
  int base_tile_ = 0, base_buffer_ = 0, base_slice_ = 0;
  int read_stage_ = 0, slice_ = 0;
  int num_ranks_ = 0, h_column_ = 0;  // of the tile to multiply
  /// A column tile, for this thread.
  struct ColumnTile {
    int num_ranks, h_column, slice;
    int left;    // columns from this thread's first on; none or fewer: nothing to write
    int column;  // of y, or of the activation
    float scaling;
    bool has_one_factor;  // of B
  };
  struct OfBytes {
    int widened_ranks = 0;                   // of the first tile
    int num_next = 0;                        // stages of it that are on their way again
    int load_factors = 0, read_factors = 0;  // buffers: of the next tile to load, of this one
    ColumnTile tile{};                       // the first one
  };
  struct Nothing {};
  std::conditional_t<C::kIsQuantized, OfBytes, Nothing> of_bytes_;

  template <int kNum>
  __device__ static void advance(int& stage) {
    stage = stage + 1 == kNum ? 0 : stage + 1;
  }

  // --- loads --------------------------------------------------------------------------------

  /// Loads the next K tile of B into its stage; does nothing after the last.
  __device__ void load_k_tile(const WorkTile& work) {
    if (load_tile_ >= work.end_column_tile) return;
    const TileSlice& s = c.next_slice_of(load_tile_, load_slice_);
    load_b(s, c.b_pipeline() + load_stage_ * C::kBStageBytes);
    if constexpr (C::kIsQuantized) copy_factors(work, s);
    advance<C::kNumBStages>(load_stage_);
    load_rank_ += C::kStageRanks;
    if (load_rank_ < (C::kGated ? c.pair_ranks() : s.rank)) return;
    load_rank_ = 0;
    load_tile_ += C::kTileStep;
    if constexpr (C::kIsQuantized) advance<C::kNumFactorBuffers>(of_bytes_.load_factors);
  }

  /// Behind a stage that all lanes have read.
  __device__ void load_next(const WorkTile& work) {
    __syncwarp();
    load_k_tile(work);
  }

  /// Loads kStageRanks ranks of a column tile of B.
  __device__ void load_b(const TileSlice& s, std::byte* to) const {
    const int vec = c.lane % kVecs, first = c.lane / kVecs;
    const int rank = load_rank_ + kInVec * vec;
    const int valid = min(kInVec, s.rank - rank);
    const int column = (load_tile_ - s.first_column_tile) * C::kTileColumns + first;
    const uint32_t row_bytes = s.b_row_bytes;
    const std::byte* const from =
        s.b + uint64_t(uint32_t(column)) * row_bytes + C::kWeightBytes * rank;
    const int left = valid > 0 ? s.num_out - column : 0;
    if (s.rank % kInVec == 0)
      load_columns<true>(to, from, row_bytes, left, valid);
    else
      load_columns<false>(to, from, row_bytes, left, valid);
  }
  /// The factors of the tile's columns, with its first ranks: a lane copies two. If there is only
  /// one, it comes eight times, as often as a thread has columns. 0 where there are no ranks: the
  /// slot may be none.
  __device__ void copy_factors(const WorkTile& work, const TileSlice& s) {
    if (load_rank_ > 0) return;
    const bool exist = !C::kGated || s.rank > 0;
    const WeightScale& scale = quantized(p).of[s.index].b_scale;
    float* const factors = c.b_factors() + C::kTileColumns * of_bytes_.load_factors;
    if (has_one_factor(scale)) {
      if (c.lane < kEach) copy_four_async(factors + c.lane, only_factor(scale, work.slot), exist);
      return;
    }
    float* const to = factors + 2 * c.lane;
    const int column = (load_tile_ - s.first_column_tile) * C::kTileColumns + 2 * c.lane;
    FactorWalk factor(scale, work.slot, column);
    if (column < s.num_out) copy_four_async(to, factor.at(), exist);
    factor.advance();
    if (column + 1 < s.num_out) copy_four_async(to + 1, factor.at(), exist);
  }
  /// kWhole: a vector has all its ranks, or none.
  template <bool kWhole>
  __device__ void load_columns(std::byte* to, const std::byte* from, uint32_t row_bytes, int left,
                               int valid) const {
    constexpr int kAtOnce = 32 / kVecs;
#pragma unroll
    for (int i = 0; i < C::kTileColumns; i += kAtOnce) {
      std::byte* const vec = to + swizzle_columns<kVecs>(i + c.lane / kVecs, c.lane % kVecs);
      if constexpr (kWhole)
        copy_eight_or_none<C::kAligned>(vec, from, i < left ? valid : 0);
      else if constexpr (C::kWeightBytes == 1)
        copy_async_some(vec, from, i < left ? valid : 0);
      else
        copy_eight<C::kAligned>(vec, from, i < left ? valid : 0);
      from += kAtOnce * uint64_t(row_bytes);
    }
  }

  /// Loads what this thread will add to in the next column tile, to where this thread alone reads
  /// it; does nothing after the last.
  __device__ void load_base(const WorkTile& work) {
    if (!p.add_inputs || base_tile_ >= work.end_column_tile) return;
    const TileSlice& s = c.next_slice_of(base_tile_, base_slice_);
    const int column = column_of(s, base_tile_);
    base_tile_ += C::kTileStep;
    const int valid = s.num_out - column;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (valid > 0 && token_of(i) < work.num_tokens) copy_base(i, y_at(s, i, column), valid);
    }
  }
  __device__ void copy_base(int i, const std::byte* y, int valid) {
    if constexpr (C::kAligned) {
#pragma unroll
      for (int j = 0; j < kWords / 4; ++j) copy_async(base_word(i, 4 * j), y + 16 * j, true);
    } else {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        auto* const word = reinterpret_cast<Out*>(base_word(i, j * kWords / kEach));
        if (j < valid) word[j % (kEach / kWords)] = reinterpret_cast<const Out*>(y)[j];
      }
    }
  }
  /// -0 where there is nothing to add.
  __device__ void fill_base() {
#pragma unroll
    for (int j = 0; j < 2 * kWords; ++j) {
      *reinterpret_cast<uint32_t*>(base_word(j / kWords, j % kWords)) = kMinusZeros<Out>;
    }
  }
  /// A word of what this thread adds to. Lanes lie 16 bytes apart.
  __device__ std::byte* base_word(int i, int word) const {
    return c.base_buffers() + base_buffer_ * C::kBaseBytes +
           ((i * kWords + word) / 4 * 32 + c.lane) * 16 + word % 4 * 4;
  }

  /// The two tokens of this thread.
  __device__ int token_of(int i) const { return 4 * i + c.quad; }

  /// The columns of this thread in a tile, and where they lie in a row of y.
  __device__ int column_of(const TileSlice& s, int tile) const {
    return (tile - s.first_column_tile) * C::kTileColumns + kEach * c.row;
  }
  __device__ std::byte* y_at(const TileSlice& s, int i, int column) const {
    return c.y_row(token_of(i)) + int64_t(s.offset + column) * int64_t(sizeof(typename C::Out));
  }

  __device__ const std::byte* b_stage() const {
    return c.b_pipeline() + read_stage_ * C::kBStageBytes;
  }

  // --- products -----------------------------------------------------------------------------

  __device__ void find_ranks(int tile) {
    const TileSlice& s = c.next_slice_of(tile, slice_);
    num_ranks_ = s.rank, h_column_ = s.h_column;
  }
  __device__ void make_tile(const WorkTile& work, int tile, bool is_first) {
    const TileSlice& s = C::kGated ? c.next_slice_of(tile, slice_) : c.slices()[slice_];
    const int num_ranks = num_ranks_, h_column = h_column_;
    Acc acc = {};
#pragma unroll 1
    for (int rank = 0; rank < (C::kGated ? c.pair_ranks() : num_ranks); rank += C::kStageRanks) {
      if (!kYComesLate || C::kNumBStages > 1 || !is_first || rank > 0)
        wait_for_copies<C::kNumBStages - 1>();
      __syncwarp();
      if (!C::kGated || rank < num_ranks)
        multiply(b_stage(), h_column + rank, num_ranks - rank, acc);
      advance<C::kNumBStages>(read_stage_);
      if constexpr (kLoadsBeforeY) load_next(work);
      if (rank + C::kStageRanks >= (C::kGated ? c.pair_ranks() : num_ranks))
        finish_tile(work, s, tile, is_first, acc);
      if constexpr (!kLoadsBeforeY) load_next(work);
      commit_copies();
    }
  }

  /// The same with 8-bit B.
  __device__ void run_bytes(const WorkTile& work) {
    int tile = c.first_tile(work);
    if (tile >= work.end_column_tile) return;
    ColumnTile t = of_bytes_.tile;
#pragma unroll 1
    while (true) {
      make_tile_of_bytes(work, t);
      tile += C::kTileStep;
      if (tile >= work.end_column_tile) return;
      t = tile_at(tile);
    }
  }
  __device__ ColumnTile tile_at(int tile) {
    const TileSlice& s = c.next_slice_of(tile, slice_);
    const int column = column_of(s, tile);
    return {.num_ranks = s.rank,
            .h_column = s.h_column,
            .slice = s.index,
            .left = s.num_out - column,
            .column = C::kGated ? column : s.offset + column,
            .scaling = s.scaling,
            .has_one_factor = has_one_factor(quantized(p).of[s.index].b_scale)};
  }
  __device__ void make_tile_of_bytes(const WorkTile& work, const ColumnTile& t) {
    static_assert(C::kNumBaseBuffers == 1);
    Acc acc = {};
    const int num_ranks = C::kGated ? c.pair_ranks() : t.num_ranks;
#pragma unroll 1
    for (int rank = 0; rank < num_ranks; rank += C::kStageRanks) {
      const bool is_widened = C::kWarpsAhead > 0 && rank < of_bytes_.widened_ranks;
      const bool has_next = C::kWarpsAhead > 0 && kLoadsNextAhead && of_bytes_.num_next > 0;
      if (has_next) --of_bytes_.num_next;
      const bool has_ranks = !C::kGated || rank < t.num_ranks;
      if (is_widened) {
        if (has_ranks) multiply(c.widened(read_stage_), t.h_column + rank, t.num_ranks - rank, acc);
      } else {
        wait_for_copies<C::kNumBStages - 1>();
        __syncwarp();
        if (has_ranks)
          multiply_bytes(quantized(p).of[t.slice].b, t.h_column + rank, t.num_ranks - rank, acc);
      }
      advance<C::kNumBStages>(read_stage_);
      if (rank + C::kStageRanks >= num_ranks) finish_tile_of_bytes(work, t, acc);
      __syncwarp();
      if (!has_next) load_k_tile(work);
      commit_copies();
    }
    of_bytes_.widened_ranks = 0;
  }
  __device__ void finish_tile_of_bytes(const WorkTile& work, const ColumnTile& t, Acc& acc) {
    scale(work, t, acc);
    advance<C::kNumFactorBuffers>(of_bytes_.read_factors);
    // For base: of as many K tiles as there are stages, the wait for the last one was for it, too.
    const bool is_widened = C::kWarpsAhead > 0 && t.num_ranks <= of_bytes_.widened_ranks;
    if (C::kNumBStages == 1 || is_widened || t.num_ranks <= (C::kNumBStages - 1) * C::kStageRanks)
      wait_for_copies<0>();
    if (p.two_round) round_deltas(acc, t.scaling);
    const float scaling = p.two_round ? 1 : t.scaling;
    if constexpr (C::kGated) {
      store_activation(work, t.column, t.left > 0, scaling, acc);
    } else if (t.left > 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (token_of(i) >= work.num_tokens) continue;
        std::byte* const y =
            c.tokens()[token_of(i)].y + int64_t(t.column) * int64_t(sizeof(typename C::Out));
        store_token(y, i, t.left, scaling, acc);
      }
    }
    load_base(work);
  }

  /// Of sixteen ranks, numbers 4 q and 4 q + 1 for q = 0 to 3, then the others. Eight lanes that
  /// read or write at once have four columns of either of two neighbouring eights, so that they
  /// share no bank.
  __device__ void widen_stage(reference::Dtype format, int stage) const {
    if (format == reference::Dtype::f8_e4m3fn)
      widen_stage_of(E4m3fn(), stage);
    else
      widen_stage_of(format, stage);
  }
  template <typename Format>
  __device__ void widen_stage_of(Format format, int stage) const {
    constexpr int kAtOnce = 2;
    const std::byte* const from = c.b_pipeline() + stage * C::kBStageBytes;
    std::byte* const to = c.widened(stage);
#pragma unroll 1
    for (int first = 0; first < C::kTileColumns * kVecs / 32; first += kAtOnce) {
      uint32_t words[4 * kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        reinterpret_cast<uint4&>(words[4 * i]) = *reinterpret_cast<const uint4*>(
            from + swizzle_columns<kVecs>(column_to_widen(first + i), c.lane % kVecs));
      }
      StepPair wide[4 * kAtOnce];
      widen<Weight>(format, words, wide);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const StepPair* const w = wide + 4 * i;
        const int column = column_to_widen(first + i), vec = 2 * (c.lane % kVecs);
        *reinterpret_cast<uint4*>(to + swizzle_columns<kWideVecs>(column, vec)) = {
            w[0].low, w[1].low, w[2].low, w[3].low};
        *reinterpret_cast<uint4*>(to + swizzle_columns<kWideVecs>(column, vec + 1)) = {
            w[0].high, w[1].high, w[2].high, w[3].high};
      }
    }
  }
  /// The column of the vector that this lane widens as its i-th.
  __device__ int column_to_widen(int i) const {
    if constexpr (kVecs == 1) return c.lane + 32 * i;
    static_assert(kVecs == 1 || kVecs == 4);
    const int of_pair = c.lane / 8 + 4 * i, second = c.lane / 4 % 2;
    return of_pair / 8 * 16 + second * 8 + (of_pair % 8 ^ second);
  }

  /// Multiplies a stage in steps of 16 ranks. Steps without a rank are skipped.
  __device__ void multiply(const std::byte* b, int h_column, int left, Acc& acc) const {
#pragma unroll(C::kHBytes == 1 ? 1 : C::kStageRanks / 16)  // the code for 8-bit h needs registers
    for (int step = 0; step < C::kStageRanks / 16; ++step) {
      if (step > 0 && left <= 16 * step) return;
      uint4 h, w[kFragments];
      load_step(b, h_column, step, h, w);
      keep_loads_ahead();
      multiply_fragments(w, h, acc);
    }
  }
  __device__ void load_step(const std::byte* b, int h_column, int step, uint4& h,
                            uint4 (&w)[kFragments]) const {
    const int column = c.lane % 8 * 8 + c.lane / 8 % 2;  // of fragment 0
    h = load_h(h_column + 16 * step);
#pragma unroll
    for (int t = 0; t < kFragments; ++t) {
      w[t] = load_matrices(b + swizzle_columns<kWideVecs>(column + 2 * t, 2 * step + c.lane / 16));
    }
  }
  /// hi of all, then lo: neighbouring products do not wait for each other. 8-bit h has no lo.
  template <int kNum>
  __device__ void multiply_fragments(const uint4 (&w)[kNum], const uint4& h,
                                     float (*acc)[4]) const {
#pragma unroll
    for (int i = 0; i < kNum; ++i) mma<Weight>(acc[i], w[i], h.x, h.y);
    if constexpr (!C::kIsQuantized || C::kHBytes > 1) {
      if (!C::kIsQuantized && !p.split_h) return;
#pragma unroll
      for (int i = 0; i < kNum; ++i) mma<Weight>(acc[i], w[i], h.z, h.w);
    }
  }
  /// The same with 8-bit B.
  __device__ void multiply_bytes(reference::Dtype format, int h_column, int left, Acc& acc) const {
    if (format == reference::Dtype::f8_e4m3fn)
      multiply_bytes_of(E4m3fn(), h_column, left, acc);
    else
      multiply_bytes_of(format, h_column, left, acc);
  }
  /// A vector has the ranks of a step; two fragments are read at once.
  template <typename Format>
  __device__ void multiply_bytes_of(Format format, int h_column, int left, Acc& acc) const {
    constexpr bool kIsRare = std::is_same_v<Format, reference::Dtype>;
    const std::byte* const b = b_stage();
    const int column = c.lane % 8 * 8 + c.lane / 8 % 2 + c.lane / 16 * 2;  // of fragments 0 and 1
#pragma unroll(C::kHBytes == 1 || kIsRare ? 1 : kVecs)
    for (int step = 0; step < kVecs; ++step) {
      if (step > 0 && left <= 16 * step) return;
      const uint4 h = load_h(h_column + 16 * step);
      uint4 of_two[kFragments / 2];
#pragma unroll
      for (int i = 0; i < kFragments / 2; ++i) {
        of_two[i] = load_matrices(b + swizzle_columns<kVecs>(column + 4 * i, step));
      }
      keep_loads_ahead();
#pragma unroll
      for (int i = 0; i < kFragments / 2; ++i) {
        const uint32_t words[4] = {of_two[i].x, of_two[i].y, of_two[i].z, of_two[i].w};
        StepPair w[4];  // top and bottom columns of either fragment
        widen<Weight>(format, words, w);
        const uint4 both[2] = {{w[0].low, w[1].low, w[0].high, w[1].high},
                               {w[2].low, w[3].low, w[2].high, w[3].high}};
        multiply_fragments(both, h, acc + 2 * i);
      }
    }
  }
  /// Of fragment t, sum 2 j + i is column 2 t + j of the eight, and token i of the two. Only 8-bit
  /// h has factors.
  __device__ void scale(const WorkTile& work, const ColumnTile& tile, Acc& acc) {
    const float* const from = c.b_factors() + C::kTileColumns * of_bytes_.read_factors +
                              (tile.has_one_factor ? 0 : kEach * c.row);
    const float4 low = reinterpret_cast<const float4*>(from)[0];
    const float4 high = reinterpret_cast<const float4*>(from)[1];
    const float factors[kEach] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if constexpr (C::kHBytes == 1) scale_by_h(work, tile, acc);
#pragma unroll
    for (int t = 0; t < kFragments; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[t][i] = __fmul_rn(acc[t][i], factors[2 * t + i / 2]);
    }
  }
  __device__ void scale_by_h(const WorkTile& work, const ColumnTile& tile, Acc& acc) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (token_of(i) >= work.num_tokens) continue;
      const float factor = c.h_factors()[tile.slice * C::kTokens + token_of(i)];
#pragma unroll
      for (int t = 0; t < kFragments; ++t) {
        acc[t][i] = __fmul_rn(acc[t][i], factor);
        acc[t][2 + i] = __fmul_rn(acc[t][2 + i], factor);
      }
    }
  }

  /// 16 ranks of eight tokens: hi of the first eight ranks, hi of the last eight, then lo of both.
  /// Column n of the fragment is token n / 2, plus four if n is odd.
  __device__ uint4 load_h(int column) const {
    const int token = c.lane % 8 / 2 + c.lane % 2 * 4;
    return load_matrices(c.h_address(token, column + c.lane / 8 % 2 * 8) + c.lane / 16 * 16);
  }

  // --- results ------------------------------------------------------------------------------

  /// Writes y, or the activation, and requests the next base.
  __device__ void finish_tile(const WorkTile& work, const TileSlice& s, int tile, bool is_first,
                              Acc& acc) {
    // Unless the ranks took all stages, the first y may still be in flight, or each y where there
    // are fewer buffers than stages.
    constexpr int kTooFew = (C::kNumBStages > 1 ? C::kNumBStages - 1 : 1) * C::kStageRanks;
    if (((kYComesLate && is_first) || C::kNumBaseBuffers < C::kNumBStages) &&
        (C::kGated ? c.pair_ranks() : s.rank) <= kTooFew)
      wait_for_copies<0>();
    if (p.two_round) round_deltas(acc, s.scaling);
    store_tile(work, s, tile, p.two_round ? 1 : s.scaling, acc);
    load_base(work);
    advance<C::kNumBaseBuffers>(base_buffer_);
  }
  __device__ static void round_deltas(Acc& acc, float scaling) {
#pragma unroll
    for (int i = 0; i < 4 * kFragments; ++i) {
      acc[i / 4][i % 4] = rounded_delta<Out>(scaling, acc[i / 4][i % 4]);
    }
  }

  __device__ void store_tile(const WorkTile& work, const TileSlice& s, int tile, float scaling,
                             const Acc& acc) const {
    const int column = column_of(s, tile);
    const int valid = s.num_out - column;
    if constexpr (C::kGated) return store_activation(work, column, valid > 0, scaling, acc);
    if (valid <= 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (token_of(i) >= work.num_tokens) continue;
#pragma unroll
      for (int j = 0; j < kWords; j += 4) {
        const uint4 base = *reinterpret_cast<const uint4*>(base_word(i, j));
        store_vector(y_at(s, i, column) + 4 * j, valid - j * kEach / kWords,
                     results(base, scaling, i, acc + j / 2));
      }
    }
  }
  /// Of the two tokens, each of the pair writes one.
  __device__ void store_activation(const WorkTile& work, int column, bool exists, float scaling,
                                   const Acc& acc) const {
    static_assert(C::kAligned && !kIsFp32<Out>);
    const GatedPair<C> pair(c);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      auto* const y = reinterpret_cast<uint4*>(base_word(i, 0));
      *y = results(*y, scaling, i, acc);
    }
    pair.sync();
    const int token = token_of(c.half());
    pair.store(exists && token < work.num_tokens,
               pair.activation(reinterpret_cast<const uint4*>(base_word(c.half(), 0))), token,
               column);
    pair.sync();
  }
  /// The same of one token, whose columns lie at `y`.
  __device__ void store_token(std::byte* y, int i, int valid, float scaling, const Acc& acc) const {
#pragma unroll
    for (int j = 0; j < kWords; j += 4) {
      const uint4 base = *reinterpret_cast<const uint4*>(base_word(i, j));
      store_vector(y + 4 * j, valid - j * kEach / kWords, results(base, scaling, i, acc + j / 2));
    }
  }
  /// 16 bytes of y, from fragments 0 to 3, or from two of them for fp32 y.
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
  /// The first `valid` columns exist.
  __device__ static void store_vector(std::byte* y, int valid, const uint4& v) {
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
