#include "gpu/plan/quantized_plan.hpp"

#include <algorithm>

#include "gpu/plan/quantized_variants.hpp"

namespace loratory::gpu {

using reference::Dtype;

LoraPath choose_quantized_path(LoraOp op, const QuantizedStage& stage) {
  const bool fits = op == LoraOp::shrink ? stage.from != Dtype::f32 && stage.to == Dtype::f32
                                         : stage.from == Dtype::f32 || is_quantized(stage.from);
  return fits && stage.aligned && stage.one_group ? LoraPath::tensor_core : LoraPath::generic;
}

namespace {

constexpr int64_t kNarrowTokens = 256;  // above: segments of 32 tokens, if few adapters share them
// Above: segments of 64 tokens by wgmma. From kNarrowTokens on they pay for several rank blocks.
constexpr int64_t kShortPrefillTokens = 512;
constexpr int64_t kMostColumnsOfOneLaunch = 40'000;  // of all segments: 49,152 lost
constexpr int64_t kTilesOfClustersOf4 = 96;          // 64 gained, 128 lost
constexpr int64_t kManyTiles = 64;                   // of adapters of several tokens; 33 lost
// Up to so many, narrow shrinks in clusters beat single CTAs on SMs that a product leaves idle.
constexpr int64_t kTokensInClusters = 16;

/// An expand of more than 64 ranks by CTAs of four warps, whose stages hold 64 ranks of B each.
struct StagesRule {
  int64_t most_columns;  ///< of all segments
  int stages;
  int64_t least_rank, most_rank;
  bool of_one_slice = false;  ///< not of several
  bool of_few_each = false;   ///< not where may_have_few_tokens_each() is false
};

constexpr int64_t kAny = INT64_MAX;

// As measured, in order of preference. Stages that hold all ranks pay while one wave of CTAs has
// all of B in flight.
constexpr StagesRule kStagesOfLargeRanks[] = {
    // most_columns, stages, least_rank, most_rank, of_one_slice, of_few_each
    {16'384, 4, 65, kAny},
    {32'768, 4, 129, kAny, true},
    {110'000, 2, 129, kAny},
    {25'000, 2, 65, 128},
    {50'000, 1, 65, 128, false, true},
    {66'000, 4, 65, 128, true, true},
    {140'000, 2, 65, 128, false, true},
};

// As many tokens for each slot, or so many that the number of slots does not matter.
bool fills_segments(const LaunchShape& shape) {
  return shape.num_tokens > 1024 || shape.num_tokens >= 16 * shape.num_slots;
}

/// A graph does not know how many there are.
int64_t most_adapters(const LaunchShape& shape) {
  return std::min(shape.num_tokens, shape.num_slots);
}

/// Up to 16 ranks. Half as many CTAs where they would be more than 1.5 an SM: what each does
/// besides counts.
LoraVariant shrink_of_16_ranks(const LaunchShape& shape, int cluster) {
  const bool has_many = shape.num_tokens <= 32 && most_adapters(shape) * shape.num_slices > 24;
  return {.cluster = has_many ? 4 : cluster, .stages = 2};
}

/// Of long rows: with up to 16 adapters, tiles of 32 ranks in two stages, so that more SMs have
/// one.
LoraVariant shrink_of_long_rows(const LaunchShape& shape, int cluster) {
  const bool are_few = shape.num_tokens <= 32 && most_adapters(shape) <= 16;
  if (!are_few || shape.num_rank_blocks > 2) return {.rank_tiles = 4, .cluster = cluster};
  return {.rank_tiles = 2, .cluster = cluster, .stages = 2};
}

/// Work tiles of 64 ranks of which most have an adapter of their own: the more there are, the
/// smaller is the cluster that keeps all SMs at work.
LoraVariant shrink_of_many_adapters(const LaunchShape& shape, int64_t tiles) {
  if (shape.max_rank <= 32) return {.rank_tiles = 2, .cluster = 4};
  return {.rank_tiles = 4, .cluster = tiles > kTilesOfClustersOf4 ? 2 : 4};
}

/// Up to 32 tokens. Few segments of few ranks: smaller tiles, so that more SMs have one.
bool suits_tiles_of_32_ranks(const LaunchShape& shape) {
  if (shape.max_rank > 64) return false;
  return shape.max_rank <= 32 || most_segments(shape, 8) < (shape.num_slices > 2 ? 4 : 8);
}

LoraVariant narrow_quantized(const LaunchShape& shape) {
  const bool is_small = shape.num_tokens <= 32 || shape.num_tokens * shape.num_rank_blocks <= 64;
  const bool few = shape.num_tokens <= kNarrowTokens && shape.num_tokens >= 4 * shape.num_slots;
  const int cluster = is_small || few ? 8 : 2;
  if (shape.max_rank <= 16) return shrink_of_16_ranks(shape, cluster);
  if (shape.num_in > h200::kLongRows) return shrink_of_long_rows(shape, cluster);
  const int64_t tiles = most_segments(shape, 8) * shape.num_rank_blocks;
  // Below, of up to 32 ranks 11 lost, of more ranks 24 of one slice and 32 of several.
  const int64_t many = shape.max_rank <= 32 ? 24 : shape.num_slices == 1 ? 32 : 48;
  if (may_have_few_tokens_each(shape) && tiles >= many) {
    return shrink_of_many_adapters(shape, tiles);
  }
  if (shape.num_tokens <= 32 && tiles >= kManyTiles) return {.rank_tiles = 4, .cluster = 4};
  const bool are_small = shape.num_tokens <= 32 && suits_tiles_of_32_ranks(shape);
  return {.rank_tiles = are_small ? 2 : 4, .cluster = cluster};
}

// A work tile is a segment and 64 of its ranks. The largest cluster for which all tiles fit in one
// wave of an H100 or H200, which the shallower pipeline makes longer.
LoraVariant shrink_by_wgmma(const LaunchShape& shape) {
  const int64_t tiles = segments_of_64(shape) * shape.num_rank_blocks;
  if (tiles <= 30) return {.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 5};
  if (tiles <= 45) return {.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 3};
  if (tiles <= 92) return {.rank_tiles = 4, .token_tiles = 8, .cluster = 4, .stages = 3};
  return {.rank_tiles = 4, .token_tiles = 8, .cluster = 2, .stages = 5};
}

bool is_prefill(const LaunchShape& shape) {
  if (!shape.has_wgmma || !fills_segments(shape)) return false;
  return shape.num_tokens > kShortPrefillTokens ||
         (shape.num_tokens > kNarrowTokens && shape.num_rank_blocks > 1);
}

// As of 16-bit B: in short prefill an h of many panels takes too long to fetch.
bool expands_by_wgmma(const LaunchShape& shape) {
  if (shape.max_rank <= 32) return false;
  return shape.num_tokens > kShortPrefillTokens ||
         shape.num_slices * ((shape.max_rank + 63) / 64) <= 2;
}

LoraVariant choose_shrink(const LaunchShape& shape, bool is_wide) {
  if (is_prefill(shape)) return shrink_by_wgmma(shape);
  LoraVariant cluster = narrow_quantized(shape);
  if (is_wide) cluster = {.rank_tiles = 4, .token_tiles = 4, .cluster = 8, .stages = 4};
  if (sums_strips_of_32(shape)) cluster = shrink_by_strips_of_32(shape);
  if (shape.num_tokens <= kTokensInClusters && cluster.token_tiles == 1) return cluster;
  const LoraVariant chosen = on_idle_sms(shape, cluster);
  return has_quantized_kernel(LoraOp::shrink, chosen) ? chosen : cluster;
}

/// CTAs of eight warps are faster with 13 to 18 segments, which fill one wave, and with 4 to 7;
/// with fewer only if there are up to 32 ranks, or behind the shrink of long rows.
bool one_slice_suits_four_warps(const LaunchShape& shape, int64_t segments) {
  const bool has_long_rows = shape.num_in > h200::kLongRows;
  if (segments >= 8) return has_long_rows || segments < 13 || segments > 18;
  return segments < 4 && shape.max_rank > 32 && !has_long_rows;
}

/// CTAs of four warps leave more of an SM to what comes before and after. Each reads h, and makes
/// it beside 8-bit x, which takes longer with several slices or tokens.
int warps_of_expand(const LaunchShape& shape, bool h_is_wide) {
  constexpr int64_t kMostOfTwo = 400'000, kMostOfThree = 200'000;  // columns of all segments
  if (shape.max_rank <= 16) return 8;
  const int64_t segments = most_segments(shape, 8), columns = segments * shape.num_columns;
  if (!h_is_wide) return shape.num_slices == 1 && segments == shape.num_tokens ? 4 : 8;
  if (shape.num_slices == 1) return one_slice_suits_four_warps(shape, segments) ? 4 : 8;
  const bool has_few_each = may_have_few_tokens_each(shape);
  if (shape.num_slices == 2) {
    return (has_few_each || segments >= 8) && columns <= kMostOfTwo ? 4 : 8;
  }
  const bool suit_four = segments <= 4 || segments >= 12;
  return has_few_each && suit_four && columns <= kMostOfThree ? 4 : 8;
}

/// The first rule for an expand of more than 64 ranks; none: CTAs of eight warps.
const StagesRule* stages_of_large_ranks(const LaunchShape& shape) {
  const int64_t columns = most_segments(shape, 8) * shape.num_columns;
  const auto* const rule = std::ranges::find_if(kStagesOfLargeRanks, [&](const StagesRule& r) {
    return columns <= r.most_columns && shape.max_rank >= r.least_rank &&
           shape.max_rank <= r.most_rank && (!r.of_one_slice || shape.num_slices == 1) &&
           (!r.of_few_each || may_have_few_tokens_each(shape));
  });
  return rule == std::end(kStagesOfLargeRanks) ? nullptr : rule;
}

LoraVariant narrow_quantized_expand(const LaunchShape& shape, bool h_is_wide) {
  LoraVariant out{.rank_tiles = shape.max_rank > 16 ? 4 : 1};
  if (is_gated(shape.op)) return out;  // not measured
  if (shape.max_rank <= 64) {
    out.warps = warps_of_expand(shape, h_is_wide);
  } else if (const StagesRule* const rule = stages_of_large_ranks(shape); h_is_wide && rule) {
    out.stages = rule->stages, out.warps = 4;
  }
  return out;
}

}  // namespace

LoraVariant choose_quantized_expand(const LaunchShape& shape, int token_tiles, bool h_is_wide) {
  if (token_tiles == 8 && expands_by_wgmma(shape)) {
    return {.rank_tiles = 4, .token_tiles = 8, .stages = 2};
  }
  if (token_tiles > 1 && shape.num_tokens > 32)
    return {.rank_tiles = 2, .token_tiles = 4, .stages = 2};
  return narrow_quantized_expand(shape, h_is_wide);
}

LoraVariant choose_quantized_variant(const LaunchShape& shape, bool fits_one_launch) {
  const bool are_few = most_segments(shape, 8) * shape.num_columns <= kMostColumnsOfOneLaunch;
  if (shape.op == LoraOp::linear && fits_one_launch && are_few && gains_by_one_launch(shape)) {
    return {.cluster = 8, .stages = 2};
  }
  const bool is_wide = shape.num_tokens > 64 && fills_segments(shape);
  if (shape.op == LoraOp::expand) {
    const int token_tiles = is_prefill(shape) ? 8 : is_wide ? 4 : 1;
    return choose_quantized_expand(shape, token_tiles, /*h_is_wide=*/false);
  }
  LoraVariant out = choose_shrink(shape, is_wide);
  if (shape.op == LoraOp::linear) out.launches = 2;
  return out;
}

}  // namespace loratory::gpu
