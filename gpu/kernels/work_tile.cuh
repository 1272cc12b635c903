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
__device__ inline int column_tiles(int i, int num_out, int rank) {
  const bool has_none = C::kGated ? i != 1 : rank == 0;
  return has_none ? 0 : (num_out + C::kTileColumns - 1) / C::kTileColumns;
}

/// Describes the slices of a work tile, by one warp: lane i takes slice i. Rows of a gated expand
/// may have no slot (-1). Where it has no rank, y stays as it is: that is y - 1 · 0, also of -0.
template <typename C>
__device__ inline void describe_slices(const KernelParams& p, int slot, int first_slice,
                                       int num_slices, TileSlice* table) {
  constexpr int kWeightBytes = C::kWeightBytes;
  const int lane = int(threadIdx.x) % 32;
  const bool exists = lane < num_slices && (!C::kGated || slot >= 0);
  if constexpr (C::kGated) slot = max(slot, 0);
  const int index = first_slice + (lane < num_slices ? lane : 0);
  const SliceParams& s = p.slices[index];
  const int rank = exists ? __ldg(s.ranks + slot) : 0;
  float scaling = s.scalings == nullptr ? 0 : __ldg(s.scalings + slot);  // null: of a shrink
  if (C::kGated && rank == 0) scaling = -1;
  const int counts[3] = {(rank + 15) / 16, column_tiles<C>(lane, s.num_out, rank),
                         padded_rank(rank, C::kHPadding)};
  int before[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    int sum = counts[i];
#pragma unroll
    for (int step = 1; step < 16; step *= 2) {
      const int other = __shfl_up_sync(~0U, sum, step);
      if (lane >= step) sum += other;
    }
    before[i] = sum - counts[i];
  }
  if (lane > num_slices) return;  // lane num_slices writes the totals
  TileSlice& out = table[lane];
  out.a = reinterpret_cast<const std::byte*>(s.a) +
          kWeightBytes * (weights_offset(p, slot, s.a_slot_stride, s.a_expert_stride) +
                          int64_t(s.a_rank_steps) * rank * s.a_row_stride);
  out.b = reinterpret_cast<const std::byte*>(s.b) +
          kWeightBytes * weights_offset(p, slot, s.b_slot_stride, s.b_expert_stride);
  out.a_row_bytes = uint32_t(kWeightBytes * s.a_row_stride);
  out.b_row_bytes = uint32_t(kWeightBytes * s.b_row_stride);
  out.rank = rank;
  out.scaling = scaling;
  out.num_out = s.num_out;
  out.offset = s.offset;
  out.index = index;
  out.first_rank_tile = before[0];
  out.first_column_tile = before[1];
  out.h_column = before[2];
}

}  // namespace loratory::gpu
