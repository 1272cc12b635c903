#pragma once

#include "gpu/kernels/ptx.cuh"
#include "gpu/plan/work_list.hpp"

// A work tile: what a cluster processes at a time.

namespace loratory::gpu {

/// A slice of the work tile, in shared memory. The last three count over all slices before it.
struct TileSlice {
  const std::byte* a;
  const std::byte* b;
  uint32_t a_row_bytes, b_row_bytes;
  int rank;
  float scaling;
  int num_out;
  int offset;             ///< first column of y
  int index;              ///< in KernelParams
  int first_rank_tile;    ///< 16 ranks each
  int first_column_tile;  ///< kTileColumns columns of y each
  int h_column;           ///< ranks, each slice padded
};
static_assert(sizeof(TileSlice) == 56);

/// A token of the work tile: where its rows begin.
struct TileToken {
  const std::byte* x;  ///< expand: of h
  std::byte* y;        ///< shrink: of h
};

/// A segment with one slice or all, and some of their rank blocks (shrink) or columns.
struct WorkTile {
  int first_token, num_tokens, num_slices;
  int num_rank_tiles;
  int first_block, end_block;              ///< rank blocks
  int first_column_tile, end_column_tile;  ///< of this CTA
  int first_h, end_h;                      ///< padded ranks of the slices of those columns
  int table;                               ///< which one in shared memory
  int slot;
};

/// The column tiles of slice i. Those of a gated expand are of gate and up at once, whatever their
/// ranks, and both slices begin at tile 0.
template <typename C>
__device__ inline uint32_t column_tiles(int i, uint32_t num_out, uint32_t rank) {
  const bool has_none = C::kGated ? i != 1 : rank == 0;
  return has_none ? 0 : (num_out + C::kTileColumns - 1) / C::kTileColumns;
}

/// The counts of the lanes before this one, in lanes 0 to `num`.
__device__ inline uint32_t sum_before(int lane, int num, uint32_t count) {
  uint32_t sum = count;
#pragma unroll
  for (int step = 1; step <= kMaxSlices; step *= 2) {
    if (step > num) break;
    const uint32_t other = __shfl_up_sync(~0U, sum, step);
    if (lane >= step) sum += other;
  }
  return sum - count;
}

/// The slices, as global memory has them: of constant memory, where a kernel's parameters are,
/// lanes read different words one after the other, 100 cycles each.
__device__ inline const std::byte* slices_in_memory(const KernelParams& p) {
  return reinterpret_cast<const std::byte*>(kept_address(p.slices));
}
__device__ inline SliceParams load_slice_from_memory(const KernelParams& p, int index) {
  constexpr int kVectors = sizeof(SliceParams) / sizeof(uint4);
  const auto* const from = reinterpret_cast<const uint4*>(slices_in_memory(p)) + index * kVectors;
  SliceParams out;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) reinterpret_cast<uint4*>(&out)[i] = from[i];
  return out;
}
/// A wide shrink has its next tile described while it multiplies, and no registers for this.
template <typename C>
__device__ inline decltype(auto) load_slice(const KernelParams& p, int index) {
  if constexpr (C::kWide) {
    return (p.slices[index]);
  } else {
    return load_slice_from_memory(p, index);
  }
}

/// What a shrink or an expand needs of a slice. Kernels begin with code that is not in the caches
/// yet, so that each instruction counts.
template <typename C>
__device__ inline void describe_a(const KernelParams& p, const SliceParams& s, int slot, int rank,
                                  TileSlice& out) {
  out.a = reinterpret_cast<const std::byte*>(s.a) +
          C::kWeightBytes * (weights_offset(p, slot, s.a_slot_stride, s.a_expert_stride) +
                             int64_t(s.a_rank_steps) * rank * s.a_row_stride);
  out.a_row_bytes = uint32_t(C::kWeightBytes * s.a_row_stride);
}
template <typename C>
__device__ inline void describe_b(const KernelParams& p, const SliceParams& s, int slot,
                                  TileSlice& out) {
  out.b = reinterpret_cast<const std::byte*>(s.b) +
          C::kWeightBytes * weights_offset(p, slot, s.b_slot_stride, s.b_expert_stride);
  out.b_row_bytes = uint32_t(C::kWeightBytes * s.b_row_stride);
  out.num_out = s.num_out;
  out.offset = s.offset;
}

/// Describes the slices of a work tile, by one warp: lane i takes slice i, and the lane behind them
/// the totals. Rows of a gated expand may have no slot (-1). Where it has no rank, y stays as it
/// is: that is y - 1 · 0, also of -0.
template <typename C>
__device__ inline void describe_slices(const KernelParams& p, int slot, int first_slice,
                                       int num_slices, TileSlice* table) {
  const int lane = int(threadIdx.x) % 32;
  const bool exists = lane < num_slices && (!C::kGated || slot >= 0);
  if constexpr (C::kGated) slot = max(slot, 0);
  const int index = first_slice + (lane < num_slices ? lane : 0);
  const SliceParams& s = load_slice<C>(p, index);
  const uint32_t rank = exists ? uint32_t(__ldg(s.ranks + slot)) : 0;
  TileSlice out;
  if constexpr (C::kExpands) {
    out.scaling = __ldg(s.scalings + slot);
    if (C::kGated && rank == 0) out.scaling = -1;
    const uint32_t columns = column_tiles<C>(lane, uint32_t(s.num_out), rank);
    out.first_column_tile = int(sum_before(lane, num_slices, columns));
    describe_b<C>(p, s, slot, out);
  }
  if constexpr (C::kShrinks) describe_a<C>(p, s, slot, int(rank), out);
  // Panels of h are counted in the upper half.
  constexpr uint32_t kPanel = 1 << 16, kPadding = C::kHPadding;
  const uint32_t panels = kPadding == 16 ? 0 : (rank + kPadding - 1) / kPadding;
  const uint32_t tiles = sum_before(lane, num_slices, (rank + 15) / 16 + kPanel * panels);
  out.first_rank_tile = int(tiles % kPanel);
  out.h_column = int(kPadding == 16 ? 16 * tiles : tiles / kPanel * kPadding);
  out.rank = int(rank);
  out.index = index;
  if (lane <= num_slices) table[lane] = out;
}

}  // namespace loratory::gpu
