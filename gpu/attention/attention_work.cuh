#pragma once

#include "gpu/attention/attention_params.hpp"
#include "gpu/attention/decode_items.hpp"
#include "gpu/kernels/ptx.cuh"

// What the attention kernels of a step go through, found on the device by one CTA: pieces and tiles
// of decode rows, counted before each row, and tiles of chunks, those with the longest context
// first.

namespace loratory::gpu::work {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
/// Lengths of tiles' contexts, in pieces; the last one has all that are longer.
constexpr int kLengths = 2048;
constexpr int kLengthsPerThread = kLengths / kThreads;

struct Shared {
  int32_t tiles[kLengths];  // of each length; later, where the next of them goes
  int32_t warp_sums[kWarps];
};

// The sum of all threads before this one, and of all.
struct Sums {
  int32_t before, all;
};
__device__ inline Sums sum_over_threads(int32_t value, int32_t (&warp_sums)[kWarps]) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  int32_t sum = value;
  for (int d = 1; d < 32; d *= 2) {
    const int32_t other = __shfl_up_sync(0xFFFFFFFF, sum, d);
    if (lane >= d) sum += other;
  }
  __syncthreads();  // the last call's sums are read
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  Sums out{sum - value, 0};
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) out.before += warp_sums[i];
    out.all += warp_sums[i];
  }
  return out;
}

struct Row {
  int32_t num_tokens, context;
};
__device__ inline Row row_of(const AttentionParams& p, int32_t row) {
  return {p.row_starts[row + 1] - p.row_starts[row], p.contexts[row]};
}

// Pieces and tiles of decode rows, before each row.
__device__ inline void count_pieces(const AttentionParams& p, Shared& s) {
  int32_t pieces_before = 0, tiles_before = 0;
  for (int32_t first = 0; first < p.num_rows; first += kThreads) {
    const int32_t row = first + int32_t(threadIdx.x);
    int32_t context = 0;
    if (row < p.num_rows) {
      const Row r = row_of(p, row);
      if (r.num_tokens == 1) context = r.context;
    }
    const Sums pieces = sum_over_threads(num_attention_pieces(context), s.warp_sums);
    const Sums tiles = sum_over_threads(num_attention_tiles(context), s.warp_sums);
    if (row < p.num_rows) {
      p.work.piece_starts[row] = pieces_before + pieces.before;
      p.work.tile_starts[row] = tiles_before + tiles.before;
    }
    pieces_before += pieces.all;
    tiles_before += tiles.all;
  }
  if (threadIdx.x == 0) {
    p.work.piece_starts[p.num_rows] = pieces_before;
    p.work.tile_starts[p.num_rows] = tiles_before;
  }
}

// Calls visit(tile, length) for every tile; a warp for each row.
template <typename Visit>
__device__ void for_all_tiles(const AttentionParams& p, const Visit& visit) {
  for (int32_t row = int32_t(threadIdx.x) / 32; row < p.num_rows; row += kWarps) {
    const Row r = row_of(p, row);
    if (r.num_tokens < 2 || r.context == 0) continue;
    const int32_t pairs = r.num_tokens * p.group;
    for (int32_t i = int32_t(threadIdx.x) % 32; i * kPrefillRows < pairs; i += 32) {
      const int32_t last = min((i + 1) * kPrefillRows, pairs) - 1;
      const int32_t keys = r.context - r.num_tokens + last / p.group + 1;
      visit(PrefillTile{row, i}, min(num_attention_pieces(keys), kLengths) - 1);
    }
  }
}

__device__ inline void sort_tiles(const AttentionParams& p, Shared& s) {
  for (int i = int(threadIdx.x); i < kLengths; i += kThreads) s.tiles[i] = 0;
  __syncthreads();
  for_all_tiles(p, [&](PrefillTile, int length) { atomicAdd(&s.tiles[length], 1); });
  __syncthreads();
  // Thread 0 has the longest.
  const int last = kLengths - 1 - int(threadIdx.x) * kLengthsPerThread;
  int32_t counts[kLengthsPerThread], mine = 0;
#pragma unroll
  for (int i = 0; i < kLengthsPerThread; ++i) mine += counts[i] = s.tiles[last - i];
  const Sums sums = sum_over_threads(mine, s.warp_sums);
  int32_t before = sums.before;
#pragma unroll
  for (int i = 0; i < kLengthsPerThread; ++i) {
    s.tiles[last - i] = before;
    before += counts[i];
  }
  if (threadIdx.x == 0) *p.work.num_tiles = sums.all;
  __syncthreads();
  for_all_tiles(p, [&](PrefillTile tile, int length) {
    p.work.tiles[atomicAdd(&s.tiles[length], 1)] = tile;
  });
}

/// What the only CTA does, with shared memory of its own.
__device__ inline void run_cta(const AttentionParams& p, Shared& s) {
  for (int i = int(threadIdx.x); i < p.num_rows * p.kv_heads; i += kThreads) {
    p.work.arrived[i] = 0;
  }
  if (threadIdx.x == 0) *p.work.late_taken = 0;
  count_pieces(p, s);
  sort_tiles(p, s);
}

}  // namespace loratory::gpu::work
