#pragma once

#include "gpu/kernels/cluster_reduction.cuh"
#include "gpu/kernels/quantized_fragments.cuh"

namespace loratory::gpu {

/// The pipeline of a wide shrink of 8-bit A, as WidePipeline: 64 columns of 64 ranks and of up to
/// 32 tokens per stage. A thread copies 16 bytes of a rank, and 16 bytes of a token.
template <typename C>
class QuantizedPipeline {
  static_assert(C::kBlockRanks == 64 && C::kTokens == 32 && C::kNumThreads == 256);

 public:
  __device__ explicit QuantizedPipeline(const Context<C>& context) : c(context), p(context.p) {}

  /// Starts on A, which may be read before the previous kernel has ended.
  __device__ void begin(const WorkTile& work) {
    find_rows(work);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load_a(i * C::kStageBytes, 64 * i);
  }
  /// Starts on x, stage by stage behind A.
  __device__ void begin_x() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      load_x(i * C::kStageBytes, 64 * i);
      commit_copies();
    }
    read_offset_ = 0;
    write_offset_ = kAhead * C::kStageBytes;
    column_ = 64 * kAhead;
  }

  /// K tiles of a split: a multiple of four, which is more than are in flight at once.
  __device__ int num_k_tiles() const { return split_columns() / 64; }

  /// The next stage to multiply. This thread's part of it has arrived.
  __device__ const std::byte* wait_for_stage() const {
    wait_for_copies<kAhead - 1>();
    return c.pipelines() + read_offset_;
  }
  /// Loads the next K tile into the stage before that one, which all threads have read.
  __device__ void refill() {
    if (column_ < C::kSplitsPerCta * split_columns()) {
      load_a(write_offset_, column_);
      load_x(write_offset_, column_);
    }
    commit_copies();
    column_ += 64;
    write_offset_ = read_offset_;
    read_offset_ = read_offset_ == kAhead * C::kStageBytes ? 0 : read_offset_ + C::kStageBytes;
  }

  __device__ static const std::byte* a_of(const std::byte* stage) { return stage; }
  __device__ static const std::byte* x_of(const std::byte* stage) { return stage + C::kABytes; }

 private:
  const Context<C> c;
  const KernelParams& p;

  static constexpr int kAhead = C::kStages - 1;  // stages in flight
  static_assert(kAhead <= 4, "every split has so many K tiles");
  static constexpr int kXInVec = 16 / C::kXBytes;  // columns of a vector of x
  static constexpr int kXVecs = 64 / kXInVec;      // of a token in a stage
  const std::byte* a_from_;                        // this thread's vectors of the first K tile
  const std::byte* x_from_;
  bool a_exists_, x_exists_;
  int column_;                      // of the next K tile to load, counted from the CTA's first
  int write_offset_, read_offset_;  // of the stages to load and to multiply, in bytes

  __device__ static int a_row() { return int(threadIdx.x) / 4; }
  __device__ static int a_vec() { return int(threadIdx.x) % 4; }
  __device__ static int x_row() { return int(threadIdx.x) / kXVecs; }
  __device__ static int x_vec() { return int(threadIdx.x) % kXVecs; }
  __device__ int split_columns() const { return kStripsPerSplit * strip_size(p.num_in); }
  /// Of this CTA.
  __device__ int first_column() const { return c.cta * C::kSplitsPerCta * split_columns(); }

  __device__ void find_rows(const WorkTile& work) {
    const int tile = work.first_block * C::kRankTiles + a_row() / 16;
    const TileSlice& s =
        c.slice_of(work, min(tile, work.num_rank_tiles - 1), &TileSlice::first_rank_tile);
    const int rank = 16 * (tile - s.first_rank_tile) + a_row() % 16;
    a_from_ = s.a + uint64_t(uint32_t(rank)) * s.a_row_bytes + first_column() + 16 * a_vec();
    a_exists_ = rank < s.rank;
    x_exists_ = x_row() < work.num_tokens;
    x_from_ = c.tokens(work.table)[min(x_row(), C::kTokens - 1)].x +
              int64_t{C::kXBytes} * (first_column() + kXInVec * x_vec());
  }

  // A vector of an aligned row exists as a whole or not at all.

  __device__ void load_a(int offset, int column) const {
    const bool exists = a_exists_ && first_column() + column + 16 * a_vec() < p.num_in;
    copy_async(c.pipelines() + offset + swizzle_rows<4>(a_row(), a_vec()), a_from_ + column,
               exists);
  }
  __device__ void load_x(int offset, int column) const {
    if (x_row() >= C::kTokens) return;  // 8-bit x needs half of the threads
    const bool exists = x_exists_ && first_column() + column + kXInVec * x_vec() < p.num_in;
    const int place =
        C::kXBytes == 1 ? swizzle_rows<4>(x_row(), x_vec()) : swizzle_pairs(x_row(), x_vec());
    copy_async(c.pipelines() + offset + C::kABytes + place, x_from_ + int64_t{C::kXBytes} * column,
               exists);
  }
};

/// Multiplies up to 32 tokens with 64 ranks of 8-bit A by mma.sync. A warp takes eight ranks and
/// all tokens, so that no number is widened twice. Tokens are the rows of a fragment.
template <typename C>
class QuantizedProduct {
 public:
  using Sums = float[8];  // two fragments of 16 tokens and 8 ranks

  __device__ explicit QuantizedProduct(const Context<C>& context) : c(context), p(context.p) {}

  __device__ bool has_work(const WorkTile& work) const {
    return rank_tile(work) < work.num_rank_tiles;
  }
  /// Before the first product of a work tile with work.
  __device__ void begin(const WorkTile& work) {
    const TileSlice& s = c.slice_of(work, min(rank_tile(work), work.num_rank_tiles - 1),
                                    &TileSlice::first_rank_tile);
    format_ = quantized(p).of[s.index].a;
  }

  /// Multiplies kColumns columns from `column` on. The result is added to acc, or acc starts from
  /// 0.
  template <int kColumns>
  __device__ void start(const std::byte* x, const std::byte* w, int column, bool adds,
                        Sums& acc) const {
    if (!adds) {
#pragma unroll
      for (int j = 0; j < 8; ++j) acc[j] = 0;
    }
    constexpr int kSteps = kColumns / 16;
    const int first = column / 16, row = 8 * c.warp + c.lane % 8;
    const uint4 v = load_matrices(w + swizzle_rows<4>(row, first + c.lane / 8 % kSteps));
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    StepPair a[4];
    widen<Weight>(format_, words, a);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const StepPair b = a[step];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const StepPair top = load_step(x, 16 * m + c.row, first + step);
        const StepPair bottom = load_step(x, 16 * m + 8 + c.row, first + step);
        mma<Weight>(reinterpret_cast<float(&)[4]>(acc[4 * m]),
                    {top.low, bottom.low, top.high, bottom.high}, b.low, b.high);
      }
    }
  }
  __device__ static void wait(Sums&) {}  // mma.sync is synchronous

  /// Neighbouring lanes exchange two sums each, so that a lane has four ranks of a token.
  __device__ void deliver(const WorkTile& work, const ClusterReduction<C>& reduction, int split,
                          const Sums& sums) const {
    const bool is_odd = c.quad % 2 != 0;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float* const s = sums + 4 * m;
      const float other0 = __shfl_xor_sync(~0U, is_odd ? s[0] : s[2], 1);
      const float other1 = __shfl_xor_sync(~0U, is_odd ? s[1] : s[3], 1);
      const float4 four = is_odd ? make_float4(other0, other1, s[2], s[3])
                                 : make_float4(s[0], s[1], other0, other1);
      const int token = 16 * m + (is_odd ? 8 : 0) + c.row;
      if (token >= work.num_tokens) continue;
      reduction.deliver(work, work.first_block, split, token, 8 * c.warp + c.quad / 2 * 4, four, 0);
    }
  }

 private:
  using Weight = typename C::Weight;

  const Context<C> c;
  const KernelParams& p;
  reference::Dtype format_ = reference::Dtype::f8_e4m3fn;

  __device__ int rank_tile(const WorkTile& work) const {
    return work.first_block * C::kRankTiles + c.warp / 2;
  }
  __device__ StepPair load_step(const std::byte* x, int token, int vec) const {
    if constexpr (C::kXBytes == 1) {
      return widen<Weight>(quantized(p).x_dtype, *reinterpret_cast<const uint32_t*>(
                                                     x + swizzle_rows<4>(token, vec) + 4 * c.quad));
    } else {
      const auto pair = *reinterpret_cast<const uint2*>(
          x + swizzle_pairs(token, 2 * vec + c.quad / 2) + c.quad % 2 * 8);
      return {pair.x, pair.y};
    }
  }
};

}  // namespace loratory::gpu
