#include <algorithm>

#include "gpu/plan/lora_variant.hpp"
#include "gpu/plan/variant_table.hpp"

namespace loratory::gpu {

// The rules of choose_variant.cpp for shrinks, measured as its own.
namespace h200 {

// Up to 32 tokens with much to read. The GPU holds so many clusters at once, of items of 32 ranks.
constexpr int64_t kClustersOf8 = 45;
constexpr int64_t kClustersOf4 = 92;
constexpr int64_t kClustersOf32Tokens = 30;  ///< of 8, of items of 32 ranks
constexpr int64_t kManyRankBlocks = 12;      ///< three slices of rank 256
constexpr int64_t kFewItemsOf16 = 32;        ///< work items of 16 ranks: clusters of 8 hold all
constexpr int64_t kFewItemsOf32 = 8;         ///< two CTAs of 32 ranks for one of 64 find idle SMs
constexpr int64_t kMostOfHalvedBlocks = 30'000'000;  ///< columns of all segments times ranks
/// Columns of all segments, three CTAs of 512 an SM: with more, an expand of gate and up leaves
/// clusters of 8 no room.
constexpr int64_t kMostColumnsBesideClustersOf8 = 396 * 512;
constexpr int64_t kManySegmentsBehindProduct = 16;  ///< 11 gained nothing
/// Columns of y, where products of as many take long enough for a shrink beside them. 6,144 are too
/// few, 28,672 enough; none between was measured.
constexpr int64_t kColumnsOfLongProduct = 16384;
constexpr int64_t kTilesOfIdleSm = 2;  ///< work tiles of such a shrink for each idle SM
/// CTAs of a shrink through memory for each SM that a product leaves idle: up to 8 tokens as many
/// as fit (2.67 gained, 2.78 lost), up to 32 twice as many (5.33 gained), and beside a long product
/// those that follow them while it runs.
constexpr double kCtasOfIdleSm = 2.7, kCtasBesideLongProduct = 20;
/// Long rows of few tokens, whose clusters find room beside a product of few tiles. Such tiles cost
/// more than is gained with more adapters, or with 64 ranks of 14,336 columns.
constexpr int64_t kMostSegmentsOfLongRows = 2, kMostOfA = 64 * 12288;

constexpr int64_t kAny = INT64_MAX;

/// A wide shrink by wgmma, and how many of its work tiles fit in one wave.
struct WideShrinkRule {
  int rank_tiles, cluster, stages;
  int64_t tiles_in_wave;
  int64_t most_rank_blocks;       ///< of 64 ranks: the rule is for layers of up to so many
  int64_t least_rank_blocks = 1;  ///< and of at least so many
};

// In order of preference: the first row whose wave holds all work tiles is taken. The largest
// cluster comes first, then the deepest pipeline. Tiles of 128 ranks read x half as often, but up
// to 66 clusters of 2 leave each CTA an SM.
constexpr WideShrinkRule kWideShrinkRules[] = {
    // rank_tiles, cluster, stages, tiles_in_wave, most_rank_blocks
    {4, 8, 4, 30, kAny},  {4, 8, 3, 45, kAny},   {4, 4, 4, 60, kAny},  {4, 2, 4, 66, 2, 2},
    {8, 4, 3, 60, 2},     {4, 4, 3, 92, kAny},   {4, 2, 4, 132, kAny}, {4, 2, 3, 198, kAny},
    {4, 2, 3, kAny, 1},   {8, 2, 3, 132, kAny},  {4, 1, 4, 264, kAny}, {4, 1, 3, 396, kAny},
    {8, 1, 3, 264, kAny}, {8, 2, 3, kAny, kAny},
};

}  // namespace h200

namespace {

/// Even with an adapter in every slot, each has at least so many tokens on average.
bool has_tokens_each(const LaunchShape& shape, int64_t tokens) {
  return shape.num_tokens >= tokens * shape.num_slots;
}

/// The work tiles of a wide shrink: a segment and 16 · rank_tiles ranks each.
int64_t wide_shrink_tiles(const LaunchShape& shape, int rank_tiles) {
  const int64_t blocks_per_tile = rank_tiles / 4;
  return segments_of_64(shape) * ((shape.num_rank_blocks + blocks_per_tile - 1) / blocks_per_tile);
}

constexpr LoraVariant kWideShrinkWithoutWgmma{
    .rank_tiles = 4, .token_tiles = 4, .cluster = 8, .stages = 4};

LoraVariant wide_shrink(const LaunchShape& shape) {
  if (!shape.has_wgmma) return kWideShrinkWithoutWgmma;
  const auto* const rule =
      std::ranges::find_if(h200::kWideShrinkRules, [&](const h200::WideShrinkRule& r) {
        return wide_shrink_tiles(shape, r.rank_tiles) <= r.tiles_in_wave &&
               shape.num_rank_blocks <= r.most_rank_blocks &&
               shape.num_rank_blocks >= r.least_rank_blocks;
      });
  return {.rank_tiles = rule->rank_tiles,
          .token_tiles = 8,
          .cluster = rule->cluster,
          .stages = rule->stages};
}

/// More than 32 tokens in segments of 8. With few adapters a large cluster shares each segment, as
/// long as that fits in one wave. With many adapters a small cluster streams more of each.
LoraVariant narrow_shrink(const LaunchShape& shape) {
  const bool few = has_tokens_each(shape, 4) && shape.num_tokens <= h200::kDecodeTokens;
  if (shape.max_rank <= 16) {
    const bool is_small = shape.num_tokens * shape.num_slices <= 64;
    if (few) {
      const bool fits = shape.num_slices == 1 || shape.num_tokens <= 64;
      return {.cluster = fits ? 8 : 4, .stages = 2};
    }
    return {.cluster = is_small ? 4 : 2, .stages = 2};
  }
  const bool is_small = shape.num_tokens * shape.num_rank_blocks <= 128;
  if (few && is_small && shape.max_rank <= 32) return {.rank_tiles = 2, .cluster = 8, .stages = 2};
  if (few && is_small) return {.rank_tiles = 4, .cluster = 8};
  return {.rank_tiles = 2, .cluster = few || is_small ? 4 : 2};
}

/// Several rank blocks. Where clusters of 8 do not fit in one wave, some have twice the work of
/// others; smaller clusters with items of 32 ranks share it better. One slice loses by them if its
/// adapters have several tokens each, and so do two slices. q|k|v of small ranks was not measured
/// behind its product.
LoraVariant small_shrink_of_blocks(const LaunchShape& shape) {
  constexpr LoraVariant kBlocks{.rank_tiles = 4, .cluster = 8};
  const bool has_few_each = may_have_few_tokens_each(shape);
  const bool has_two = shape.num_rank_blocks == 2;  // four items of 32 ranks a segment
  if (has_two && has_few_each && 4 * segments_of_8(shape) > h200::kClustersOf8) {
    return {.rank_tiles = 2, .cluster = 4};
  }
  if (halves_rank_blocks_of_pair(shape)) return {.rank_tiles = 2, .cluster = 8};
  const bool is_measured =
      !shape.has_experts && (shape.max_rank > 64 || shape.num_split_units == 0);
  if (!is_measured || shape.num_slices == 2) return kBlocks;
  const int64_t of_32 = 2 * most_segments(shape, 8) * shape.num_rank_blocks;
  if (of_32 <= h200::kFewItemsOf32) return {.rank_tiles = 2, .cluster = 8};
  if (shape.num_slices == 1 && !has_few_each) return kBlocks;
  if (of_32 > 2 * h200::kClustersOf4) return {.rank_tiles = 2, .cluster = 2};
  return of_32 > h200::kClustersOf8 ? LoraVariant{.rank_tiles = 2, .cluster = 4} : kBlocks;
}

/// A small rank of many adapters behind a product of x (split_sums), as steps of an engine showed.
/// Long rows lose by clusters of 2, and several slices of 24 and 32 adapters do.
bool suits_clusters_of_2(const LaunchShape& shape) {
  return shape.num_split_units > 0 && shape.num_slices == 1 && !has_long_rows(shape) &&
         !shape.has_experts && most_segments(shape, 8) >= h200::kManySegmentsBehindProduct;
}

/// Two slices of a small rank, of few segments. Behind SwiGLU's shrink comes another expand.
bool is_small_pair(const LaunchShape& shape) {
  const int64_t segments = segments_of_8(shape);
  if (shape.num_slices != 2 || 2 * segments > h200::kFewItemsOf16) return false;
  return shape.op != LoraOp::linear ||
         segments * shape.num_columns <= h200::kMostColumnsBesideClustersOf8;
}

/// Up to 32 tokens: there are few segments, and a cluster of 8 shares each.
LoraVariant small_shrink(const LaunchShape& shape) {
  if (shape.max_rank <= 16) {
    if (suits_clusters_of_2(shape)) return {.cluster = 2, .stages = 2};
    return {.cluster = shape.num_slices == 1 || is_small_pair(shape) ? 8 : 4, .stages = 2};
  }
  if (shape.num_rank_blocks == 1) return {.rank_tiles = 2, .cluster = 8};
  return small_shrink_of_blocks(shape);
}

/// Tokens of each adapter from which on warps sum strips of segments of 32. Of short rows other
/// kernels are faster from 65 tokens on, unless the segments are full.
int64_t tokens_each_of_strips(const LaunchShape& shape) {
  if (shape.num_tokens > 64) return has_long_rows(shape) ? 16 : 32;
  return shape.num_rank_blocks >= h200::kManyRankBlocks ? 9 : 16;
}

/// One slice of short rows gains nothing by strips up to 64 tokens, and rank 16 nothing up to 24 or
/// of short rows.
bool may_sum_strips_of_32(const LaunchShape& shape) {
  if (shape.num_tokens > 128) return false;
  if (shape.max_rank <= 16) return has_long_rows(shape) && shape.num_tokens > 24;
  return has_long_rows(shape) || shape.num_tokens > 64 || shape.num_slices > 1;
}

/// From 65 tokens on, few adapters fill segments of 32, or up to 128 tokens at least half of them.
/// A small rank gains by full ones of several slices alone.
bool fills_segments_of_32(const LaunchShape& shape) {
  if (shape.num_tokens <= 64) return false;
  if (shape.max_rank <= 16) return has_tokens_each(shape, 32) && shape.num_slices > 1;
  return has_tokens_each(shape, shape.num_tokens <= 128 ? 16 : 32);
}

/// Whether SMs that a long product leaves idle do all of the shrink while it runs, with few
/// adapters. Up to 64 tokens nothing was gained.
bool fits_beside_product(const LaunchShape& shape) {
  return shape.has_wgmma && shape.num_tokens > 64 && has_tokens_each(shape, 32) &&
         shape.num_columns >= h200::kColumnsOfLongProduct &&
         wide_shrink_tiles(shape, 4) <= h200::kTilesOfIdleSm * shape.idle_sms;
}
constexpr LoraVariant kShrinkBesideProduct{
    .rank_tiles = 4, .token_tiles = 8, .cluster = 1, .stages = 4};

/// Up to 16 tokens of an adapter, several slices of large ranks.
bool suits_two_segments(const LaunchShape& shape) {
  return shape.num_tokens <= 16 && shape.num_slices > 2 && shape.max_rank > 64 &&
         !has_long_rows(shape) && !shape.has_experts;
}

LoraVariant shrink_of_clusters(const LaunchShape& shape) {
  if (shape.num_tokens > h200::kDecodeTokens && !may_have_many_adapters(shape)) {
    return wide_shrink(shape);
  }
  if (fits_beside_product(shape)) return kShrinkBesideProduct;
  if (sums_strips_of_32(shape) && !suits_two_segments(shape)) return shrink_by_strips_of_32(shape);
  if (has_long_rows(shape) && shape.max_rank > 16) {
    return {.rank_tiles = 2, .cluster = 8, .stages = 2};
  }
  if (fills_segments_of_32(shape)) return kWideShrinkWithoutWgmma;
  return shape.num_tokens <= 32 ? small_shrink(shape) : narrow_shrink(shape);
}

/// Up to 8 tokens, several slices of up to 64 ranks are faster in clusters, behind a product that
/// is not long.
bool is_small_in_clusters(const LaunchShape& shape) {
  return shape.max_rank <= 64 && shape.num_slices > 1 && shape.num_tokens <= 8 &&
         shape.num_columns < h200::kColumnsOfLongProduct;
}

/// Long rows gained nothing.
bool fits_idle_sms(const LaunchShape& shape, const LoraVariant& v) {
  if (shape.num_tokens > kMostTokensThroughMemory || shape.has_experts || has_long_rows(shape) ||
      is_small_in_clusters(shape)) {
    return false;
  }
  const int64_t segments = most_segments(shape, v.segment_size());
  const int64_t ranks = 16 * v.rank_tiles;
  const int64_t blocks = shape.num_slices * ((shape.max_rank + ranks - 1) / ranks);
  const double of_sm = shape.num_columns >= h200::kColumnsOfLongProduct
                           ? h200::kCtasBesideLongProduct
                           : h200::kCtasOfIdleSm * (shape.num_tokens <= 8 ? 1 : 2);
  return 4 * shape.num_tokens * shape.num_rank_blocks <= shape.num_split_units &&
         double(segments * blocks * v.cluster) <= of_sm * double(shape.idle_sms);
}

}  // namespace

bool halves_rank_blocks_of_pair(const LaunchShape& shape) {
  const int64_t size = most_segments(shape, 8) * shape.num_columns * shape.max_rank;
  return shape.op == LoraOp::linear && is_wide_pair(shape) && !has_long_rows(shape) &&
         !shape.has_experts && shape.num_tokens <= 32 && shape.max_rank > 64 &&
         size <= h200::kMostOfHalvedBlocks;
}

bool sums_strips_of_32(const LaunchShape& shape) {
  const int64_t segments = std::max((shape.num_tokens + 31) / 32, shape.num_slots);
  return may_sum_strips_of_32(shape) && has_tokens_each(shape, tokens_each_of_strips(shape)) &&
         2 * segments * shape.num_rank_blocks <= h200::kClustersOf32Tokens;
}
LoraVariant shrink_by_strips_of_32(const LaunchShape& shape) {
  if (!has_long_rows(shape)) return {.rank_tiles = 2, .token_tiles = 4, .cluster = 8};
  return {.rank_tiles = shape.max_rank > 16 ? 2 : 1, .token_tiles = 4, .cluster = 8, .stages = 2};
}

bool gains_by_idle_sms(const LaunchShape& shape) {
  if (shape.num_split_units == 0) return false;
  if (!has_long_rows(shape) || shape.num_tokens > kMostTokensBesideLongRows) return true;
  return most_segments(shape, 8) <= h200::kMostSegmentsOfLongRows &&
         shape.max_rank * shape.num_in <= h200::kMostOfA && shape.num_in <= kLongestRows;
}

LoraVariant on_idle_sms(const LaunchShape& shape, const LoraVariant& cluster) {
  LoraVariant out = cluster;
  out.through_memory = fits_idle_sms(shape, cluster);
  return out;
}

LoraVariant choose_shrink_variant(const LaunchShape& shape) {
  const LoraVariant cluster = shrink_of_clusters(shape), chosen = on_idle_sms(shape, cluster);
  return has_kernel(LoraOp::shrink, chosen) ? chosen : cluster;
}

}  // namespace loratory::gpu
