#pragma once

#include "gpu/kernels/gated_pair.cuh"
#include "gpu/kernels/kernel_context.cuh"
#include "gpu/kernels/next_shrink.cuh"
#include "gpu/kernels/output.cuh"
#include "gpu/kernels/quantized_fragments.cuh"
#include "gpu/kernels/quantized_scales.cuh"
#include "gpu/kernels/wgmma.cuh"

namespace loratory::gpu {

/// y of a work tile of up to 64 tokens, from h in shared memory. A warpgroup computes 64 columns of
/// all tokens at a time, every kTileStep-th of such tiles. Tokens are the rows of the product. The
/// columns of B are stored such that a thread owns eight neighbouring ones of a token, twice.
///
/// A warpgroup's pipeline has stages of 64 ranks of B, which its threads copy for each other. Two
/// base buffers follow, where a thread copies what it alone reads. 8-bit B arrives as bytes, which
/// the thread that copied them widens into one more buffer; wgmma reads that one.
template <typename C>
class WgmmaExpand {
 public:
  __device__ explicit WgmmaExpand(const Context<C>& context)
      : c(context), p(context.p), next_(context) {}

  /// Starts on B, which may be read before the previous kernel has ended. The pipeline is free.
  __device__ void begin(const WorkTile& work) {
    load_ = {.tile = c.first_tile(work)};
    if constexpr (C::kGated) {
      load_.enter(c.slices()[c.half()], work.end_column_tile);
      pair_ranks_ = c.pair_ranks();
    }
    load_rank_ = read_stage_ = 0;
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) load_b(work, i);
    write_stage_ = kAhead;
    if constexpr (C::kShrinksNext) next_.begin(work);
  }
  /// Starts on y.
  __device__ void begin_base(const WorkTile& work) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 16 * (c.warp % 4) + 8 * i + c.row;
      y_[i] = static_cast<Out*>(p.y) + c.rows()[token] * p.y_row_stride;
      exists_[i] = token < work.num_tokens;
    }
    base_ = first_walk(work);
    base_buffer_ = 0;
#pragma unroll 1
    for (int i = 0; i < C::kNumBaseBuffers; ++i) {
      if (!p.add_inputs) fill_base(i);
      load_base(work, i);
    }
    commit_copies();
  }

  __device__ void run(const WorkTile& work) {
    wait_for_copies<0>();
    Walk walk = first_walk(work);
#pragma unroll 1
    for (; enter_tile(work, walk); walk.tile += C::kTileStep) {
      const TileSlice& s = walk.slice;
      Sums acc;
      if constexpr (C::kWidens)
        multiply_bytes(work, walk, acc);
      else
        multiply(work, walk, acc);
      // y of this tile was requested with the stage after the tile kNumBaseBuffers before it.
      if constexpr (kAhead >= C::kNumBaseBuffers) wait_for_copies<C::kNumBaseBuffers - 1>();
      if (p.two_round) round_deltas(s.scaling, acc);
      store(p.two_round ? 1 : s.scaling, walk, acc);
      if constexpr (!C::kGated) load_base(work, base_buffer_);
      base_buffer_ = 1 - base_buffer_;
    }
    if constexpr (C::kShrinksNext) multiply_last(work);
  }

 private:
  using Weight = typename C::Split;
  using Out = typename C::Out;
  using Sums = WgmmaSums<C::kTileColumns>;
  static_assert(C::kAligned && C::kPipelineWarps == 4 && C::kNumBPipelines == 2 &&
                C::kTileColumns == 64 && C::kStageRanks == kPanelRanks && C::kNumBaseBuffers == 2);
  static constexpr int kAhead = C::kNumBStages - (C::kWidens ? 0 : 1);  // stages in flight
  static constexpr int kNumThreads = 32 * C::kPipelineWarps;
  static constexpr int kEach = 8;                        // neighbouring columns of a thread
  static constexpr int kOutVecs = kIsFp32<Out> ? 2 : 1;  // of 16 bytes, of eight columns

  /// A walk through the column tiles of a warpgroup. What it needs of a slice stays in registers:
  /// reading it from shared memory would delay each stage.
  struct Walk {
    int tile;
    int end = 0;    // of the slice's column tiles in the work tile
    int index = 0;  // of the slice
    TileSlice slice;

    __device__ void enter(const TileSlice& next, int its_end) { slice = next, end = its_end; }
  };

  struct Nothing {
    __device__ explicit Nothing(const Context<C>&) {}
  };

  const Context<C> c;
  const KernelParams& p;
  std::conditional_t<C::kShrinksNext, NextShrink<C>, Nothing> next_;
  Walk load_, base_;                      // to the next K tile of B, and to the next base
  int load_rank_ = 0;                     // of that K tile
  int pair_ranks_ = 0;                    // of a gated expand
  int write_stage_ = 0, read_stage_ = 0;  // to load into, and to multiply
  int base_buffer_ = 0;                   // of that base
  Out* y_[2];                             // rows of this thread's tokens
  bool exists_[2];                        // whether these tokens exist

  __device__ int warpgroup() const { return c.warp / C::kPipelineWarps; }
  __device__ int thread() const { return int(threadIdx.x) % kNumThreads; }
  __device__ std::byte* stage_address(int stage) const {
    return c.b_pipeline() + stage * C::kBStageBytes;
  }
  /// This thread's vectors of a base buffer, kNumThreads vectors apart.
  __device__ uint4* base(int buffer) const {
    return reinterpret_cast<uint4*>(c.base_buffers() + buffer * C::kBaseBytes) + thread();
  }

  /// A gated expand walks through one slice alone.
  __device__ Walk first_walk(const WorkTile& work) const {
    Walk out{.tile = c.first_tile(work)};
    if constexpr (C::kGated) out.enter(load_.slice, load_.end);
    return out;
  }
  /// False: the walk has ended.
  __device__ bool enter_tile(const WorkTile& work, Walk& walk) const {
    if (walk.tile < walk.end) return true;
    if (C::kGated || walk.tile >= work.end_column_tile) return false;
    const TileSlice& next = c.next_slice_of(walk.tile, walk.index);
    walk.enter(next, c.end_of_slice(work, walk.index));
    return true;
  }

  // --- loads --------------------------------------------------------------------------------

  /// Loads the next K tile of B; does nothing after the last. A column is stored where its n8 tile
  /// is read. Columns beyond the slice are 0.
  __device__ void load_b(const WorkTile& work, int stage) {
    if (load_rank_ == 0 && !enter_tile(work, load_)) return;
    const TileSlice& s = load_.slice;
    if constexpr (C::kWidens) {
      load_bytes(s, stage);
      return end_load(s);
    }
    constexpr int kVecs = kPanelRanks / 8, kAtOnce = kNumThreads / kVecs;
    const int vec = thread() % kVecs, row = thread() / kVecs;
    static_assert(kAtOnce == 16);
    const int rank = load_rank_ + 8 * vec;
    const int valid = max(0, min(8, s.rank - rank));
    const int first = (load_.tile - s.first_column_tile) * C::kTileColumns + row;
    const std::byte* from = row_address(s.b, uint32_t(first), s.b_row_bytes) + 2 * rank;
    std::byte* const to = stage_address(stage);
    const int offset = swizzle_128b(row_of_column(row), vec);
#pragma unroll
    for (int i = 0; i < C::kTileColumns; i += kAtOnce) {
      const bool exists = first + i < s.num_out;
      copy_async_some(to + i / 32 * 32 * C::kWgmmaRowBytes + (i % 32 == 0 ? offset : later(offset)),
                      from, exists ? 2 * valid : 0);
      from += uint64_t(kAtOnce) * s.b_row_bytes;
    }
    end_load(s);
  }
  /// Sixteen columns later: four rows, which have the other half of the swizzle.
  __device__ static int later(int offset) { return (offset + 4 * C::kWgmmaRowBytes) ^ 4 * 16; }
  /// How many are loaded and multiplied for a column tile.
  __device__ int num_ranks(const TileSlice& s) const { return C::kGated ? pair_ranks_ : s.rank; }
  __device__ void end_load(const TileSlice& s) {
    load_rank_ += kPanelRanks;
    if (load_rank_ < num_ranks(s)) return;
    load_rank_ = 0;
    load_.tile += C::kTileStep;
  }

  /// Loads what a thread will add to in the next column tile.
  __device__ void load_base(const WorkTile& work, int buffer) {
    if (!enter_tile(work, base_)) return;
    for_vectors(base_, [&](int, bool exists, Out* at, int vec) {
      copy_async_if(exists && (C::kGated || p.add_inputs), base(buffer) + kNumThreads * vec, at);
    });
    base_.tile += C::kTileStep;
  }
  /// -0 where there is nothing to add: it leaves every sum as it is.
  __device__ void fill_base(int buffer) const {
    const uint4 zeros =
        make_uint4(kMinusZeros<Out>, kMinusZeros<Out>, kMinusZeros<Out>, kMinusZeros<Out>);
#pragma unroll
    for (int i = 0; i < 4 * kOutVecs; ++i) base(buffer)[kNumThreads * i] = zeros;
  }

  /// Calls access(first sum, exists, address in y, number of the vector) for each vector of this
  /// thread in a column tile: both tokens, both halves of the columns.
  template <typename Access>
  __device__ void for_vectors(const Walk& walk, Access access) const {
    const TileSlice& s = walk.slice;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column =
          (walk.tile - s.first_column_tile) * C::kTileColumns + 32 * half + kEach * c.quad;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Out* const at = y_[i] + (s.offset + column);
#pragma unroll
        for (int j = 0; j < kOutVecs; ++j) {
          access(16 * half + 8 * j + 2 * i, exists_[i] && column < s.num_out,
                 at + kEach / kOutVecs * j, kOutVecs * (2 * half + i) + j);
        }
      }
    }
  }

  // --- products -----------------------------------------------------------------------------

  /// A column tile, 64 ranks at a time. Products run while the stage before is refilled, which the
  /// whole warpgroup has read by then.
  __device__ void multiply(const WorkTile& work, const Walk& walk, Sums& acc) {
    const TileSlice& s = walk.slice;
#pragma unroll
    for (int j = 0; j < C::kTileColumns / 2; ++j) acc[j] = 0;
#pragma unroll 1
    for (int rank = 0; rank < num_ranks(s); rank += kPanelRanks) {
      wait_for_copies<kAhead - 1>();
      fence_async_proxy();
      sync_readers();
      start(s, rank, stage_address(read_stage_), acc);
      if constexpr (C::kShrinksNext) next_.start();
      if (C::kGated && rank == 0) load_next_base(work, walk);
      load_b(work, write_stage_);
      commit_copies();
      write_stage_ = read_stage_;
      read_stage_ = read_stage_ == kAhead ? 0 : read_stage_ + 1;
      if constexpr (C::kShrinksNext)
        next_.finish(acc);
      else
        wait_for_wgmma(acc);
    }
  }
  /// Of a stage of B; in a gated expand also of what a pair gave each other, y and activation.
  __device__ void sync_readers() const {
    if constexpr (C::kGated)
      GatedPair<C>(c).sync();
    else
      sync_warpgroup(warpgroup());
  }
  /// The tile before this one has left its base buffer.
  __device__ void load_next_base(const WorkTile& work, const Walk& walk) {
    if (walk.tile > c.first_tile(work)) load_base(work, 1 - base_buffer_);
  }
  __device__ void multiply_last(const WorkTile& work) {
    wait_for_copies<0>();
    fence_async_proxy();
    sync_readers();
    next_.start();
    next_.finish();
    next_.end(work);
  }
  /// Starts the products of a stage in steps of 16 ranks, hi then lo. Steps without a rank are
  /// skipped. A full stage is straight-line code, and its products are in flight on return. Between
  /// branches the compiler makes each product wait for the one before.
  __device__ void start(const TileSlice& s, int rank, const std::byte* stage, Sums& acc) const {
    const uint32_t panel = uint32_t(s.h_column + rank) / kPanelRanks;
    const uint64_t h = matrix_descriptor(c.h()) + panel * (2 * C::kLowBytes / 16);
    const uint64_t b = matrix_descriptor(stage);
    if (p.split_h && s.rank - rank > kPanelRanks - 16) {
      fence_wgmma();
#pragma unroll
      for (int i = 0; i < kPanelRanks / 8; i += 2) {
        wgmma<Weight>(acc, h + i, b + i, i > 0 || rank > 0);
        wgmma<Weight>(acc, h + i + C::kLowBytes / 16, b + i, true);
      }
      commit_wgmma();
    } else {
#pragma unroll 1
      for (int i = 0; i < kPanelRanks / 8 && rank + 8 * i < s.rank; i += 2) {
        fence_wgmma();
        wgmma<Weight>(acc, h + i, b + i, i > 0 || rank > 0);
        commit_wgmma();
        wait_for_wgmma(acc);
        if (!p.split_h) continue;
        fence_wgmma();
        wgmma<Weight>(acc, h + i + C::kLowBytes / 16, b + i, true);
        commit_wgmma();
        wait_for_wgmma(acc);
      }
    }
  }

  // --- products of 8-bit B ------------------------------------------------------------------

  static constexpr int kVecsEach = C::kTileColumns * kPanelRanks / 16 / kNumThreads;

  /// This thread's vectors of a stage, kNumThreads vectors apart: 16 ranks of a column each.
  __device__ std::byte* own_bytes(int stage) const { return stage_address(stage) + 16 * thread(); }
  __device__ int own_column() const { return thread() / 4; }
  __device__ int own_ranks() const { return thread() % 4; }  // in sixteens

  __device__ void load_bytes(const TileSlice& s, int stage) const {
    const int rank = load_rank_ + 16 * own_ranks();
    const int valid = max(0, min(16, s.rank - rank));
    const int first = (load_.tile - s.first_column_tile) * C::kTileColumns + own_column();
#pragma unroll
    for (int i = 0; i < kVecsEach; ++i) {
      const int column = min(first + i * kNumThreads / 4, s.num_out - 1);
      copy_async_some(own_bytes(stage) + 16 * kNumThreads * i,
                      row_address(s.b, uint32_t(column), s.b_row_bytes) + rank, valid);
    }
  }
  /// Where load_b() would have put the numbers.
  __device__ void widen_own(reference::Dtype format, int stage) const {
    uint4 bytes[kVecsEach];
#pragma unroll
    for (int i = 0; i < kVecsEach; ++i) {
      bytes[i] = *reinterpret_cast<const uint4*>(own_bytes(stage) + 16 * kNumThreads * i);
    }
    widen_vectors<Weight>(format, bytes, [&](int i, int j) {
      const int column = own_column() + i * kNumThreads / 4;
      const int row = column / 32 * 32 + row_of_column(column % 32);
      return c.widened_b() + swizzle_128b(row, 2 * own_ranks() + j);
    });
  }

  /// As multiply(), and with the factors of h and B.
  __device__ void multiply_bytes(const WorkTile& work, const Walk& walk, Sums& acc) {
    const TileSlice& s = walk.slice;
    const reference::Dtype format = quantized(p).of[s.index].b;
    const int column = (walk.tile - s.first_column_tile) * C::kTileColumns + kEach * c.quad;
    const EightFactors of_b[2] = {factors_of(work, s, column), factors_of(work, s, column + 32)};
#pragma unroll
    for (int j = 0; j < C::kTileColumns / 2; ++j) acc[j] = 0;
#pragma unroll 1
    for (int rank = 0; rank < num_ranks(s); rank += kPanelRanks) {
      wait_for_copies<kAhead - 1>();
      sync_readers();  // all have read the numbers before these
      widen_own(format, read_stage_);
      fence_async_proxy();
      sync_warpgroup(warpgroup());
      start(s, rank, c.widened_b(), acc);
      if (C::kGated && rank == 0) load_next_base(work, walk);
      load_b(work, read_stage_);
      commit_copies();
      read_stage_ = read_stage_ == C::kNumBStages - 1 ? 0 : read_stage_ + 1;
      wait_for_wgmma(acc);
    }
    scale(s, of_b, acc);
  }
  /// Of a gated expand, a slice may have no rank here, and rows no slot.
  __device__ EightFactors factors_of(const WorkTile& work, const TileSlice& s, int column) const {
    if (C::kGated && s.rank == 0) return {};
    return b_factors(p, work, s, column);
  }
  /// Sum 4 j + 2 i + e is that of token i and column 2 j + e of this thread's.
  __device__ void scale(const TileSlice& s, const EightFactors (&of_b)[2], Sums& acc) const {
    const int token = 16 * (c.warp % 4) + c.row;
    const float of_h[2] = {h_factor(c, s, token), h_factor(c, s, token + 8)};
#pragma unroll
    for (int n = 0; n < C::kTileColumns / 2; ++n) {
      const int j = n / 4 % 4;
      acc[n] = __fmul_rn(__fmul_rn(acc[n], of_h[n / 2 % 2]), of_b[n / 16].of[2 * j + n % 2]);
    }
  }

  // --- results ------------------------------------------------------------------------------

  /// two_round: a delta is rounded before it is added, and its scaling is 1 then.
  __device__ static void round_deltas(float scaling, Sums& acc) {
#pragma unroll
    for (float& sum : acc) sum = rounded_delta<Out>(scaling, sum);
  }
  __device__ void store(float scaling, const Walk& walk, const Sums& acc) {
    if constexpr (C::kGated) return store_activation(scaling, walk, acc);
    for_vectors(walk, [&](int sum, bool exists, Out* at, int vec) {
      const uint4 before = base(base_buffer_)[kNumThreads * vec];
      store_if(exists, at, results_of_tiles<Out>(before, scaling, acc + sum));
    });
  }
  /// Of the two halves of the columns, each of the pair takes one.
  __device__ void store_activation(float scaling, const Walk& walk, const Sums& acc) {
    const GatedPair<C> pair(c);
    uint4* const y = base(base_buffer_);
    for_vectors(walk, [&](int sum, bool, Out*, int vec) {
      y[kNumThreads * vec] = results_of_tiles<Out>(y[kNumThreads * vec], scaling, acc + sum);
    });
    pair.sync();
    if constexpr (C::kShrinksNext) {
      next_.load(walk.tile);
      commit_copies();
    }
    const int of_tile = 32 * c.half() + kEach * c.quad;
    const int column = walk.tile * C::kTileColumns + of_tile;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 16 * (c.warp % 4) + 8 * i + c.row;
      const uint4 eight = pair.activation(y + kNumThreads * (2 * c.half() + i));
      pair.store(exists_[i] && column < walk.slice.num_out, eight, token, column);
      if constexpr (C::kShrinksNext) next_.put(token, of_tile, eight);
    }
  }
};

}  // namespace loratory::gpu
