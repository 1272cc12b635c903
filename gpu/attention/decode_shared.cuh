#pragma once

#include <cstdint>

#include "gpu/attention/attention_params.hpp"
#include "gpu/attention/decode_items.hpp"
#include "gpu/attention/row_softmax.cuh"
#include "gpu/kernels/bulk_tensor.cuh"
#include "gpu/kernels/fragments.cuh"
#include "gpu/kernels/ptx.cuh"

// What the warps of a CTA of decode attention share: the ring of tiles, queries, and how they find
// items.

namespace loratory::gpu::decode {

constexpr int kWarps = 8;  // that compute
constexpr int kConsumers = 32 * kWarps;
enum class Copies : uint8_t { blocks, rows };
// Rows of a swizzled box: the fewest tokens of a block that is copied as one.
constexpr int kEight = 8;
// Threads that copy, behind those that compute.
template <int kHeadDim, Copies kCopies>
constexpr int kProducers = kCopies == Copies::blocks ? 32
                           : kHeadDim == 64          ? 128
                                                     : 256;
// As many CTAs as there is shared memory for.
template <int kHeadDim>
constexpr int kCtasPerSm = kHeadDim == 64 ? 2 : 1;
template <int kHeadDim, Copies kCopies>
constexpr int kThreads = kConsumers + kProducers<kHeadDim, kCopies>;
constexpr int kTiles = kPieceKeys / kAttentionTileKeys;
constexpr int kTileShift = 6;
static_assert(1 << kTileShift == kAttentionTileKeys && kPieceKeys / kEight == 32);
constexpr int kWarpKeys = kPieceKeys / kWarps;  // half a tile: a warp's part of the scores
static_assert(kWarpKeys == 32 && kAttentionTileKeys == 64);
constexpr int kStages = 8;  // tiles in the ring
constexpr int kQueries = 2;
constexpr int kLates = kQueries + 1;  // late items in the ring; publish_late() says why so many
static_assert(kStages >= 2 * kTiles);

template <int kHeadDim>
struct DecodeShared {
  // Of each item first the keys, then the values.
  alignas(1024) std::byte tiles[kStages][kAttentionTileKeys * kHeadDim * 2];
  alignas(1024) std::byte query[kQueries][kMostGroup * kHeadDim * 2];
  uint4 weights[kPieceKeys / 16][32];  // fragments
  float most[kWarps][kMostGroup];      // the largest score of a warp's keys
  float sums[kWarps][kMostGroup][4];   // of its weights, for each thread of a quad
  uint64_t full[kStages], free[kStages];
  uint64_t full_q[kQueries], free_q[kQueries];
  DecodeItem late[kLates];
  uint64_t full_late[kLates];
  int is_last;
};

// Keys and values of a layer, for bulk copies of blocks; neither otherwise.
struct KvMaps {
  CUtensorMap k, v;
};

// Where a vector of eight numbers of a key or value lies in a tile: eights of rows, each in panels
// of 64 columns.
template <int kHeadDim>
__device__ int tile_offset(int key, int vec) {
  return key / kEight * (kEight * kHeadDim * 2) + panel_offset<kEight>(key % kEight, vec);
}

// A place in a ring of kSize, and how often the ring was passed, modulo 2.
template <int kSize>
struct Place {
  int at = 0;  // of the places of two rounds

  __device__ int index() const { return at < kSize ? at : at - kSize; }
  __device__ int phase() const { return at < kSize ? 0 : 1; }
  // At most kSize places ahead.
  __device__ Place ahead(int count) const {
    const int to = at + count;
    return {to < 2 * kSize ? to : to - 2 * kSize};
  }
};
using Stage = Place<kStages>;

__device__ inline DecodeRows rows_of(const AttentionParams& p) {
  return {.piece_starts = p.work.piece_starts,
          .tile_starts = p.work.tile_starts,
          .contexts = p.contexts,
          .num_rows = p.num_rows,
          .kv_heads = p.kv_heads};
}

// How a warp finds items.
struct CountLanes {
  template <typename Holds>
  __device__ int32_t operator()(const Holds& holds) const {
    return __popc(__ballot_sync(0xFFFFFFFF, holds(int32_t(threadIdx.x) % 32)));
  }
};

// Every warp finds it for itself.
__device__ inline DecodeShare share_of(const AttentionParams& p) {
  return decode_share(rows_of(p), int32_t(blockIdx.x), int32_t(gridDim.x), CountLanes{});
}

// The late item that is published next; false: no more follow.
template <int kHeadDim>
__device__ bool read_late(DecodeShared<kHeadDim>& s, Place<kLates>& place, DecodeItem& item) {
  wait_for_bytes(&s.full_late[place.index()], place.phase());
  item = s.late[place.index()];
  place = place.ahead(1);
  return item.num_pieces > 0;
}

__device__ inline int num_tiles_of(const DecodeItem& item) {
  return num_attention_tiles(item.num_keys());
}

}  // namespace loratory::gpu::decode
