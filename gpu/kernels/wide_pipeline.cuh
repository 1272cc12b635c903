#pragma once

#include "gpu/kernels/kernel_context.cuh"
#include "gpu/kernels/wgmma.cuh"

namespace loratory::gpu {

/// The pipeline of a wide shrink. One pipeline per CTA carries the columns of the CTA's splits, 64
/// per stage: a rank block of A and all tokens of the work tile. One stage is read while the others
/// are in flight. A thread copies 16 bytes of every 32nd row.
template <typename C>
class WidePipeline {
  static_assert(C::kAligned);

 public:
  __device__ explicit WidePipeline(const Context<C>& context) : c(context), p(context.p) {}

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
    if constexpr (C::kWgmma) fence_async_proxy();
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
  static constexpr int kRowsAtOnce = C::kNumThreads / 8;
  static constexpr int kRanks = C::kBlockRanks / kRowsAtOnce;  // per thread
  static constexpr int kTokens = C::kTokens / kRowsAtOnce;
  const std::byte* a_from_[kRanks];  // this thread's vectors of the first K tile
  const std::byte* x_from_[kTokens];
  uint32_t existing_;               // bit i: the i-th rank exists; behind the ranks, the tokens
  int column_;                      // of the next K tile to load, counted from the CTA's first
  int write_offset_, read_offset_;  // of the stages to load and to multiply, in bytes

  __device__ static int row() { return int(threadIdx.x / 8); }
  __device__ static int vec() { return int(threadIdx.x % 8); }
  __device__ int split_columns() const { return kStripsPerSplit * strip_size(p.num_in); }
  __device__ int first_column() const {
    return c.cta * C::kSplitsPerCta * split_columns() + 8 * vec();
  }

  __device__ void find_rows(const WorkTile& work) {
    existing_ = 0;
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
      const int in_block = i * kRowsAtOnce + row();
      const int tile = work.first_block * C::kRankTiles + in_block / 16;
      const TileSlice& s =
          c.slice_of(work, min(tile, work.num_rank_tiles - 1), &TileSlice::first_rank_tile);
      const int rank = 16 * (tile - s.first_rank_tile) + in_block % 16;
      a_from_[i] = s.a + uint64_t(uint32_t(rank)) * s.a_row_bytes + 2 * int64_t(first_column());
      existing_ |= uint32_t(rank < s.rank) << i;
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int token = i * kRowsAtOnce + row();
      x_from_[i] = c.tokens(work.table)[token].x + 2 * int64_t(first_column());
      existing_ |= uint32_t(token < work.num_tokens) << (kRanks + i);
    }
  }

  __device__ void load_a(int offset, int column) const {
    load_rows<0>(c.pipelines() + offset + swizzle_128b(row_of_rank(row()), vec()), a_from_, column);
  }
  __device__ void load_x(int offset, int column) const {
    load_rows<kRanks>(c.pipelines() + offset + swizzle_128b(C::kBlockRanks + row(), vec()), x_from_,
                      column);
  }
  /// A vector of an aligned row exists as a whole or not at all.
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
