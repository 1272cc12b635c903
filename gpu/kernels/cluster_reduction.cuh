#pragma once

#include "gpu/kernels/h_output.cuh"
#include "gpu/kernels/quantized_scales.cuh"

namespace loratory::gpu {

/// The previous kernel in the stream: x, y and h may be read once it has ended.
struct PriorGrid {
  const bool launches_dependents;  ///< after the wait, not before
  bool waited = false;

  __device__ void wait() {
    // Without launches to come it waits again: to remember would take a register.
    if (launches_dependents && waited) return;
    waited = true;
    wait_for_prior_grid();
    if (launches_dependents) launch_dependents();
  }
};

/// Reduces the sums of the splits to h, over the CTAs of a cluster. Rank blocks alternate between
/// the buffers. In a shrink each CTA receives the sums of its own tokens (reduce-scatter). It says
/// when it has read a block, and nobody sends into that buffer before all CTAs have said so. In a
/// linear every CTA receives all sums. A buffer is then free by the time it is sent to again: who
/// sends block i + 2 has received block i + 1 from every CTA, and each sent it after it had read
/// block i.
template <typename C>
class ClusterReduction {
 public:
  __device__ explicit ClusterReduction(const Context<C>& context) : c(context), p(context.p) {}

  /// Other CTAs may use the barriers once all CTAs have arrived.
  __device__ void init() {
    if constexpr (C::kCrossesCtas) {
      if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < C::kNumBuffers; ++i) init_barrier(c.barriers() + i);
      }
      cluster_arrive();
      has_arrived_ = true;
    }
  }
  /// No CTA leaves before all have arrived.
  __device__ void end() { wait_for_others(); }

  /// Before the first sum of a work tile.
  __device__ void begin_work() {
    if (!C::kHasPairs && blocks_done_ > 0) release();
  }

  /// After reduce_block(): this CTA has read what it received.
  __device__ void release() {
    if constexpr (C::kReduceScatters) {
      wait_for_others();
      cluster_arrive();
      has_arrived_ = true;
    }
  }

  /// All threads call it before the first sum of a block is delivered. The block that last used
  /// this buffer was released kNumBuffers blocks ago. With two buffers the wait for the other CTAs
  /// comes one block later.
  __device__ void begin_block(const WorkTile& work, int block) {
    if constexpr (C::kHasPairs) release();  // until now this CTA had its own sums parked there
    if (C::kNumBuffers == 1 || index(work, block) == 0) wait_for_others();
    if constexpr (C::kCrossesCtas) {
      if (threadIdx.x == 0) {
        expect_bytes(c.barriers() + buffer(work, block), expected_bytes(work, block));
      }
    }
  }

  /// Number of CTAs that a sum goes to.
  static constexpr uint32_t kCopies = C::kCrossesCtas && !C::kReduceScatters ? C::kCluster : 1;

  /// Delivers four sums of a split, or of all that a CTA has summed: ranks j.. of the block. `cta`
  /// is below kCopies.
  __device__ void deliver(const WorkTile& work, int block, int split, int token, int j, float4 sum,
                          int cta) const {
    if constexpr (!C::kDelivers) {
      emit(work, token, block * C::kBlockRanks + j, sum, split > 0);
      return;
    }
    float* const to = c.receive() + buffer(work, block) * C::kReceiveFloats;
    if constexpr (C::kReduceScatters) {
      const int own_token = token / C::kCluster;
      send(to + split * C::kReceiveTile + own_token * C::kRowFloats + j,
           c.barriers() + buffer(work, block), token % C::kCluster, as_bits(sum));
    } else if constexpr (C::kCrossesCtas) {
      send(to + split * C::kReceiveTile + token * C::kRowFloats + j,
           c.barriers() + buffer(work, block), cta, as_bits(sum));
    } else {
      *reinterpret_cast<float4*>(to + split * C::kReceiveTile + token * C::kRowFloats + j) = sum;
    }
  }

  /// h of a block, to shared memory or to p.h. A thread takes four ranks at a time.
  __device__ void reduce_block(const WorkTile& work, int block) {
    if constexpr (!C::kDelivers) return;
    if constexpr (C::kIsQuantized && C::kWide) return reduce_scaled_block(work, block);
    if constexpr (C::kIsQuantized && !C::kWide && !C::kExpands)
      return reduce_narrow_block(work, block);
    if constexpr (C::kCrossesCtas)
      wait_for_bytes(c.barriers() + buffer(work, block), parity(work, block));
    constexpr uint32_t kFours = C::kBlockRanks / 4;
    const uint32_t count = uint32_t(own_tokens(work)) * kFours;
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < count; e += C::kNumThreads) {
      const int own_token = int(e / kFours);
      const int j = int(e % kFours) * 4;
      const int token = C::kReduceScatters ? own_token * C::kCluster + c.cta : own_token;
      const int rank = block * C::kBlockRanks + j;
      if (rank / 16 >= work.num_rank_tiles) continue;
      float4 sums = add_splits(buffer(work, block), own_token, j);
      if constexpr (C::kIsQuantized) sums = scaled_h(sums, factors_of(work, block, j));
      emit(work, token, rank, sums);
    }
  }

  /// After the last block of a work tile.
  __device__ void end_work(const WorkTile& work) {
    blocks_done_ += work.end_block - work.first_block;
  }

 private:
  const Context<C> c;
  const KernelParams& p;
  bool has_arrived_ = false;  // and not waited yet
  int blocks_done_ = 0;
  __device__ void wait_for_others() {
    if constexpr (C::kCrossesCtas) {
      if (has_arrived_) cluster_wait();
      has_arrived_ = false;
    }
  }

  /// Of four ranks of 8-bit A, in a linear.
  __device__ float4 factors_of(const WorkTile& work, int block, int j) const {
    const int rank = block * C::kBlockRanks + j;
    const TileSlice& s = c.slice_of(work, rank / 16, &TileSlice::first_rank_tile);
    return copied_a_factors(c, work, s, block - work.first_block, j, rank - 16 * s.first_rank_tile);
  }

  /// With the factors of 8-bit A and x. A thread has the same ranks of each of its tokens; their
  /// factors arrive while it waits for the sums.
  __device__ void reduce_scaled_block(const WorkTile& work, int block) {
    static_assert(C::kReduceScatters);
    constexpr int kFours = C::kBlockRanks / 4;
    static_assert(C::kNumThreads % kFours == 0);
    const int j = int(threadIdx.x) % kFours * 4, rank = block * C::kBlockRanks + j;
    const int first = int(threadIdx.x) / kFours;
    const int count = rank / 16 < work.num_rank_tiles ? own_tokens(work) : 0;
    float4 of_a = {1, 1, 1, 1};
    float of_x = 1;
    if (first < count) {
      of_x = x_factor(c, work, first * C::kCluster + c.cta);
      const TileSlice& s = c.slice_of(work, rank / 16, &TileSlice::first_rank_tile);
      of_a = a_factors(p, work, s, rank - 16 * s.first_rank_tile);
    }
    wait_for_bytes(c.barriers() + buffer(work, block), parity(work, block));
#pragma unroll 1
    for (int i = first; i < count;) {
      emit(work, i * C::kCluster + c.cta, rank,
           scaled_h(add_splits(buffer(work, block), i, j), of_x, of_a));
      i += C::kNumThreads / kFours;
      if (i < count) of_x = x_factor(c, work, i * C::kCluster + c.cta);
    }
  }

  /// The same of a narrow shrink, whose factors lie in shared memory. All that does not need the
  /// sums comes before the wait for them.
  __device__ void reduce_narrow_block(const WorkTile& work, int block) {
    static_assert(C::kReduceScatters);
    constexpr int kFours = C::kBlockRanks / 4;
    static_assert(C::kNumThreads % kFours == 0);
    const int j = int(threadIdx.x) % kFours * 4, rank = block * C::kBlockRanks + j;
    const int first = int(threadIdx.x) / kFours;
    const int count = rank / 16 < work.num_rank_tiles ? own_tokens(work) : 0;
    float4 of_a{};
    int64_t in_row = 0;  // where these ranks lie in a row of h
    int left = 0;
    float* to = nullptr;
    if (first < count) {
      const TileSlice& s = c.slice_of(work, rank / 16, &TileSlice::first_rank_tile);
      const int of_slice = rank - 16 * s.first_rank_tile;
      of_a = copied_a_factors(c, work, s, block - work.first_block, j, of_slice);
      in_row = s.index * p.h_slice_stride + of_slice;
      left = s.rank - of_slice;
      to = h_row(work, first) + in_row;
    }
    wait_for_bytes(c.barriers() + buffer(work, block), parity(work, block));
#pragma unroll 1
    for (int i = first; i < count;) {
      const float4 sums = add_splits(buffer(work, block), i, j);
      if constexpr (C::kXBytes == 1)
        store_h(to, left, scaled_h(sums, c.x_factors()[i * C::kCluster + c.cta], of_a));
      else
        store_h(to, left, scaled_h(sums, of_a));
      i += C::kNumThreads / kFours;
      if (i < count) to = h_row(work, i) + in_row;
    }
  }
  __device__ float* h_row(const WorkTile& work, int own_token) const {
    return reinterpret_cast<float*>(c.tokens(work.table)[own_token * C::kCluster + c.cta].y);
  }
  /// The first `left` exist.
  __device__ void store_h(float* h, int left, float4 v) const {
    if (p.h_aligned && left >= 4) return store_if(true, h, as_bits(v));
    const float of[] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < left) h[i] = of[i];
    }
  }

  /// Blocks before this one, over all work tiles.
  __device__ int index(const WorkTile& work, int block) const {
    return blocks_done_ + block - work.first_block;
  }
  __device__ int buffer(const WorkTile& work, int block) const {
    return index(work, block) % C::kNumBuffers;
  }
  __device__ int parity(const WorkTile& work, int block) const {
    return index(work, block) / C::kNumBuffers % 2;
  }

  /// The tokens of this CTA, and the bytes that it receives of a block.
  __device__ int own_tokens(const WorkTile& work) const {
    if constexpr (!C::kReduceScatters) return work.num_tokens;
    return (work.num_tokens - c.cta + C::kCluster - 1) / C::kCluster;
  }
  __device__ int expected_bytes(const WorkTile& work, int block) const {
    int num_tiles = C::kRankTiles;
    if (C::kWide) num_tiles = min(num_tiles, work.num_rank_tiles - block * C::kRankTiles);
    return C::kSenders * own_tokens(work) * num_tiles * 64;
  }

  __device__ static uint4 as_bits(float4 v) {
    return {__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)};
  }

  __device__ float4 add_splits(int buffer, int own_token, int j) const {
    const float* const first =
        c.receive() + buffer * C::kReceiveFloats + own_token * C::kRowFloats + j;
    float4 sums[C::kSenders];
#pragma unroll
    for (int g = 0; g < C::kSenders; ++g) {
      sums[g] = *reinterpret_cast<const float4*>(first + g * C::kReceiveTile);
    }
    return tree_sum(sums);
  }

  /// Four sums of a token become h. `rank` counts over the rank tiles of all slices. `adds`: to
  /// what this thread has written before.
  __device__ void emit(const WorkTile& work, int token, int rank, float4 v,
                       bool adds = false) const {
    const TileSlice& s = c.slice_of(work, rank / 16, &TileSlice::first_rank_tile);
    const int j = rank - 16 * s.first_rank_tile;
    if constexpr (C::kExpands && C::kIsQuantized) {
      uint2 hi, lo;
      split_hi_lo<typename C::Split>(v, s.rank - j, hi, lo);
      std::byte* const to = c.permuted_h(token, s.h_column + j);
      *reinterpret_cast<uint32_t*>(to) = hi.x;
      *reinterpret_cast<uint32_t*>(to + 32) = hi.y;
      *reinterpret_cast<uint32_t*>(to + C::kLowBytes) = lo.x;
      *reinterpret_cast<uint32_t*>(to + C::kLowBytes + 32) = lo.y;
    } else if constexpr (C::kExpands) {
      auto* const to =
          reinterpret_cast<uint2*>(c.h_address(token, s.h_column + j / 8 * 8)) + j / 4 % 2;
      split_hi_lo<typename C::Weight>(v, s.rank - j, to[0], to[2]);
    } else {
      write_h(c, work, s, token, j, v, adds);
    }
  }
};

}  // namespace loratory::gpu
