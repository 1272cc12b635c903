#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "gpu/plan/launch_shape.hpp"

namespace loratory::gpu {

/// The tile shape of one launch. All variants give the same bits; they differ in speed.
/// variant_table.hpp lists those that have a kernel.
struct LoraVariant {
  int rank_tiles = 1;   ///< ranks at a time, in units of 16
  int token_tiles = 1;  ///< tokens of a segment, in units of 8
  int cluster = 1;      ///< CTAs that share a segment; 1: no cluster, which any GPU can launch
  int stages = 1;       ///< of the pipeline in shared memory
  bool aligned = true;  ///< all accesses of x, A, B and y are vectors of 16 bytes
  int launches = 1;     ///< of a linear: 2 are this shrink and an expand, with h in a workspace
  /// Of a shrink: the CTAs that share a segment are launched one by one, and their sums meet in
  /// memory. They find room where a cluster does not, beside a product.
  bool through_memory = false;
  /// Of a CTA; an expand of segments of 8 may have four. More such CTAs, with fewer columns each,
  /// find room on an SM beside other kernels.
  int warps = 8;

  constexpr int launched_cluster() const { return through_memory ? 1 : cluster; }
  constexpr int segment_size() const { return 8 * token_tiles; }
  constexpr bool is_wide() const { return token_tiles > 1; }
  /// Of a shrink: each warp sums a strip of K, for all ranks and tokens of the tile.
  constexpr bool sums_strips() const { return token_tiles == 1 || rank_tiles < 4; }
  /// Of a shrink: it may begin beside the product of the same x (LaunchOrder::x_is_ready). Wide
  /// clusters do not start there.
  constexpr bool may_read_x_early() const { return sums_strips() || cluster == 1; }
  constexpr bool needs_wgmma() const { return token_tiles == 8 && rank_tiles >= 4; }
  friend bool operator==(const LoraVariant&, const LoraVariant&) = default;
};

/// "rank_tiles=1 token_tiles=1 cluster=8 stages=2 aligned=true launches=2 through_memory=false
/// warps=8"
std::string describe(const LoraVariant& variant);
std::ostream& operator<<(std::ostream& out, const LoraVariant& variant);

/// The rules choose LoraVariant::through_memory for up to so many tokens.
inline constexpr int64_t kMostTokensThroughMemory = 32;

/// The rules. They depend on `shape` alone, so a replayed graph would choose the same.
LoraVariant choose_variant(const LaunchShape& shape);

/// Whether one launch is faster than two.
bool gains_by_one_launch(const LaunchShape& shape);

/// Whether the warps of a shrink sum strips of segments of 32: where these are half full, or where
/// very many ranks would be summed for two segments of 8, and one wave holds all items of 32 ranks.
bool sums_strips_of_32(const LaunchShape& shape);
/// That shrink.
LoraVariant shrink_by_strips_of_32(const LaunchShape& shape);

/// Whether a linear of gate and up shrinks 32 ranks of more than 64 at a time, and expands by CTAs
/// of four warps: smaller ones of either find room beside each other.
bool halves_rank_blocks_of_pair(const LaunchShape& shape);

/// The same shrink, launched CTA by CTA (through_memory) if it has up to 32 tokens and finds room
/// on the SMs that the product of x leaves idle. Where it finds none, a cluster is faster. Whether
/// there is a kernel is not looked at.
LoraVariant on_idle_sms(const LaunchShape& shape, const LoraVariant& cluster);

/// Whether the product of a shrink's x is to leave SMs idle for it (ProductUse::before_lora).
/// `shape`: of the linear, whatever its idle_sms.
bool gains_by_idle_sms(const LaunchShape& shape);
/// Products of long rows leave them for up to so many tokens and columns of x; longer rows were not
/// measured.
inline constexpr int64_t kMostTokensBesideLongRows = 8, kLongestRows = 14336;

/// For a shrink of aligned rows, on its own or as the first launch of a linear, where the GPU has
/// clusters.
LoraVariant choose_shrink_variant(const LaunchShape& shape);

/// For an expand that processes 8 · token_tiles tokens at a time, or fewer: on its own, or as the
/// second launch of a linear.
LoraVariant choose_expand_variant(const LaunchShape& shape, int token_tiles);

/// For the expand of a layer whose shrink a gated expand did.
LoraVariant choose_expand_behind_splits(const LaunchShape& shape);

/// Whether a gated expand should shrink for the next layer too. Its CTAs take whole splits of K, so
/// that they must fill most of their waves. `shape`: of gate and up.
bool pays_to_shrink_next(const LaunchShape& shape);

}  // namespace loratory::gpu
