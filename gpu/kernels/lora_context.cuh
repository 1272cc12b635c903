#pragma once

#include "gpu/kernels/fragments.cuh"
#include "gpu/kernels/lora_places.hpp"
#include "gpu/kernels/lora_unit.cuh"

namespace loratory::gpu {

/// Everything that a kernel's code depends on at compile time. Out: the type of y, Weight or float.
template <typename Weight_, typename Out_, int kRankTiles_, int kTokenTiles_, int kCluster_,
          int kStages_, bool kAligned_, LoraStage kStage_>
struct Config : Shape<kRankTiles_, kTokenTiles_, kCluster_, kStages_, kStage_, int(sizeof(Out_))> {
  using Weight = Weight_;
  using Out = Out_;
  static constexpr int kRankTiles = kRankTiles_;
  static constexpr int kTokenTiles = kTokenTiles_;
  static constexpr int kCluster = kCluster_;
  static constexpr bool kAligned = kAligned_;
  static constexpr LoraStage kStage = kStage_;
  static constexpr bool kSends = kCluster > 1 && kStage != LoraStage::expand;
};

/// What the parts of a kernel share: parameters, shared memory and who this thread is. They keep
/// copies, not references: an object that is pointed to would lie in memory, not in registers.
template <typename C>
struct Context {
  const LinearParams& p;
  std::byte* const shared;

  const int cta = C::kCluster > 1 ? cluster_rank() : 0;         // of the cluster
  const int warp = __shfl_sync(~0U, int(threadIdx.x) / 32, 0);  // known to be the same in all lanes
  const int lane = int(threadIdx.x) % 32;
  const int row = lane / 4;  // of a fragment: weight row, or token
  const int quad = lane % 4;

  __device__ Context(const LinearParams& params, std::byte* shared_memory)
      : p(params), shared(shared_memory) {}

  // Shared memory. Places are computed again and again: registers are scarcer than additions.

  static_assert((kMaxSlices + 1) * sizeof(UnitSlice) +
                    C::kTokens * (C::kTileWarps > 1 ? sizeof(int) : sizeof(UnitToken)) <=
                C::kUnitBytes);
  /// Slices of a unit, and the totals.
  __device__ UnitSlice* slices(int table = 0) const {
    return reinterpret_cast<UnitSlice*>(shared + (C::kNumTables > 1 ? table * C::kUnitBytes : 0));
  }
  __device__ UnitToken* tokens(int table = 0) const {
    return reinterpret_cast<UnitToken*>(slices(table) + kMaxSlices + 1);
  }
  /// In their place, where shared memory is scarce: rows of h and y.
  __device__ int* rows() const { return reinterpret_cast<int*>(slices() + kMaxSlices + 1); }
  /// Of receive's buffers.
  __device__ uint64_t* barriers() const {
    return reinterpret_cast<uint64_t*>(shared + C::kNumTables * C::kUnitBytes);
  }
  /// [warp][token][rank of a block]
  __device__ float* partial() const { return reinterpret_cast<float*>(shared + C::kTableBytes); }
  /// [buffer][group][token][rank of a block]
  __device__ float* receive() const { return partial() + C::kPartialFloats; }
  /// In the same place, before: [four sums][thread]
  __device__ float4* aside() const { return reinterpret_cast<float4*>(receive()); }
  /// Stages of A and x.
  __device__ std::byte* ring() const { return shared + C::kRingOffset; }
  __device__ std::byte* warp_ring() const { return ring() + warp * C::kRingBytes; }
  /// Stages of B of this warp, or warpgroup, and then tiles of y.
  __device__ std::byte* tile_ring() const {
    return ring() + C::kNumWarps * C::kRingBytes + warp / C::kTileWarps * C::kTileRingBytes;
  }
  __device__ std::byte* base_ring() const {
    return tile_ring() + C::kNumTileStages * C::kTileStageBytes;
  }
  /// [token][rank / 8][hi of eight, lo of eight], or [panel][hi, lo][token][rank / 8]
  __device__ std::byte* h() const { return ring() + C::kRingsBytes; }

  /// Slice of the unit that a tile of ranks, or of columns, belongs to.
  __device__ const UnitSlice& slice_of(const Unit& unit, int tile, int UnitSlice::*first) const {
    int i = 0;
    if (unit.num_slices > 1) {
#pragma unroll 1
      while (slices(unit.table)[i + 1].*first <= tile) ++i;
    }
    return slices(unit.table)[i];
  }

  /// Slice of a tile of columns that is not before the one asked for last.
  __device__ const UnitSlice& next_slice_of(int tile, int& slice) const {
#pragma unroll 1
    while (slices()[slice + 1].first_tile <= tile) ++slice;
    return slices()[slice];
  }

  /// h of eight ranks of a token: 16 bytes of hi; of lo, kLowBytes further.
  __device__ std::byte* h_place(int token, int column) const {
    if constexpr (C::kTileWarps == 1) return h() + token * h_stride(p.h_width) + 4 * column;
    return h() + column / kPanelRanks * 2 * C::kLowBytes +
           place_of(token, column % kPanelRanks / 8);
  }
};

/// Four h as hi + lo, of which the first `valid` exist and the others are 0.
template <typename Weight>
__device__ inline void split(float4 v, int valid, uint2& hi, uint2& lo) {
  v = {valid > 0 ? v.x : 0, valid > 1 ? v.y : 0, valid > 2 ? v.z : 0, valid > 3 ? v.w : 0};
  hi = {pack<Weight>(v.x, v.y), pack<Weight>(v.z, v.w)};
  const float2 first = unpack<Weight>(hi.x), second = unpack<Weight>(hi.y);
  lo = {pack<Weight>(v.x - first.x, v.y - first.y), pack<Weight>(v.z - second.x, v.w - second.y)};
}

__device__ inline float4 added(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

/// p + count · bytes; the product has 64 bits.
template <typename Byte>
__device__ inline Byte* row_address(Byte* p, uint32_t count, uint32_t bytes) {
  Byte* out;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(out) : "r"(count), "r"(bytes), "l"(p));
  return out;
}

/// Eight numbers to shared memory, of which `valid` exist and the others become 0.
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
/// The same where aligned rows hold all eight or none.
template <bool kAligned>
__device__ inline void copy_eight_or_none(std::byte* to, const std::byte* from, int valid) {
  if constexpr (kAligned)
    copy_async(to, from, valid > 0);
  else
    copy_eight<false>(to, from, valid);
}

}  // namespace loratory::gpu
