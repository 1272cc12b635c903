#pragma once

#include "gpu/kernels/cluster_reduction.cuh"
#include "gpu/kernels/memory_reduction.cuh"
#include "gpu/kernels/quantized_fragments.cuh"

namespace loratory::gpu {

template <typename C>
using Reduction = std::conditional_t<C::kThroughMemory, MemoryReduction<C>, ClusterReduction<C>>;

/// h of a narrow work tile. Every warp streams one strip of A through a pipeline of its own and
/// waits for no other warp. The CTA then adds up the strips.
template <typename C>
class NarrowShrink {
 public:
  __device__ explicit NarrowShrink(const Context<C>& context) : c(context), p(context.p) {}

  /// Starts on A, which may be read before the previous kernel has ended.
  __device__ void begin(const WorkTile& work) {
    strip_ = strip_size(p.num_in);
    num_steps_ = (strip_ + 63) / 64;
    load_block_ = work.first_block;
    load_split_ = load_step_ = load_stage_ = read_stage_ = 0;
#pragma unroll 1
    for (int i = 0; i < C::kStages; ++i) load_k_tile<true, false>(work);
    if constexpr (C::kIsQuantized) {
      find_formats(work, work.first_block);
      copy_a_factors(c, work);
    }
  }
  /// Of 8-bit A: widens the first K tile, or half of it. It waits for A, which pays while the
  /// previous kernel runs.
  __device__ void prepare(const WorkTile& work) {
    if constexpr (C::kColumnsAhead > 0) {
      commit_copies();
      wait_for_copies<0>();
      __syncwarp();
      widen_ahead();
      __syncwarp();
      ahead_.is_valid = true;
      if constexpr (kLoadsNextAhead) {
        load_k_tile<true, false>(work);
        commit_copies();
      }
    }
  }

  /// Starts on x, stage by stage behind A.
  __device__ void begin_x(const WorkTile& work) {
    load_block_ = work.first_block;
    load_split_ = load_step_ = load_stage_ = 0;
#pragma unroll 1
    for (int i = 0; i < C::kStages; ++i) {
      load_k_tile<false, true>(work);
      if constexpr (C::kIsQuantized) {
        if (i == 0) copy_x_factors(c, work);
      }
      commit_copies();
    }
  }

  __device__ void run(const WorkTile& work, Reduction<C>& reduction) {
#pragma unroll 1
    for (int block = work.first_block; block < work.end_block; ++block) {
      if constexpr (C::kIsQuantized) {
        if (block > work.first_block) find_formats(work, block);
      }
#pragma unroll 1
      for (int i = 0; i < C::kSplitsPerCta; i += kAtOnce) {
        Acc acc[kAtOnce] = {};
#pragma unroll
        for (int g = 0; g < kAtOnce; ++g) sum_strip(work, acc[g]);
        __syncthreads();  // the last sums have been read
#pragma unroll
        for (int g = 0; g < kAtOnce; ++g) store_partial(g, acc[g]);
        if (C::kCrossesCtas && i == 0 && block > work.first_block) {
          reduction.reduce_block(work, block - 1);
          reduction.release();
        }
        __syncthreads();
        if (i == 0) reduction.begin_block(work, block);
        add_strips(work, reduction, block, i);
      }
      if constexpr (!C::kCrossesCtas) {
        __syncthreads();  // the sums come from several threads
        reduction.reduce_block(work, block);
      }
    }
    if constexpr (C::kCrossesCtas) reduction.reduce_block(work, work.end_block - 1);
    reduction.end_work(work);
  }

 private:
  using Acc = float[C::kRankTiles][C::kTokenTiles][4];
  static constexpr int kAtOnce = C::kSplitsAtOnce;
  static constexpr uint32_t kAllE4m3fn =  // formats_ of such a block
      uint32_t(reference::Dtype::f8_e4m3fn) * (0x01010101U >> 8 * (4 - C::kRankTiles));
  static constexpr Upper kUpper = C::kTokenTiles > 1 ? Upper::shifted : Upper::in_place;

  const Context<C> c;
  const KernelParams& p;

  // The next K tile to load, and its stage.
  int strip_ = 0, num_steps_ = 0;
  int load_block_ = 0, load_split_ = 0, load_step_ = 0, load_stage_ = 0;
  int read_stage_ = 0;    // to multiply next
  uint32_t formats_ = 0;  // of 8-bit A: a byte for each rank tile of the block
  struct Ahead {
    bool is_valid = false;  // the next K tile is widened as far as kColumnsAhead says
  };
  struct Nothing {};
  std::conditional_t<C::kIsQuantized, Ahead, Nothing> ahead_;

  /// Where the only stage is widened as a whole, A of the next K tile takes its place.
  static constexpr bool kLoadsNextAhead = C::kColumnsAhead == 64 && C::kStages == 1;

  __device__ int first_split() const { return c.cta * C::kSplitsPerCta; }

  // --- loads --------------------------------------------------------------------------------

  /// Loads the next K tile into its stage; does nothing after the last.
  template <bool kA, bool kX>
  __device__ void load_k_tile(const WorkTile& work) {
    if (load_block_ == work.end_block) return;
    std::byte* const to = c.warp_pipeline() + load_stage_ * C::kStageBytes;
    const int split = first_split() + load_split_;
    if constexpr (kA) load_a(work, split, load_step_, to);
    if constexpr (kX) load_x(work, split, load_step_, to + C::kABytes);
    load_stage_ = load_stage_ + 1 == C::kStages ? 0 : load_stage_ + 1;
    if (++load_step_ < num_steps_) return;
    load_step_ = 0;
    if (++load_split_ < C::kSplitsPerCta) return;
    load_split_ = 0;
    ++load_block_;
  }

  // A lane copies 16 bytes of every fourth row, or of every eighth one of 8-bit numbers.

  /// The first column of this lane's vector, and how many of its eight exist. A vector of sixteen
  /// exists as a whole or not at all: rows of 8-bit numbers are aligned.
  template <int kBytes>
  __device__ int column_of(int split, int step) const {
    constexpr int kVecs = 4 * kBytes, kEach = 16 / kBytes;
    return (split * kStripsPerSplit + c.warp) * strip_ + 64 * step + kEach * (c.lane % kVecs);
  }
  __device__ int num_valid(int split, int column) const {
    const int end = min((split * kStripsPerSplit + c.warp + 1) * strip_, p.num_in);
    return max(0, min(8, end - column));
  }

  __device__ void load_a(const WorkTile& work, int split, int step, std::byte* to) const {
    const int column = column_of<C::kWeightBytes>(split, step);
    const int valid = num_valid(split, column);
    if constexpr (kLooksUpOnce)
      load_a_by_slices(work, C::kWeightBytes * int64_t(column), valid, to);
    else
      load_a_by_tiles(work, C::kWeightBytes * int64_t(column), valid, to);
  }
  static constexpr int kVecsOfA = C::kRowBytes / 16, kRowsOfA = 32 / kVecsOfA;  // rows at once
  /// Each slice, not each rank tile: few tokens with 8-bit A are bound by instructions. For
  /// 64 ranks beside 8-bit x registers suffice in clusters of two alone. Of 16-bit A clusters of
  /// eight lose by it, and so does a single rank tile (docs/kernel_trials.md).
  static constexpr bool kLooksUpOnce =
      C::kIsQuantized
          ? C::kTokenTiles == 1 && (C::kXBytes > 1 || C::kRankTiles < 4 || C::kCluster == 2)
          : C::kRankTiles > 1 && C::kCluster < kNumSplits;

  /// Looks up a slice for each rank tile.
  __device__ void load_a_by_tiles(const WorkTile& work, int64_t of_row, int valid,
                                  std::byte* to) const {
#pragma unroll
    for (int i = 0; i < C::kRankTiles; ++i) {
      const int tile = load_block_ * C::kRankTiles + i;
      if (tile >= work.num_rank_tiles) break;
      const TileSlice& s = c.slice_of(work, tile, &TileSlice::first_rank_tile);
      const int rank = 16 * (tile - s.first_rank_tile) + c.lane / kVecsOfA;
      const uint32_t row_bytes = s.a_row_bytes;
      const std::byte* const from = s.a + uint64_t(uint32_t(rank)) * row_bytes + of_row;
      const int left = valid > 0 ? s.rank - rank : 0;
      load_rank_tile(to, 16 * i, from, row_bytes, left, valid);
    }
  }
  /// Looks up each slice once.
  __device__ void load_a_by_slices(const WorkTile& work, int64_t of_row, int valid,
                                   std::byte* to) const {
    int tile = load_block_ * C::kRankTiles, end_of_slice = tile;
    const int end = min(tile + C::kRankTiles, work.num_rank_tiles);
    const std::byte* from = nullptr;
    uint32_t row_bytes = 0;
    int left = 0;  // ranks, from this lane's first on
#pragma unroll 1
    for (; tile < end; ++tile) {
      if (tile == end_of_slice) {
        const TileSlice& s = c.slice_of(work, tile, &TileSlice::first_rank_tile);
        const int rank = 16 * (tile - s.first_rank_tile) + c.lane / kVecsOfA;
        row_bytes = s.a_row_bytes;
        from = s.a + uint64_t(uint32_t(rank)) * row_bytes + of_row;
        left = valid > 0 ? s.rank - rank : 0;
        end_of_slice = (&s + 1)->first_rank_tile;
      }
      from = load_rank_tile(to, 0, from, row_bytes, left, valid);
      left -= 16;
      to += 16 * C::kRowBytes;
    }
  }
  __device__ static int place_of_a(int row, int vec) {
    return C::kWeightBytes == 1 ? swizzle_rows<4>(row, vec) : swizzle_128b(row, vec);
  }
  /// Sixteen ranks. Returns where the next sixteen begin.
  __device__ const std::byte* load_rank_tile(std::byte* to, int first, const std::byte* from,
                                             uint32_t row_bytes, int left, int valid) const {
#pragma unroll
    for (int row = 0; row < 16; row += kRowsOfA) {
      copy_eight_or_none<C::kAligned>(
          to + place_of_a(first + row + c.lane / kVecsOfA, c.lane % kVecsOfA), from,
          row < left ? valid : 0);
      from += kRowsOfA * uint64_t(row_bytes);
    }
    return from;
  }

  /// Where a vector of x lies.
  __device__ static int place_of_x(int token, int vec) {
    if constexpr (C::kXBytes == 1) return swizzle_rows<4>(token, vec);
    return C::kIsQuantized ? swizzle_pairs(token, vec) : swizzle_128b(token, vec);
  }
  __device__ void load_x(const WorkTile& work, int split, int step, std::byte* to) const {
    constexpr int kVecs = C::kXRowBytes / 16, kAtOnce = 32 / kVecs;
    const int column = column_of<C::kXBytes>(split, step);
    const int valid = num_valid(split, column);
#pragma unroll
    for (int row = 0; row < C::kTokens; row += kAtOnce) {
      const int token = row + c.lane / kVecs;
      const std::byte* const from = c.tokens()[token].x + C::kXBytes * int64_t(column);
      copy_eight_or_none<C::kAligned>(to + place_of_x(token, c.lane % kVecs), from,
                                      token < work.num_tokens ? valid : 0);
    }
  }

  // --- products -----------------------------------------------------------------------------

  /// This warp's strip of one split, in steps of 16 columns.
  __device__ void sum_strip(const WorkTile& work, Acc& acc) {
#pragma unroll 1
    for (int step = 0; step < num_steps_; ++step) {
      wait_for_copies<C::kStages - 1>();
      __syncwarp();
      const std::byte* const a = c.warp_pipeline() + read_stage_ * C::kStageBytes;
      if constexpr (C::kIsQuantized) {
        multiply_bytes(a, acc);
      } else {
        multiply(a, 0, acc);
        multiply(a, 4, acc);
      }
      read_stage_ = read_stage_ + 1 == C::kStages ? 0 : read_stage_ + 1;
      __syncwarp();
      if (kLoadsNextAhead && was_widened())
        load_k_tile<false, true>(work);
      else
        load_k_tile<true, true>(work);
      commit_copies();
      if constexpr (C::kIsQuantized) ahead_.is_valid = false;
    }
  }

  /// 32 columns from vector `vec` on. Weights are the rows of a fragment, tokens its columns.
  __device__ void multiply(const std::byte* a, int vec, Acc& acc) const {
    const std::byte* const x = a + C::kABytes;
    uint4 v[C::kTokenTiles];
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
      v[t] = load_matrices(x + swizzle_128b(8 * t + c.lane % 8, vec + c.lane / 8));
    }
#pragma unroll
    for (int i = 0; i < C::kRankTiles; ++i) {
      const int row = 16 * i + c.lane % 16;
      const uint4 first = load_matrices(a + swizzle_128b(row, vec + c.lane / 16));
      const uint4 second = load_matrices(a + swizzle_128b(row, vec + 2 + c.lane / 16));
#pragma unroll
      for (int t = 0; t < C::kTokenTiles; ++t) {
        mma<typename C::Weight>(acc[i][t], first, v[t].x, v[t].y);
        mma<typename C::Weight>(acc[i][t], second, v[t].z, v[t].w);
      }
    }
  }

  /// The formats of the block's rank tiles.
  __device__ void find_formats(const WorkTile& work, int block) {
    formats_ = 0;
#pragma unroll
    for (int i = 0; i < C::kRankTiles; ++i) {
      const int tile = min(block * C::kRankTiles + i, work.num_rank_tiles - 1);
      const int slice = c.slice_of(work, tile, &TileSlice::first_rank_tile).index;
      formats_ |= uint32_t(quantized(p).of[slice].a) << 8 * i;
    }
  }
  /// A step of k16 of a token, vector `vec` of sixteen columns.
  __device__ StepPair load_step_of_x(const std::byte* x, int token, int vec) const {
    if constexpr (C::kXBytes == 1) {
      const auto word =
          *reinterpret_cast<const uint32_t*>(x + swizzle_rows<4>(token, vec) + 4 * c.quad);
      return widen<typename C::Weight>(quantized(p).x_dtype, word);
    } else {
      const auto pair = *reinterpret_cast<const uint2*>(
          x + swizzle_pairs(token, 2 * vec + c.quad / 2) + c.quad % 2 * 8);
      return {pair.x, pair.y};
    }
  }
  /// Two steps of this lane's tokens, from vector `vec` on.
  struct TwoStepsOfX {
    StepPair first[C::kTokenTiles], second[C::kTokenTiles];
  };
  __device__ TwoStepsOfX load_steps_of_x(const std::byte* x, int vec) const {
    TwoStepsOfX out;
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
      out.first[t] = load_step_of_x(x, 8 * t + c.row, vec);
      out.second[t] = load_step_of_x(x, 8 * t + c.row, vec + 1);
    }
    return out;
  }
  /// Sixteen ranks, by two fragments of A.
  __device__ static void multiply_steps(const uint4& first, const uint4& second,
                                        const TwoStepsOfX& x, float (&acc)[C::kTokenTiles][4]) {
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
      mma<typename C::Weight>(acc[t], first, x.first[t].low, x.first[t].high);
      mma<typename C::Weight>(acc[t], second, x.second[t].low, x.second[t].high);
    }
  }
  /// 64 columns of 8-bit A.
  __device__ void multiply_bytes(const std::byte* a, Acc& acc) const {
    if (formats_ == kAllE4m3fn)
      multiply_bytes_as<true>(a, acc);
    else
      multiply_bytes_as<false>(a, acc);
  }
  template <bool kIsE4m3fn>
  __device__ void multiply_bytes_as(const std::byte* a, Acc& acc) const {
#pragma unroll(C::kRankTiles > 2 && C::kCluster == 2 ? 1 : 2)  // no registers left to unroll
    for (int vec = 0; vec < 4; vec += 2) multiply_bytes_or_widened<kIsE4m3fn>(a, vec, acc);
  }
  template <bool kIsE4m3fn>
  __device__ auto format_of(int rank_tile) const {
    if constexpr (kIsE4m3fn)
      return E4m3fn();
    else
      return reference::Dtype(formats_ >> 8 * rank_tile & 0xFF);
  }
  /// 32 columns from vector `vec` of sixteen on, as multiply().
  template <bool kIsE4m3fn>
  __device__ void multiply_bytes(const std::byte* a, int vec, Acc& acc) const {
    const TwoStepsOfX x = load_steps_of_x(a + C::kABytes, vec);
#pragma unroll
    for (int i = 0; i < C::kRankTiles; ++i) {
      const uint4 v = load_matrices(a + swizzle_rows<4>(16 * i + c.lane % 16, vec + c.lane / 16));
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
      StepPair w[4];  // top and bottom rows of either step
      widen<typename C::Weight, kUpper>(format_of<kIsE4m3fn>(i), words, w);
      multiply_steps({w[0].low, w[1].low, w[0].high, w[1].high},
                     {w[2].low, w[3].low, w[2].high, w[3].high}, x, acc[i]);
    }
  }
  template <bool kIsE4m3fn>
  __device__ void multiply_bytes_or_widened(const std::byte* a, int vec, Acc& acc) const {
    if constexpr (C::kColumnsAhead > 0) {
      if (vec < kVecsAhead && ahead_.is_valid) return multiply_widened(a + C::kABytes, vec, acc);
    }
    multiply_bytes<kIsE4m3fn>(a, vec, acc);
  }

  __device__ bool was_widened() const {
    if constexpr (C::kIsQuantized) return ahead_.is_valid;
    return false;
  }

  // --- what is widened ahead ------------------------------------------------------------------

  static constexpr int kVecsAhead = C::kColumnsAhead / 16;  // of a row
  /// A vector of sixteen numbers becomes two: numbers 4 q and 4 q + 1 for q = 0 to 3, the others.
  __device__ static int place_ahead(int row, int vec) {
    return swizzle_rows<2 * kVecsAhead>(row, vec);
  }

  __device__ void widen_ahead() const {
    if (formats_ == kAllE4m3fn)
      widen_ahead_as<true>();
    else
      widen_ahead_as<false>();
  }
  template <bool kIsE4m3fn>
  __device__ void widen_ahead_as() const {
    constexpr int kRows = 32 / kVecsAhead;  // at a time, all of one rank tile
#pragma unroll 1
    for (int first = 0; first < C::kBlockRanks; first += kRows) {
      const int row = first + c.lane / kVecsAhead, vec = c.lane % kVecsAhead;
      const auto v = *reinterpret_cast<const uint4*>(c.warp_pipeline() + swizzle_rows<4>(row, vec));
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
      StepPair w[4];
      widen<typename C::Weight>(format_of<kIsE4m3fn>(first / 16), words, w);
      *reinterpret_cast<uint4*>(c.widened() + place_ahead(row, 2 * vec)) = {w[0].low, w[1].low,
                                                                            w[2].low, w[3].low};
      *reinterpret_cast<uint4*>(c.widened() + place_ahead(row, 2 * vec + 1)) = {
          w[0].high, w[1].high, w[2].high, w[3].high};
    }
  }
  /// As multiply_bytes().
  __device__ void multiply_widened(const std::byte* from, int vec, Acc& acc) const {
    const TwoStepsOfX x = load_steps_of_x(from, vec);
    const std::byte* const a = c.widened();
#pragma unroll
    for (int i = 0; i < C::kRankTiles; ++i) {
      const int row = 16 * i + c.lane % 16, half = c.lane / 16;
      multiply_steps(load_matrices(a + place_ahead(row, 2 * vec + half)),
                     load_matrices(a + place_ahead(row, 2 * vec + 2 + half)), x, acc[i]);
    }
  }

  // --- sums ---------------------------------------------------------------------------------

  __device__ void store_partial(int g, const Acc& acc) const {
    float* const token = c.partial() + (g * kStripsPerSplit + c.warp) * C::kTileFloats +
                         2 * c.quad * C::kRowFloats + c.row;
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < C::kRankTiles; ++i) {
        float* const to = token + 8 * t * C::kRowFloats + 16 * i;
        to[0] = acc[i][t][0];
        to[C::kRowFloats] = acc[i][t][1];
        to[8] = acc[i][t][2];
        to[8 + C::kRowFloats] = acc[i][t][3];
      }
    }
  }

  /// Adds the strips of each split, four sums per thread, and delivers them: one thread for each
  /// CTA that they go to.
  __device__ void add_strips(const WorkTile& work, Reduction<C>& reduction, int block,
                             int first) const {
    constexpr uint32_t kQuads = C::kBlockRanks / 4;
    constexpr uint32_t kCopies = Reduction<C>::kCopies;
    const uint32_t count = uint32_t(work.num_tokens) * kAtOnce * kQuads * kCopies;
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < count; e += C::kNumThreads) {
      const uint32_t j = e / kCopies % kQuads * 4;
      const uint32_t g = e / kCopies / kQuads % kAtOnce;
      const uint32_t token = e / kCopies / kQuads / kAtOnce;
      const float* const from =
          c.partial() + g * kStripsPerSplit * C::kTileFloats + token * C::kRowFloats + j;
      float4 sum = *reinterpret_cast<const float4*>(from);
#pragma unroll
      for (int w = 1; w < kStripsPerSplit; ++w) {
        sum = added(sum, *reinterpret_cast<const float4*>(from + w * C::kTileFloats));
      }
      reduction.deliver(work, block, first_split() + first + int(g), int(token), int(j), sum,
                        int(e % kCopies));
    }
  }
};

}  // namespace loratory::gpu
