#pragma once

#include "gpu/kernels/fragments.cuh"
#include "gpu/kernels/work_tile.cuh"
#include "gpu/plan/swizzle.hpp"

namespace loratory::gpu {

/// Everything that a kernel's code depends on at compile time. Out is the type of y: Weight or
/// float.
template <typename Weight_, typename Out_, LoraOp kOp_, LoraVariant kVariant>
struct Config : KernelShape<kVariant, kOp_, int(sizeof(Out_))> {
  using Weight = Weight_;
  using Split = Weight_;  ///< of h beside B
  using Out = Out_;
  static constexpr LoraOp kOp = kOp_;
  static constexpr int kWeightBytes = 2, kXBytes = 2, kHBytes = 4;
  static constexpr bool kIsQuantized = false;
  static constexpr bool kCrossesCtas = Config::kCluster > 1 && Config::kShrinks;
};

/// What the parts of a kernel share: parameters, shared memory and the identity of the thread. The
/// parts keep copies, not references, because an object that is pointed to would live in memory and
/// not in registers.
template <typename C>
struct Context {
  const KernelParams& p;
  std::byte* const shared;

  const int cta = rank_in_cluster();
  // Shuffled, so that the compiler knows it to be equal in all lanes.
  const int warp = __shfl_sync(~0U, int(threadIdx.x) / 32, 0);
  // An unsigned remainder takes fewer instructions, but makes kernels of 8-bit weights spill.
  const int lane = C::kIsQuantized || C::kWide ? int(threadIdx.x) % 32 : int(threadIdx.x % 32);
  const int row = lane / 4;  // of a fragment: a weight row or a token
  const int quad = lane % 4;

  __device__ Context(const KernelParams& params, std::byte* shared_memory)
      : p(params), shared(shared_memory) {}

  __device__ static int rank_in_cluster() {
    if constexpr (C::kThroughMemory) return int(blockIdx.x) % C::kCluster;
    return C::kCluster > 1 ? cluster_rank() : 0;
  }

  // Shared memory. Addresses are computed anew each time: registers are scarcer than additions.

  static_assert(C::kHFactorBytes == 0 || C::kHFactorBytes >= 4 * kMaxSlices * C::kTokens);
  static_assert((kMaxSlices + 1) * sizeof(TileSlice) +
                    C::kTokens * (C::kKeepsRows ? sizeof(int) : sizeof(TileToken)) <=
                C::kWorkBytes);
  /// The slices of a work tile, then their totals.
  __device__ TileSlice* slices(int table = 0) const {
    return reinterpret_cast<TileSlice*>(shared + (C::kNumTables > 1 ? table * C::kWorkBytes : 0));
  }
  __device__ TileToken* tokens(int table = 0) const {
    return reinterpret_cast<TileToken*>(slices(table) + kMaxSlices + 1);
  }
  /// Instead of tokens(), if kKeepsRows: the row of each token in h and y.
  __device__ int* rows() const { return reinterpret_cast<int*>(slices() + kMaxSlices + 1); }
  /// One for each buffer of receive().
  __device__ uint64_t* barriers() const {
    return reinterpret_cast<uint64_t*>(shared + C::kNumTables * C::kWorkBytes);
  }
  /// Of an expand, which has no barriers: the router weight of each token.
  __device__ float* weights() const {
    return reinterpret_cast<float*>(shared + C::kNumTables * C::kWorkBytes);
  }
  /// Of an expand with 8-bit h: [TileSlice::index][token]
  __device__ float* h_factors() const { return weights() + C::kTableWeights; }
  /// Of a narrow shrink of 8-bit A: [rank, from the first block of the work tile on]
  __device__ float* a_factors() const {
    return reinterpret_cast<float*>(shared + C::kNumTables * C::kWorkBytes + 128);
  }
  /// [token]
  __device__ float* x_factors() const { return a_factors() + C::kFactorBlocks * C::kBlockRanks; }
  /// Of this warp: [buffer][column of the tile]
  __device__ float* b_factors() const {
    return reinterpret_cast<float*>(base_buffers() + C::kNumBaseBuffers * C::kBaseBytes);
  }
  /// [warp][token][rank of the block]
  __device__ float* partial() const { return reinterpret_cast<float*>(shared + C::kTableBytes); }
  /// [buffer][split][token][rank of the block]
  __device__ float* receive() const { return partial() + C::kPartialFloats; }
  /// In the same memory, before anything is received: [four sums][thread]
  __device__ float4* parked() const { return reinterpret_cast<float4*>(receive()); }
  /// Stages of A and x.
  __device__ std::byte* pipelines() const { return shared + C::kPipelineOffset; }
  __device__ std::byte* warp_pipeline() const { return pipelines() + warp * C::kPipelineBytes; }
  /// This warp's or warpgroup's stages of B, then its base buffers.
  __device__ std::byte* b_pipeline() const {
    return pipelines() + C::kNumWarps * C::kPipelineBytes +
           warp / C::kPipelineWarps * C::kBPipelineBytes;
  }
  __device__ std::byte* base_buffers() const {
    return b_pipeline() + C::kNumBStages * C::kBStageBytes;
  }
  /// Of a warpgroup: the stage of 8-bit B that wgmma reads.
  __device__ std::byte* widened_b() const {
    return base_buffers() + C::kNumBaseBuffers * C::kBaseBytes;
  }
  /// Of KernelShape::kNextBytes: tokens, then ranks.
  __device__ std::byte* next_x() const { return h() - C::kNextBytes; }
  __device__ std::byte* next_a() const { return next_x() + C::kTokens * C::kWgmmaRowBytes; }
  /// Of KernelShape::kAheadBytes of a stage, what is this warp's.
  __device__ std::byte* widened(int stage = 0) const {
    return shared + C::shared_bytes(p.h_width) + stage * C::kAheadBytes + warp * C::kAheadOfWarp;
  }
  /// [token][rank / 8][hi of eight, lo of eight], or [panel][hi, lo][token][rank / 8]
  __device__ std::byte* h() const { return pipelines() + C::kPipelinesBytes; }

  /// The slice that a rank tile, column tile or column of h belongs to.
  __device__ const TileSlice& slice_of(const WorkTile& work, int tile,
                                       int TileSlice::*first) const {
    int i = 0;
    if (work.num_slices > 1) {
#pragma unroll 1
      while (slices(work.table)[i + 1].*first <= tile) ++i;
    }
    return slices(work.table)[i];
  }

  /// The slice of a column tile. Tiles must be asked for in ascending order.
  __device__ const TileSlice& next_slice_of(int tile, int& slice) const {
    if constexpr (C::kGated) {
      return slices()[half()];
    } else {
#pragma unroll 1
      while (slices()[slice + 1].first_column_tile <= tile) ++slice;
      return slices()[slice];
    }
  }
  /// The end of a slice's column tiles in the work tile.
  __device__ int end_of_slice(const WorkTile& work, int slice) const {
    if constexpr (C::kGated) return work.end_column_tile;
    return min(work.end_column_tile, slices()[slice + 1].first_column_tile);
  }

  /// The first column tile of this warp or warpgroup. It takes every kTileStep-th after it, too.
  __device__ int first_tile(const WorkTile& work) const {
    const int pipeline = warp / C::kPipelineWarps;
    return work.first_column_tile + (C::kGated ? pipeline % C::kTileStep : pipeline);
  }
  /// Of a gated expand. 0: this warp or warpgroup computes columns of gate; 1: of up.
  __device__ int half() const { return warp / C::kPipelineWarps / C::kTileStep; }
  /// Of a gated expand: the ranks that stages are loaded for. Gate and up take as many as the
  /// longer of them, and at least one, so that a pair is always at the same stage.
  __device__ int pair_ranks() const { return max(1, max(slices()[0].rank, slices()[1].rank)); }

  /// Where the row of a token begins in y.
  __device__ std::byte* y_row(int token) const {
    if constexpr (!C::kKeepsRows) return tokens()[token].y;
    return static_cast<std::byte*>(p.y) +
           rows()[token] * p.y_row_stride * int64_t(sizeof(typename C::Out));
  }

  /// Eight ranks of h of a token: 16 bytes of hi; lo lies kLowBytes further.
  __device__ std::byte* h_address(int token, int column) const {
    if constexpr (C::kPipelineWarps == 1) return h() + token * h_stride(p.h_width) + 4 * column;
    return h() + column / kPanelRanks * 2 * C::kLowBytes +
           swizzle_128b(token, column % kPanelRanks / 8);
  }
  /// Beside 8-bit B without wgmma, hi of the eight numbers at places 0 to 7 of a step, lo of them,
  /// then the same of places 8 to 15: where the numbers of columns 4 q and 4 q + 1 lie; 4 q + 2 and
  /// 4 q + 3 lie 32 bytes further. `column`: 4 q.
  __device__ std::byte* permuted_h(int token, int column) const {
    return h_address(token, column / 16 * 16) + column % 16;
  }
};

/// Splits four numbers into hi + lo. The first `valid` exist, the others become 0.
template <typename Weight>
__device__ inline void split_hi_lo(float4 v, int valid, uint2& hi, uint2& lo) {
  v = {valid > 0 ? v.x : 0, valid > 1 ? v.y : 0, valid > 2 ? v.z : 0, valid > 3 ? v.w : 0};
  hi = {pack<Weight>(v.x, v.y), pack<Weight>(v.z, v.w)};
  const float2 first = unpack<Weight>(hi.x), second = unpack<Weight>(hi.y);
  lo = {pack<Weight>(v.x - first.x, v.y - first.y), pack<Weight>(v.z - second.x, v.w - second.y)};
}

/// a / b of small numbers, a below 2^20: (a + 1/2) / b is 1/(2 b) or more away from every integer,
/// and __fdividef() at most 2^-21 of itself away from the quotient.
__device__ inline int quotient_of_small(int a, int b) {
  return int(__fdividef(float(a) + 0.5F, float(b)));
}

__device__ inline float4 added(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

/// Copies eight numbers to shared memory. The first `valid` exist, the others become 0.
template <bool kAligned>
__device__ inline void copy_eight(std::byte* to, const std::byte* from, int valid) {
  if constexpr (kAligned) {
    copy_async_some(to, from, 2 * valid);
  } else {
    const auto* numbers = reinterpret_cast<const uint16_t*>(from);
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = 2 * i < valid ? numbers[2 * i] : 0;
      const uint32_t high = 2 * i + 1 < valid ? numbers[2 * i + 1] : 0;
      pair[i] = low | high << 16;
    }
    *reinterpret_cast<uint4*>(to) = {pair[0], pair[1], pair[2], pair[3]};
  }
}
/// The same for aligned rows, which hold all eight numbers or none.
template <bool kAligned>
__device__ inline void copy_eight_or_none(std::byte* to, const std::byte* from, int valid) {
  if constexpr (kAligned)
    copy_async(to, from, valid > 0);
  else
    copy_eight<false>(to, from, valid);
}

}  // namespace loratory::gpu
