#pragma once

#include "gpu/kernels/kernel_context.cuh"
#include "gpu/kernels/quantized_fragments.cuh"
#include "gpu/kernels/quantized_scales.cuh"
#include "gpu/kernels/wgmma.cuh"

namespace loratory::gpu {

/// The pipeline of a wide shrink of 8-bit A by wgmma, as WidePipeline: 64 columns of 64 ranks and
/// of up to 64 tokens per stage. A thread copies 16 bytes of a rank. While the products of a K tile
/// run, it widens its bytes of the next one into one of two buffers, which wgmma reads. 8-bit x is
/// treated alike; x of 16 bits is read where it arrives.
template <typename C>
class WideningPipeline {
  static_assert(C::kBlockRanks == 64 && C::kTokens == 64 && C::kNumThreads == 256);

 public:
  __device__ explicit WideningPipeline(const Context<C>& context) : c(context), p(context.p) {}

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
    read_offset_ = buffer_ = 0;
    write_offset_ = kAhead * C::kStageBytes;
    column_ = 64 * kAhead;
  }
  /// Before the first product of a work tile.
  __device__ void widen_first() {
    wait_for_copies<kAhead - 1>();
    widen();
  }

  /// K tiles of a split: a multiple of four, which is more than are in flight at once.
  __device__ int num_k_tiles() const { return split_columns() / 64; }

  /// The next stage to multiply. This thread's part of it has been widened. The fence follows the
  /// products of the last stage: while they run it takes ten times as long.
  __device__ const std::byte* wait_for_stage() const {
    fence_async_proxy();
    return c.pipelines() + read_offset_;
  }
  /// Loads the next K tile into the stage before that one, which all threads have read. Widens the
  /// K tile behind that one.
  __device__ void refill() {
    if (column_ < num_columns()) {
      load_a(write_offset_, column_);
      load_x(write_offset_, column_);
    }
    commit_copies();
    column_ += 64;
    write_offset_ = read_offset_;
    read_offset_ = read_offset_ == kAhead * C::kStageBytes ? 0 : read_offset_ + C::kStageBytes;
    buffer_ = C::kWidenedBytes - buffer_;
    wait_for_copies<kAhead - 1>();
    if (column_ - 64 * kAhead < num_columns()) widen();
  }

  __device__ const std::byte* a_of(const std::byte*) const { return widened(); }
  __device__ const std::byte* x_of(const std::byte* stage) const {
    if constexpr (C::kXBytes == 1) return widened() + C::kBlockRanks * C::kWgmmaRowBytes;
    return stage + C::kABytes;
  }

 private:
  const Context<C> c;
  const KernelParams& p;

  static constexpr int kAhead = C::kStages - 1;  // stages in flight
  static_assert(kAhead <= 4, "every split has so many K tiles");
  static constexpr int kXInVec = 16 / C::kXBytes;       // columns of a vector of x
  static constexpr int kXVecs = 64 / kXInVec;           // of a token in a stage
  static constexpr int kXAtOnce = 256 / kXVecs;         // tokens
  static constexpr int kXEach = C::kTokens / kXAtOnce;  // of a thread
  const std::byte* a_from_;                             // this thread's vectors of the first K tile
  const std::byte* x_from_[kXEach];
  uint32_t existing_;  // bit 0: the rank exists; then the tokens
  bool tile_exists_;   // the rank is of a tile that is multiplied
  reference::Dtype format_ = reference::Dtype::f8_e4m3fn;
  int column_;                      // of the next K tile to load, counted from the CTA's first
  int write_offset_, read_offset_;  // of the stages to load and to multiply, in bytes
  int buffer_;                      // that the stage to multiply is widened into, in bytes

  __device__ static int a_row() { return int(threadIdx.x) / 4; }
  __device__ static int a_vec() { return int(threadIdx.x) % 4; }
  __device__ static int x_row() { return int(threadIdx.x) / kXVecs; }
  __device__ static int x_vec() { return int(threadIdx.x) % kXVecs; }
  __device__ int split_columns() const { return kStripsPerSplit * strip_size(p.num_in); }
  __device__ int num_columns() const { return C::kSplitsPerCta * split_columns(); }
  /// Of this CTA.
  __device__ int first_column() const { return c.cta * num_columns(); }
  __device__ std::byte* widened() const {
    return c.pipelines() + C::kStages * C::kStageBytes + buffer_;
  }
  /// What this thread alone copies, reads and widens.
  __device__ std::byte* own_bytes(int offset) const {
    return c.pipelines() + offset + 16 * threadIdx.x;
  }

  __device__ void find_rows(const WorkTile& work) {
    const int tile = work.first_block * C::kRankTiles + a_row() / 16;
    const TileSlice& s =
        c.slice_of(work, min(tile, work.num_rank_tiles - 1), &TileSlice::first_rank_tile);
    const int rank = 16 * (tile - s.first_rank_tile) + a_row() % 16;
    a_from_ = s.a + uint64_t(uint32_t(rank)) * s.a_row_bytes + first_column() + 16 * a_vec();
    existing_ = uint32_t(rank < s.rank);
    tile_exists_ = tile < work.num_rank_tiles;
    format_ = quantized(p).of[s.index].a;
#pragma unroll
    for (int i = 0; i < kXEach; ++i) {
      const int token = i * kXAtOnce + x_row();
      x_from_[i] = c.tokens(work.table)[token].x +
                   int64_t{C::kXBytes} * (first_column() + kXInVec * x_vec());
      existing_ |= uint32_t(token < work.num_tokens) << (1 + i);
    }
  }

  // A vector of an aligned row exists as a whole or not at all.

  __device__ void load_a(int offset, int column) const {
    const bool exists = first_column() + column + 16 * a_vec() < p.num_in;
    copy_async(own_bytes(offset), a_from_ + column, exists ? existing_ & 1 : 0);
  }
  __device__ void load_x(int offset, int column) const {
    const bool exists = first_column() + column + kXInVec * x_vec() < p.num_in;
    std::byte* const to =
        C::kXBytes == 1 ? own_bytes(offset + C::kABytes)
                        : c.pipelines() + offset + C::kABytes + swizzle_128b(x_row(), x_vec());
#pragma unroll
    for (int i = 0; i < kXEach; ++i) {
      copy_async(to + i * kXAtOnce * C::kWgmmaRowBytes, x_from_[i] + int64_t{C::kXBytes} * column,
                 exists ? existing_ & 2U << i : 0);
    }
  }

  /// The stage to multiply next, whose bytes have arrived.
  __device__ void widen() const {
    if (tile_exists_) widen_own(format_, read_offset_, row_of_rank(a_row()));
    if constexpr (C::kXBytes == 1) {
      widen_own(quantized(p).x_dtype, read_offset_ + C::kABytes, C::kBlockRanks + x_row());
    }
  }
  __device__ void widen_own(reference::Dtype format, int from, int row) const {
    const uint4 bytes[1] = {*reinterpret_cast<const uint4*>(own_bytes(from))};
    widen_vectors<typename C::Weight>(
        format, bytes, [&](int, int j) { return widened() + swizzle_128b(row, 2 * a_vec() + j); });
  }
};

}  // namespace loratory::gpu
