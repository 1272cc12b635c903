#pragma once

#include <algorithm>
#include <cstdint>

// How a kernel is cut: constants that the host (shared memory, grids) and the device agree on.

#ifdef __CUDACC__
#define LORATORY_BOTH __host__ __device__
#else
#define LORATORY_BOTH
#endif

namespace loratory::gpu {

inline constexpr int kNumGroups = 8;
inline constexpr int kGroupWarps = 8;  // one chunk of a group each

enum class Stage { kLinear, kShrink, kExpand };

/// Columns of x that one warp sums: the same for every path.
LORATORY_BOTH constexpr int chunk_size(int num_in) {
  constexpr int kStep = kNumGroups * kGroupWarps * 32;
  return (num_in + kStep - 1) / kStep * 32;
}

LORATORY_BOTH constexpr int padded_rank(int rank) { return (rank + 31) / 32 * 32; }

/// Bytes between the rows of h in shared memory, 4 a rank: an odd multiple of 16 keeps banks apart.
LORATORY_BOTH constexpr int h_stride(int h_width) { return 4 * h_width + 16; }

template <int kRankTiles, int kTokenTiles, int kCluster, Stage kStage>
struct Shape {
  static constexpr bool kShrinks = kStage != Stage::kExpand;
  static constexpr int kNumWarps = kGroupWarps;
  static constexpr int kNumThreads = 32 * kNumWarps;
  static constexpr int kCtasPerSm =
      kRankTiles == 1 && kTokenTiles == 1 && kCluster == kNumGroups ? 3 : 2;
  static constexpr int kGroupsEach = kNumGroups / kCluster;
  static constexpr int kBlockRank = 16 * kRankTiles;  // of h at a time
  static constexpr int kTokens = 8 * kTokenTiles;     // of a segment

  // The ring: what a warp has under way. Stages of A (and of x, unless all of a chunk of it stays),
  // then of B. Rows of kStepsAtOnce · 32 numbers.
  static constexpr bool kKeepsX = kTokenTiles > 1 && kCluster == kNumGroups;
  static constexpr int kStepsAtOnce = kKeepsX ? 1 : 2;
  static constexpr int kRowBytes = 64 * kStepsAtOnce;
  static constexpr int kXStageBytes = kKeepsX ? 0 : kTokens * kRowBytes;
  static constexpr int kStageBytes = kBlockRank * kRowBytes + kXStageBytes;
  static constexpr int kNumStages = kKeepsX ? 3 : 2;
  static constexpr int kTileColumns = 32;                     // of y, for one warp
  static constexpr int kTileStageBytes = kTileColumns * 64;  // 32 ranks of B
  static constexpr int kRingBytes =
      kShrinks ? kNumStages * kStageBytes : 4 * kTileStageBytes;
  /// B may use what A and x have left: with x in full that is at least 5 KB.
  static constexpr int kNumTileStages = kKeepsX && kShrinks ? 2 : kRingBytes / kTileStageBytes;

  // The exchange. Scattered: a token's sums go to one CTA of the cluster, which hands on h.
  // Otherwise to every CTA, which each add them up: sooner done, but more is sent.
  static constexpr bool kScatters = kCluster > 1 && (kTokenTiles > 1 || kStage == Stage::kShrink);
  static constexpr int kRowFloats = kBlockRank + 4;  // + 4 keeps banks apart
  static constexpr int kTileFloats = kTokens * kRowFloats;
  static constexpr int kReceiveTile = kScatters ? kTileFloats / kCluster : kTileFloats;
  static constexpr int kReceiveFloats = kCluster > 1 ? kNumGroups * kReceiveTile : kTileFloats;
  static constexpr int kSumFloats =
      kShrinks ? kNumWarps * kTileFloats + (kCluster > 1 ? 2 : 1) * kReceiveFloats : 0;

  LORATORY_BOTH static constexpr int warp_bytes(int num_in) {
    return kRingBytes + (kKeepsX && kShrinks ? 2 * kTokens * chunk_size(num_in) : 0);
  }
  static constexpr int kTableBytes = 16 * kTokens + 640;  // slices, tokens, barriers
  static int shared_bytes(int num_in, int h_width) {
    const int h = kStage == Stage::kShrink ? 0 : kTokens * h_stride(h_width);
    return kNumWarps * warp_bytes(num_in) + 4 * kSumFloats + h + kTableBytes;
  }
};

}  // namespace loratory::gpu
