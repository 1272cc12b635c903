#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/kernels/lora_stage.hpp"

// How a kernel is cut: constants that the host (shared memory, grids) and the device agree on.

#ifdef __CUDACC__
#define LORATORY_BOTH __host__ __device__
#else
#define LORATORY_BOTH
#endif

namespace loratory::gpu {

inline constexpr int kNumGroups = 8;
inline constexpr int kGroupWarps = 8;  // one chunk of a group each

/// Columns of x that one warp sums: the same for every path.
LORATORY_BOTH constexpr int chunk_size(int num_in) {
  constexpr int kStep = kNumGroups * kGroupWarps * 32;
  return (num_in + kStep - 1) / kStep * 32;
}

LORATORY_BOTH constexpr int padded_rank(int rank, int to = 16) { return (rank + to - 1) / to * to; }

/// Bytes between the rows of h in shared memory, 4 a rank: an odd multiple of 16 keeps banks apart.
LORATORY_BOTH constexpr int h_stride(int h_width) { return 4 * h_width + 16; }

/// Columns of y that a warp makes at a time.
LORATORY_BOTH constexpr int tile_columns(int token_tiles) { return token_tiles == 1 ? 64 : 32; }

/// h as wgmma reads it: panels of 64 ranks of all tokens, hi and then lo.
inline constexpr int kPanelRanks = 64;

template <int kRankTiles, int kTokenTiles, int kCluster, int kStages, LoraStage kStage,
          int kOutBytes>
struct Shape {
  static constexpr bool kShrinks = kStage != LoraStage::expand;
  static constexpr bool kExpands = kStage != LoraStage::shrink;
  static constexpr int kNumWarps = kGroupWarps;
  static constexpr int kNumThreads = 32 * kNumWarps;
  static constexpr int kGroupsEach = kNumGroups / kCluster;
  static constexpr int kBlockRank = 16 * kRankTiles;  // of h at a time
  static constexpr int kTokens = 8 * kTokenTiles;     // of a segment

  /// Few tokens: a warp for each chunk, so that as much as possible of A is under way, and their
  /// sums meet in shared memory. Many: a warp or a warpgroup for some ranks and tokens, which goes
  /// through all chunks and meets no other.
  static constexpr bool kWide = kShrinks && kTokenTiles > 1;
  static constexpr bool kWgmma = kTokenTiles == 8 && kRankTiles >= 4;
  static_assert(!kWide || (!kExpands && (kWgmma || (kTokenTiles == 4 && kRankTiles == 4))));
  /// What a CTA's warps sum before they meet: several groups where registers hold them.
  static constexpr int groups_at_once() {
    if (kWide || kRankTiles > (kExpands ? 1 : 2)) return 1;
    if (!kExpands) return std::min(kGroupsEach, kRankTiles == 1 || kCluster == 2 ? 2 : 1);
    return kGroupsEach <= 4 ? kGroupsEach : 1;
  }
  static constexpr int kGroupsAtOnce = groups_at_once();

  /// What shared memory has room for, or what several launches at once need; it bounds the
  /// registers.
  static constexpr int ctas_per_sm() {
    if (kWide) return kWgmma && kRankTiles == 4 ? 6 - kStages : 2;
    if (!kExpands) return kRankTiles == 1 && kCluster == kNumGroups ? 4 : 3;
    if (!kShrinks && kTokenTiles == 1) return kRankTiles == 4 ? 3 : 4;
    if (!kShrinks) return kRankTiles == 1 && kTokenTiles == 4 ? 3 : 2;
    return kRankTiles == 1 && kCluster == kNumGroups ? 3 : 2;
  }
  static constexpr int kCtasPerSm = ctas_per_sm();

  // The first ring: stages of 64 columns of A and x, each warp its own, or one of all.
  static constexpr int kRowBytes = 128;
  static constexpr int kNumStages = kStages;
  static constexpr int kStageBytes = (kBlockRank + kTokens) * kRowBytes;
  static constexpr int kRingBytes =  // of a warp
      kShrinks ? kStages * kStageBytes / (kWide ? kNumWarps : 1) : 0;
  static_assert(kRingBytes % 16 == 0);

  // The second, each warp its own, or each warpgroup: stages of B, and of what y holds before.
  static constexpr int kTileWarps = !kShrinks && kWgmma ? 4 : 1;
  static constexpr int kTileRings = kNumWarps / kTileWarps;
  static constexpr int kTileColumns = kTileWarps > 1 ? 64 : tile_columns(kTokenTiles);
  static constexpr int kTileRanks = 16 * kRankTiles;  // in a stage
  static constexpr int kTileStageBytes = kTileColumns * kTileRanks * 2;
  static constexpr int kNumTileStages = !kExpands ? 0 : kShrinks ? kRankTiles : kStages;
  static constexpr int kBaseRowBytes = kTileColumns * kOutBytes;  // of a token
  static constexpr int kBaseBytes = kTokens * kBaseRowBytes;
  /// Few tokens: y of a tile has a slot of its own, and tiles of many stages need one only.
  static constexpr int num_base_stages() {
    if (kTileWarps > 1) return 2;
    return kTokenTiles > 1 || kRankTiles == 1 ? kNumTileStages : 1;
  }
  static constexpr int kNumBaseStages = num_base_stages();
  static constexpr int kTileRingBytes =
      kNumTileStages * kTileStageBytes + (kExpands ? kNumBaseStages * kBaseBytes : 0);

  // The exchange. Of a shrink alone a token's sums go to the CTA of the cluster that writes its h.
  // Otherwise to every CTA, which each add them up. A wide shrink of one CTA has nobody to hand
  // them to: it writes those of half of the groups to h, and adds the other half there.
  static constexpr bool kScatters = kCluster > 1 && !kExpands;
  static constexpr bool kHandsOver = kCluster > 1 || !kWide;
  static constexpr int kParts = kHandsOver ? 1 : 2;
  static constexpr int kNumBuffers = kCluster > 1 && !kWide ? 2 : 1;
  static constexpr int kRowFloats = kBlockRank + 4;  // + 4 keeps banks apart
  static constexpr int kTileFloats = kTokens * kRowFloats;
  static constexpr int kPartialFloats =
      kShrinks && !kWide ? kGroupsAtOnce * kNumWarps * kTileFloats : 0;
  static constexpr int kReceiveTile = kScatters ? kTileFloats / kCluster : kTileFloats;
  static constexpr int kSenders = kWide ? kCluster : kNumGroups;  // of sums of a token
  static constexpr int kReceiveFloats = kHandsOver ? kSenders * kReceiveTile : 0;
  /// Of four groups the first two wait for the others, where sums are received later, if any are.
  static constexpr bool kHasPairs = kWide && kGroupsEach / kParts > 2;
  static constexpr int kAsideFloats = kHasPairs ? kTokens * kBlockRank : 0;
  static constexpr int kSumFloats =
      kShrinks ? kPartialFloats + std::max(kNumBuffers * kReceiveFloats, kAsideFloats) : 0;

  /// Of a unit: slices and tokens. The loads of a wide one begin while the one before is finished.
  static constexpr int kNumTables = kWide ? 2 : 1;
  static constexpr int kUnitBytes = 512 + (kTileWarps > 1 ? 4 : 16) * kTokens;
  static constexpr int kTableBytes = kNumTables * kUnitBytes + 128;  // and barriers
  /// wgmma reads blocks of eight rows that begin at multiples of 1024.
  static constexpr int kRingAlignment = kWgmma ? 1024 : 16;
  static constexpr int kRingOffset =
      (kTableBytes + 4 * kSumFloats + kRingAlignment - 1) / kRingAlignment * kRingAlignment;
  static constexpr int kRingsBytes = kNumWarps * kRingBytes + kTileRings * kTileRingBytes;

  /// Of h in shared memory: where the ranks of a slice may begin, and how far lo lies behind hi.
  static constexpr int kHPadding = kTileWarps > 1 ? kPanelRanks : 16;
  static constexpr int kLowBytes = kTileWarps > 1 ? kTokens * 2 * kPanelRanks : 16;
  static int shared_bytes(int h_width) {
    const int row = kTileWarps > 1 ? 4 * h_width : h_stride(h_width);
    return kRingOffset + kRingsBytes + (kExpands ? kTokens * row : 0);
  }
};

}  // namespace loratory::gpu
