#pragma once

#include "gpu/kernels/kernel_context.cuh"
#include "gpu/kernels/wgmma.cuh"

namespace loratory::gpu {

/// The shrink of the layer whose x is the activation that a gated expand writes (down). A work tile
/// is a split of its K, in the order of every other shrink: strips from 0, added in order. A column
/// tile of the activation meets A while it is in shared memory. A warpgroup has 32 ranks.
template <typename C>
class NextShrink {
 public:
  __device__ explicit NextShrink(const Context<C>& context) : c(context), p(context.p) {}

  __device__ void begin(const WorkTile& work) {
    rank_ = work.slot < 0 ? 0 : __ldg(p.next.ranks + work.slot);
    a_ = p.next.a + max(0, work.slot) * p.next.a_slot_stride +
         (first_rank() + row()) * p.next.a_row_stride + 8 * vec();
    left_ = strip_size(size());
    has_tile_ = false;
#pragma unroll
    for (int j = 0; j < kSums; ++j) total_[j] = -0.0F, acc_[j] = 0;
  }
  /// Starts on A of a column tile. All threads of the pair have read the one before.
  __device__ void load(int tile) {
    has_tile_ = true;
    const int column = tile * C::kTileColumns;
#pragma unroll
    for (int i = 0; i < kEachRanks; i += kAtOnce) {
      const int rank = first_rank() + i + row();
      copy_async(a_tile() + swizzle_128b(row_of_rank(i + row()), vec()),
                 a_ + i * p.next.a_row_stride + column, rank < rank_);
    }
  }
  /// Eight columns of that tile of a token.
  __device__ void put(int token, int column, const uint4& eight) const {
    *reinterpret_cast<uint4*>(c.next_x() + swizzle_128b(token, column / 8)) = eight;
  }
  /// Multiplies half of the tile that the pair has loaded and put there; the products are in flight
  /// until finish(). Without a tile, or a rank, nobody looks at the sums. A branch would make the
  /// compiler wait at once.
  __device__ void start() { multiply(0); }
  /// And the other half: a strip may end between them. `others` are in flight too.
  template <typename... Others>
  __device__ void finish(Others&... others) {
    wait_for_wgmma(acc_, others...);
    end_half();
    multiply(kHalfTile);
    wait_for_wgmma(acc_);
    end_half();
  }
  /// Writes the sums of the split over the first columns that it took from gate.
  __device__ void end(const WorkTile& work) {
    if (rank_ == 0) return;
    if (left_ < strip_size(size())) end_strip();  // K ends in it
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = 16 * (c.warp % 4) + 8 * half + c.row;
      auto* const row = reinterpret_cast<float*>(
          c.y_row(token) + (c.slices()[0].offset + work.first_column_tile * C::kTileColumns) *
                               int(sizeof(typename C::Out)));
#pragma unroll
      for (int tile = 0; tile < kEachRanks / 16; ++tile) {
        const int rank = first_rank() + 16 * tile + 4 * c.quad;
        const float* const s = total_ + 8 * tile + 2 * half;
        if (token < work.num_tokens && rank < rank_) {
          *reinterpret_cast<float4*>(row + rank) = {s[0], s[1], s[4], s[5]};
        }
      }
    }
  }

 private:
  static constexpr int kEachRanks = 32, kSums = kEachRanks / 2;
  static constexpr int kHalfTile = C::kTileColumns / 2;
  static constexpr int kAtOnce = 32 * C::kPipelineWarps / 8;
  using Sums = WgmmaSums<kEachRanks>;

  const Context<C> c;
  const KernelParams& p;
  const uint16_t* a_;  // this thread's numbers of tile 0, of the first rank that it copies
  int rank_;
  int left_;  // columns of the strip
  bool has_tile_;
  Sums acc_, total_;

  __device__ int size() const { return p.slices[0].num_out; }
  __device__ int vec() const { return int(threadIdx.x) % 8; }
  __device__ int row() const { return int(threadIdx.x) / 8 % kAtOnce; }
  __device__ int first_rank() const { return c.half() * kEachRanks; }
  __device__ std::byte* a_tile() const { return c.next_a() + first_rank() * C::kWgmmaRowBytes; }

  __device__ void multiply(int column) {
    const uint64_t x = matrix_descriptor(c.next_x()) + column / 8;
    const uint64_t a = matrix_descriptor(a_tile()) + column / 8;
    fence_wgmma();
#pragma unroll
    for (int i = 0; i < kHalfTile / 8; i += 2) {
      wgmma<typename C::Weight>(acc_, x + i, a + i, i > 0 || left_ < strip_size(size()));
    }
    commit_wgmma();
  }
  __device__ void end_half() {
    if (!has_tile_) return;
    left_ -= kHalfTile;
    if (left_ == 0) end_strip();
  }
  __device__ void end_strip() {
#pragma unroll
    for (int j = 0; j < kSums; ++j) total_[j] += acc_[j];
    left_ = strip_size(size());
  }
};

}  // namespace loratory::gpu
