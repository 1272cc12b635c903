#pragma once

#include "gpu/kernels/h_output.cuh"
#include "gpu/kernels/quantized_scales.cuh"

namespace loratory::gpu {

/// As ClusterReduction, for CTAs that share a segment without being a cluster: they start one by
/// one, wherever an SM has room, and wait for nobody. Each leaves its sums in p.split_sums. The one
/// that is the last to count itself adds them up, in the same order, and writes h.
template <typename C>
class MemoryReduction {
 public:
  static constexpr uint32_t kCopies = 1;

  __device__ explicit MemoryReduction(const Context<C>& context) : c(context), p(context.p) {}

  // No buffer is used twice.
  __device__ void init() {}
  __device__ void end() {}
  __device__ void begin_work() {}
  __device__ void release() {}
  __device__ void begin_block(const WorkTile&, int) {}
  __device__ void end_work(const WorkTile&) {}

  __device__ void deliver(const WorkTile& work, int block, int split, int token, int j, float4 sum,
                          int) const {
    __stcg(place_of(work, block, split, token, j), sum);
  }

  __device__ void reduce_block(const WorkTile& work, int block) const {
    if (!is_last(work, block)) return;
    constexpr int kFours = C::kBlockRanks / 4;
#pragma unroll 1
    for (int e = int(threadIdx.x); e < work.num_tokens * kFours; e += C::kNumThreads) {
      const int token = e / kFours, j = e % kFours * 4, rank = block * C::kBlockRanks + j;
      if (rank / 16 >= work.num_rank_tiles) continue;
      float4 sums[kNumSplits];
#pragma unroll
      for (int g = 0; g < kNumSplits; ++g) sums[g] = __ldcg(place_of(work, block, g, token, j));
      const TileSlice& s = c.slice_of(work, rank / 16, &TileSlice::first_rank_tile);
      const int of_slice = rank - 16 * s.first_rank_tile;
      float4 sum = tree_sum(sums);
      if constexpr (C::kIsQuantized) {
        sum =
            scaled(sum, token, copied_a_factors(c, work, s, block - work.first_block, j, of_slice));
      }
      write_h(c, work, s, token, of_slice, sum, /*adds=*/false);
    }
  }

 private:
  const Context<C> c;
  const KernelParams& p;

  /// A row of token_indices and a rank tile have kSplitUnitBytes: split by split, sixteen ranks.
  __device__ float4* place_of(const WorkTile& work, int block, int split, int token, int j) const {
    constexpr int kOfSplit = 16 * int(sizeof(float));
    static_assert(kNumSplits * kOfSplit == kSplitUnitBytes);
    const uint32_t row = uint32_t(work.first_token + token);
    const uint32_t tile = (row * uint32_t(p.num_items) + uint32_t(block)) * C::kRankTiles + j / 16;
    std::byte* const sums = p.split_sums + uint64_t{tile} * kSplitUnitBytes + split * kOfSplit;
    return reinterpret_cast<float4*>(sums) + j % 16 / 4;
  }
  __device__ float4 scaled(const float4& sum, int token, const float4& of_a) const {
    if constexpr (C::kXBytes == 1) return scaled_h(sum, c.x_factors()[token], of_a);
    return scaled_h(sum, of_a);
  }
  /// All of this CTA's sums of the block have been delivered. The last one leaves a count of 0.
  __device__ bool is_last(const WorkTile& work, int block) const {
    auto* const answer = reinterpret_cast<int*>(c.barriers());
    __syncthreads();
    if (threadIdx.x == 0) {
      int32_t* const count = p.split_counts + work.first_token * int(p.num_items) + block;
      *answer = count_arrivals(count, 1) + 1 == C::kCluster ? 1 : 0;
      if (*answer != 0) *count = 0;
    }
    __syncthreads();
    return *answer != 0;
  }
};

}  // namespace loratory::gpu
