#pragma once

#include "gpu/kernels/device_ops.cuh"
#include "gpu/kernels/lora_work.hpp"

// What one cluster works on at a time.

namespace loratory::gpu {

/// A slice of the unit, in shared memory. The counts are of all slices before it.
struct UnitSlice {
  const std::byte* a;
  const std::byte* b;
  uint32_t a_row_bytes, b_row_bytes;
  int rank;
  float scaling;
  int num_out;
  int offset;           ///< first column of y
  int index;            ///< in LinearParams
  int first_rank_tile;  ///< 16 ranks each
  int first_tile;       ///< of columns of y
  int h_column;         ///< ranks, each slice padded
};
static_assert(sizeof(UnitSlice) == 56);

/// A token of the unit: where its rows begin.
struct UnitToken {
  const std::byte* x;  ///< or h, expand alone
  std::byte* y;        ///< or h, shrink alone
};

/// A segment, one or all slices, and a part of their ranks (shrink alone) or columns.
struct Unit {
  int first_token, num_tokens, num_slices;
  int num_rank_tiles;
  int first_block, end_block;  ///< of ranks
  int first_tile, end_tile;    ///< of this CTA
  int first_h, end_h;          ///< padded ranks of the slices that they belong to
  int table;                   ///< in shared memory
};

template <int kTileColumns>
__device__ inline int column_tiles(int num_out, int rank) {
  return rank == 0 ? 0 : (num_out + kTileColumns - 1) / kTileColumns;
}

/// The slices of a unit, by one warp: lane i takes the i-th.
template <int kTileColumns, int kHPadding>
__device__ inline void describe_slices(const LinearParams& p, int slot, int first_slice,
                                       int num_slices, UnitSlice* table) {
  const int lane = int(threadIdx.x) % 32;
  const bool exists = lane < num_slices;
  const int index = first_slice + (exists ? lane : 0);
  const SliceParams& s = p.slices[index];
  const int rank = exists ? __ldg(s.ranks + slot) : 0;
  const float scaling = s.scalings == nullptr ? 0 : __ldg(s.scalings + slot);  // a shrink has none
  const int counts[3] = {(rank + 15) / 16, column_tiles<kTileColumns>(s.num_out, rank),
                         padded_rank(rank, kHPadding)};
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
  if (lane > num_slices) return;  // one more: the totals
  UnitSlice& out = table[lane];
  out.a = reinterpret_cast<const std::byte*>(s.a + int64_t(slot) * s.a_slot_stride +
                                             int64_t(s.a_rank_steps) * rank * s.a_row_stride);
  out.b = reinterpret_cast<const std::byte*>(s.b + int64_t(slot) * s.b_slot_stride);
  out.a_row_bytes = uint32_t(2 * s.a_row_stride);
  out.b_row_bytes = uint32_t(2 * s.b_row_stride);
  out.rank = rank;
  out.scaling = scaling;
  out.num_out = s.num_out;
  out.offset = s.offset;
  out.index = index;
  out.first_rank_tile = before[0];
  out.first_tile = before[1];
  out.h_column = before[2];
}

}  // namespace loratory::gpu
