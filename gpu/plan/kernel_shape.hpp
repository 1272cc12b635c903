#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/plan/host_device.hpp"
#include "gpu/plan/lora_variant.hpp"

// What follows from a variant: tile sizes, pipelines and shared memory, the same on the host and on
// the device.

namespace loratory::gpu {

/// K is cut into splits (as in split-K), and each split into strips: what one warp sums in a row.
inline constexpr int kNumSplits = 8;
inline constexpr int kStripsPerSplit = 8;

/// Columns of x in a strip. K alone decides it, so the order of sums is the same everywhere.
LORATORY_HOST_DEVICE constexpr int strip_size(int num_in) {
  constexpr int kStep = kNumSplits * kStripsPerSplit * 32;
  return (num_in + kStep - 1) / kStep * 32;
}

LORATORY_HOST_DEVICE constexpr int split_size(int num_in) {
  return kStripsPerSplit * strip_size(num_in);
}

LORATORY_HOST_DEVICE constexpr int padded_rank(int rank, int to = 16) {
  return (rank + to - 1) / to * to;
}

/// Bytes between the rows of h in shared memory, 4 per rank. An odd multiple of 16 avoids bank
/// conflicts.
LORATORY_HOST_DEVICE constexpr int h_stride(int h_width) { return 4 * h_width + 16; }

/// Columns of y that a warp computes at a time.
LORATORY_HOST_DEVICE constexpr int tile_columns(int token_tiles) {
  return token_tiles == 1 ? 64 : 32;
}

/// h as wgmma reads it: panels of 64 ranks of all tokens, hi and then lo.
inline constexpr int kPanelRanks = 64;

/// kWeightBytes, kXBytes: of a number of A and B, and of x, in shared memory. kHBytes: of h that an
/// expand reads.
template <LoraVariant kVariant, LoraOp kOp, int kOutBytes, int kWeightBytes = 2, int kXBytes = 2,
          int kHBytes = 4>
struct KernelShape {
  static constexpr int kRankTiles = kVariant.rank_tiles;
  static constexpr int kTokenTiles = kVariant.token_tiles;
  static constexpr int kCluster = kVariant.cluster;
  static constexpr int kStages = kVariant.stages;
  static constexpr bool kAligned = kVariant.aligned;
  static constexpr bool kThroughMemory = kVariant.through_memory;

  static constexpr bool kShrinks = shrinks(kOp);
  static constexpr bool kExpands = expands(kOp);
  static constexpr bool kGated = is_gated(kOp);
  static constexpr bool kShrinksNext = kOp == LoraOp::gated_expand_shrink;
  static constexpr int kNumWarps = kVariant.warps;
  static_assert(!kShrinks || kNumWarps == kStripsPerSplit);  // a strip each
  static constexpr int kNumThreads = 32 * kNumWarps;
  static constexpr int kSplitsPerCta = kNumSplits / kCluster;
  static constexpr int kBlockRanks = 16 * kRankTiles;  // of a rank block
  static constexpr int kTokens = 8 * kTokenTiles;      // of a segment

  /// A narrow shrink gives each strip a warp, so that as much of A as possible is in flight, and
  /// the warps' sums meet in shared memory. A wide one gives a warp or a warpgroup some ranks and
  /// tokens; it goes through all strips and shares its sums with nobody.
  static constexpr bool kWide = kShrinks && !kVariant.sums_strips();
  /// A shrink of many tokens lets the expand start once y is settled, so that it may read y early.
  static constexpr bool kSettlesY = kShrinks && kTokenTiles > 1;
  static constexpr bool kWgmma = kTokenTiles == 8 && kRankTiles >= 4;
  static_assert(!kThroughMemory || (kOp == LoraOp::shrink && !kWide && kCluster > 1));
  static_assert(!kWide || (!kExpands && (kWgmma || (kTokenTiles == 4 && kRankTiles == 4))));
  /// wgmma reads 8-bit operands from buffers in shared memory that they are widened into.
  static constexpr bool kWidens = kWgmma && kWeightBytes == 1;

  /// Splits that a narrow shrink sums before its warps meet: several where the registers allow it.
  static constexpr int splits_at_once() {
    if (kWide || kRankTiles > (kExpands ? 1 : 2)) return 1;
    if (!kExpands) return std::min(kSplitsPerCta, kRankTiles == 1 || kCluster == 2 ? 2 : 1);
    return kSplitsPerCta <= 4 ? kSplitsPerCta : 1;
  }
  static constexpr int kSplitsAtOnce = splits_at_once();

  /// CTAs that have as many warps as most kernels' have.
  static constexpr int kCtasOfEightWarps = 8 / kNumWarps;
  /// The occupancy that bounds the registers: what fits in shared memory of an SM of sm_90, or what
  /// several overlapping launches need.
  static constexpr int ctas_per_sm() {
    if (kWide) return kWgmma && kRankTiles == 4 ? std::max(2, 6 - kStages) : 2;
    if (!kExpands && kTokenTiles > 1) return 2;
    if (!kExpands) return kRankTiles == 1 && kCluster == kNumSplits && !kThroughMemory ? 4 : 3;
    if (!kShrinks && kTokenTiles == 1) return (kRankTiles > 1 ? 3 : 4) * kCtasOfEightWarps;
    if (!kShrinks) return kRankTiles == 1 && kTokenTiles == 4 ? 3 : 2;
    return kRankTiles == 1 && kCluster == kNumSplits ? 3 : 2;
  }
  static constexpr int kCtasPerSm = ctas_per_sm();

  // The pipeline of A and x: stages of 64 columns, one pipeline per warp, or one per CTA if wide.
  static constexpr int kRowBytes = 64 * kWeightBytes;  // of a rank
  static constexpr int kXRowBytes = 64 * kXBytes;      // of a token
  static constexpr int kABytes = kBlockRanks * kRowBytes;
  static constexpr int kStageBytes = kABytes + kTokens * kXRowBytes;
  static constexpr int kWgmmaRowBytes = 128;  // of a rank, token or column that wgmma reads
  /// A K tile of A, and of 8-bit x; there are two, behind the stages.
  static constexpr int kWidenedBytes =
      kWidens && kShrinks ? (kBlockRanks + (kXBytes == 1 ? kTokens : 0)) * kWgmmaRowBytes : 0;
  static constexpr int kPipelineBytes =  // per warp
      kShrinks ? (kStages * kStageBytes + 2 * kWidenedBytes) / (kWide ? kNumWarps : 1) : 0;
  static_assert(kPipelineBytes % 16 == 0);

  // The pipeline of B, one per warp or per warpgroup, followed by buffers for base: what y holds
  // before.
  static constexpr int kPipelineWarps = !kShrinks && kWgmma ? 4 : 1;
  static constexpr int kNumBPipelines = kNumWarps / kPipelineWarps;
  /// Column tiles that are computed at once. Of a gated expand half of the warps have gate, the
  /// others the same columns of up.
  static constexpr int kTileStep = kGated ? kNumBPipelines / 2 : kNumBPipelines;
  static constexpr int kTileColumns = kPipelineWarps > 1 ? 64 : tile_columns(kTokenTiles);
  static constexpr int kStageRanks = 16 * kRankTiles;
  static constexpr int kBStageBytes = kTileColumns * kStageRanks * kWeightBytes;
  static constexpr int kNumBStages = !kExpands ? 0 : kShrinks ? kRankTiles : kStages;
  static constexpr int kBaseRowBytes = kTileColumns * kOutBytes;  // of a token
  static constexpr int kBaseBytes = kTokens * kBaseRowBytes;
  /// A narrow tile whose ranks take several stages needs one buffer; otherwise each stage has one.
  static constexpr int num_base_buffers() {
    if (kPipelineWarps > 1) return 2;
    return kTokenTiles > 1 || kRankTiles == 1 ? kNumBStages : 1;
  }
  static constexpr int kNumBaseBuffers = num_base_buffers();
  /// Of 8-bit B: the factors of a tile's columns, of as many tiles as may be on their way.
  static constexpr int kNumFactorBuffers = kNumBStages > 1 ? kNumBStages + 1 : 1;
  static constexpr int kBFactorBytes =
      kExpands && kTokenTiles == 1 && kWeightBytes == 1 ? 4 * kTileColumns * kNumFactorBuffers : 0;
  static constexpr int kWidenedBBytes = kWidens && kExpands ? kTileColumns * kWgmmaRowBytes : 0;
  static constexpr int kBPipelineBytes = kNumBStages * kBStageBytes +
                                         (kExpands ? kNumBaseBuffers * kBaseBytes : 0) +
                                         kBFactorBytes + kWidenedBBytes;

  // Shared memory behind all else for 8-bit weights that are widened before the previous kernel has
  // ended, if a launch has room for it. Of A it holds the first stage of each warp, or 32 columns
  // of it; none where four fragments of x share what was widened. Of B it holds one or all stages
  // of four warps, as many as half an item of an expand keeps busy. A gated expand waits for the
  // slower of a pair of warps, so there it holds those of all. A linear in one launch widens A
  // alone.
  static constexpr int kColumnsAhead =
      kShrinks && kTokenTiles == 1 && kWeightBytes == 1 && kCluster == 8
          ? (kRankTiles > 2 ? 32 : 64)
          : 0;
  static constexpr int kWarpsAhead =
      kExpands && !kShrinks && kTokenTiles == 1 && kWeightBytes == 1 ? (kGated ? kNumWarps : 4) : 0;
  static constexpr int kStagesAhead = kShrinks ? 1 : kNumBStages;
  static constexpr int kAheadOfWarp = kShrinks ? kBlockRanks * kColumnsAhead * 2 : 2 * kBStageBytes;
  /// For each stage that is.
  static constexpr int kAheadBytes = (kShrinks ? kNumWarps : kWarpsAhead) * kAheadOfWarp;

  // The reduction over the cluster. A shrink scatters: the sums of a token go to the CTA that
  // writes its h. A linear sends them to every CTA, and each adds them up. A wide shrink of a
  // single CTA delivers to nobody: it writes the sums of half of the splits to h and adds the other
  // half there, in two passes.
  static constexpr bool kReduceScatters = kCluster > 1 && !kExpands;
  static constexpr bool kDelivers = kCluster > 1 || !kWide;
  static constexpr int kNumPasses = kDelivers ? 1 : 2;
  static constexpr int kNumBuffers = kCluster > 1 && !kWide ? 2 : 1;
  static constexpr int kRowFloats = kBlockRanks + 4;  // + 4 avoids bank conflicts
  static constexpr int kTileFloats = kTokens * kRowFloats;
  static constexpr int kPartialFloats =
      kShrinks && !kWide ? kSplitsAtOnce * kNumWarps * kTileFloats : 0;
  static constexpr int kReceiveTile = kReduceScatters ? kTileFloats / kCluster : kTileFloats;
  static constexpr int kSenders = kWide ? kCluster : kNumSplits;  // of sums of a token
  static constexpr int kReceiveFloats = kDelivers && !kThroughMemory ? kSenders * kReceiveTile : 0;
  /// Four splits: the sum of the first two is parked where the CTA will receive sums later.
  static constexpr bool kHasPairs = kWide && kSplitsPerCta / kNumPasses > 2;
  static constexpr int kParkedFloats = kHasPairs ? kTokens * kBlockRanks : 0;
  static constexpr int kSumFloats =
      kShrinks ? kPartialFloats + std::max(kNumBuffers * kReceiveFloats, kParkedFloats) : 0;

  /// The table of a work tile has its slices and tokens. A wide kernel has two tables, because it
  /// loads the next work tile while it finishes the last one.
  static constexpr int kNumTables = kWide ? 2 : 1;
  /// Instead of where its rows begin, the table has the row of each token: where shared memory is
  /// scarce, or where rows of three tensors are needed.
  static constexpr bool kKeepsRows = kPipelineWarps > 1 || kGated;
  static constexpr int kWorkBytes = 512 + (kKeepsRows ? 4 : 16) * kTokens;
  static constexpr int kTableWeights = std::max(32, kTokens);               // router weights
  static constexpr int kHFactorBytes = kHBytes == 1 ? 4 * 8 * kTokens : 0;  // of up to 8 slices
  /// Of a narrow shrink of 8-bit A: the factors of the first rank blocks of a work tile, then those
  /// of 8-bit x.
  static constexpr int kFactorBlocks = 4;
  static constexpr int kAFactorBytes =
      kShrinks && !kWide && kWeightBytes == 1 ? 4 * (kFactorBlocks * kBlockRanks + kTokens) : 0;
  static constexpr int kTableBytes =  // and barriers, or router weights
      kNumTables * kWorkBytes + (kShrinks ? 128 : 4 * kTableWeights) + kHFactorBytes +
      kAFactorBytes;
  /// wgmma reads blocks of eight rows that begin at multiples of 1024.
  static constexpr int kPipelineAlignment = kWgmma ? 1024 : 16;
  static constexpr int kPipelineOffset = (kTableBytes + 4 * kSumFloats + kPipelineAlignment - 1) /
                                         kPipelineAlignment * kPipelineAlignment;
  /// A tile of the activation and one of A, of the next layer.
  static constexpr int kNextBytes = kShrinksNext ? (kTokens + kPanelRanks) * kWgmmaRowBytes : 0;
  static constexpr int kPipelinesBytes =
      kNumWarps * kPipelineBytes + kNumBPipelines * kBPipelineBytes + kNextBytes;

  /// h in shared memory: the ranks of a slice begin at multiples of kHPadding, and lo lies
  /// kLowBytes behind hi.
  static constexpr int kHPadding = kPipelineWarps > 1 ? kPanelRanks : 16;
  static constexpr int kLowBytes = kPipelineWarps > 1 ? kTokens * 2 * kPanelRanks : 16;
  LORATORY_HOST_DEVICE static constexpr int shared_bytes(int h_width) {
    const int row = kPipelineWarps > 1 ? 4 * h_width : h_stride(h_width);
    return kPipelineOffset + kPipelinesBytes + (kExpands ? kTokens * row : 0);
  }
};

}  // namespace loratory::gpu
