#pragma once

#include "gpu/plan/host_device.hpp"
#include "gpu/plan/swizzle.hpp"

// What a CTA of expert_product() holds: sizes, and where columns of y lie. The same on the host.

namespace loratory::gpu {

/// A CTA multiplies up to kRows_ rows of x with kWarps_ · 16 · kTiles_ rows of W, which are columns
/// of y. A stage has 64 · kPanels_ numbers of K of each.
template <int kRows_, int kWarps_, int kTiles_, int kPanels_, int kStages_, int kCtasPerSm_>
struct ExpertTile {
  static constexpr int kRows = kRows_, kWarps = kWarps_, kTiles = kTiles_;
  static constexpr int kPanels = kPanels_, kStages = kStages_, kCtasPerSm = kCtasPerSm_;
  static constexpr int kNumThreads = 32 * kWarps;
  static constexpr int kWarpColumns = 16 * kTiles;
  static constexpr int kColumns = kWarps * kWarpColumns;
  static constexpr int kRowBytes = 128;
  static constexpr int kPanelBytes = (kColumns + kRows) * kRowBytes;
  static constexpr int kStageBytes = kPanels * kPanelBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static constexpr int kRowsAtOnce = kNumThreads / 8;  // eight lanes copy a row of a panel
  static_assert(kColumns % kRowsAtOnce == 0);
  /// An SM of sm_90 has 228 KB, and each CTA takes 1 KB and the table of rows.
  static_assert(kCtasPerSm * (kSharedBytes + 1024 + 512) <= 228 * 1024);

  /// The column of the CTA's tile that row `place` of a panel holds: row 8 h + g of the fragment of
  /// tile t is column 2 kTiles g + 2 t + h of the warp, so that a thread owns 2 kTiles neighbouring
  /// columns of a row of y.
  LORATORY_HOST_DEVICE static constexpr int column_of(int place) {
    const int in_warp = place % kWarpColumns, tile = in_warp / 16;
    return place / kWarpColumns * kWarpColumns + in_warp % 8 * 2 * kTiles + 2 * tile +
           in_warp / 8 % 2;
  }
  // What ldmatrix is given, for 16 numbers of K from vector v of a panel on: lane i names a row of
  // a panel and a vector of it.
  LORATORY_HOST_DEVICE static constexpr int weight_place(int warp, int tile, int lane) {
    return warp * kWarpColumns + 16 * tile + lane % 16;
  }
  LORATORY_HOST_DEVICE static constexpr int weight_vec(int v, int lane) { return v + lane / 16; }
  /// Of eight rows of x from 8 · group on, or of sixteen.
  LORATORY_HOST_DEVICE static constexpr int x_place(int group, int lane) {
    return 8 * group + (kRows == 8 ? 0 : lane / 16 * 8) + lane % 8;
  }
  LORATORY_HOST_DEVICE static constexpr int x_vec(int v, int lane) { return v + lane / 8 % 2; }

  /// The row of x that sums i and 2 + i of a fragment belong to; their columns are neighbours.
  LORATORY_HOST_DEVICE static constexpr int row_of_sum(int group, int lane, int i) {
    return 8 * group + 2 * (lane % 4) + i;
  }
  /// The first of the columns that a thread stores.
  LORATORY_HOST_DEVICE static constexpr int first_column(int warp, int lane) {
    return warp * kWarpColumns + lane / 4 * 2 * kTiles;
  }
};

using NarrowExpertTile = ExpertTile<8, 2, 1, 2, 4, 5>;
using MiddleExpertTile = ExpertTile<32, 4, 1, 1, 6, 3>;
using WideExpertTile = ExpertTile<64, 4, 2, 1, 4, 2>;

}  // namespace loratory::gpu
