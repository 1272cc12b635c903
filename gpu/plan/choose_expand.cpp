#include "gpu/plan/kernel_shape.hpp"
#include "gpu/plan/lora_variant.hpp"

// The rules of choose_variant.cpp for expands, measured as its own.

namespace loratory::gpu {
namespace h200 {

constexpr int64_t kPrefillTokens = 2048;      ///< above: B for 64 tokens at a time, at small ranks
constexpr int64_t kLongPrefillTokens = 4096;  ///< above: one more stage of B in any case

/// Two for each SM.
constexpr int64_t kCtasOfWave = 264;
/// Columns of all segments: two work items of 512 for each CTA.
constexpr int64_t kManyColumns = 2 * kCtasOfWave * 512;

// CTAs of four warps, up to 32 tokens. Of 33 to 64 ranks, columns of all segments; of more ranks,
// columns times ranks.
constexpr int64_t kLeastColumnsOfFourWarps = 98'304, kMostColumnsOfFourWarps = 200'000;
constexpr int64_t kMostOfFourWarps = 24'000'000;
constexpr int64_t kManySegments = 10;  ///< what more than 64 ranks need: eight adapters and more
constexpr int64_t kManySegmentsOfSlices = 3;  ///< of several slices

// More than 128 ranks: stages that hold all of them, while an SM has one such CTA at most; then
// three stages, two CTAs an SM. Segments times slices, and columns of all segments.
constexpr int64_t kMostPartsOfFourStages = 4, kMostColumnsOfFourStages = 16'384;
constexpr int64_t kMostColumnsOfThreeStages = 49'152;
constexpr int64_t kManyOfOneToken = 8;  ///< segments: two stages leave more room to the next shrink

/// Of gate and up of a small rank; fewer and more segments gained nothing.
constexpr int64_t kLeastSegmentsOfPair = 9, kMostSegmentsOfPair = 32;

}  // namespace h200

namespace {

int64_t num_panels(const LaunchShape& shape) {
  return shape.num_slices * ((shape.max_rank + 63) / 64);
}

/// In short prefill an h of many panels takes too long to fetch before the first product.
bool takes_wgmma_expand(const LaunchShape& shape) {
  if (!shape.has_wgmma || shape.max_rank <= 32) return false;
  if (shape.num_tokens > h200::kShortPrefillTokens) return true;
  return shape.num_tokens > h200::kDecodeTokens && num_panels(shape) <= 2;
}

/// Three stages, but two where they were faster: in prefill of middling length with one panel of h
/// or three, which leaves an SM room for two CTAs. With eight panels and fp32 y a third stage does
/// not fit.
LoraVariant wgmma_expand(const LaunchShape& shape) {
  const int64_t panels = num_panels(shape);
  const bool is_middling =
      shape.num_tokens > h200::kShortPrefillTokens && shape.num_tokens <= h200::kLongPrefillTokens;
  const bool is_deep = panels == 2 || panels > 3 || !is_middling;
  return {.rank_tiles = 4, .token_tiles = 8, .stages = is_deep && panels < 8 ? 3 : 2};
}

/// CTAs of eight warps with two stages of 64 ranks take so much of an SM that the next shrink waits
/// for their end. Many adapters lose by it, four with one token each, and three of several slices.
int warps_of_large_ranks(const LaunchShape& shape) {
  if (halves_rank_blocks_of_pair(shape)) return 4;
  const int64_t segments = segments_of_8(shape);
  const bool has_many = segments >= h200::kManySegments ||
                        (segments >= 4 && segments == shape.num_tokens) ||
                        (most_segments(shape, 8) >= h200::kManySegmentsOfSlices &&
                         shape.num_slices > 1 && !is_wide_pair(shape));
  const int64_t size = segments * shape.num_columns * shape.max_rank;
  return has_many && size <= h200::kMostOfFourWarps ? 4 : 8;
}

/// A stage of B holds 64 ranks. Where CTAs are few, more of B is on its way before the wait.
LoraVariant expand_of_large_ranks(const LaunchShape& shape) {
  const int64_t segments = most_segments(shape, 8), columns = segments * shape.num_columns;
  const bool has_many_of_one = segments >= h200::kManyOfOneToken && segments == shape.num_tokens;
  if (shape.max_rank > 128 && !is_wide_pair(shape) && !has_many_of_one) {
    if (segments * shape.num_slices <= h200::kMostPartsOfFourStages &&
        columns <= h200::kMostColumnsOfFourStages) {
      return {.rank_tiles = 4, .stages = 4, .warps = 4};
    }
    if (columns <= h200::kMostColumnsOfThreeStages) {
      return {.rank_tiles = 4, .stages = 3, .warps = 4};
    }
  }
  return {.rank_tiles = 4, .stages = 2, .warps = warps_of_large_ranks(shape)};
}

/// One stage that holds all ranks reads neighbouring columns as one run of B. Two stages pay only
/// where few CTAs must keep all of B in flight: up to 32 tokens and not too many columns.
LoraVariant narrow_two_stages(const LaunchShape& shape) {
  const int64_t columns = segments_of_8(shape) * shape.num_columns;
  if (columns > h200::kManyColumns && may_have_few_tokens_each(shape)) return {.rank_tiles = 4};
  const bool suits_four = columns >= h200::kLeastColumnsOfFourWarps &&
                          columns <= h200::kMostColumnsOfFourWarps && !has_long_rows(shape);
  return {.rank_tiles = 2, .stages = 2, .warps = suits_four ? 4 : 8};
}

/// Of gate and up: half as large items leave room for the shrink behind it.
bool suits_small_pair(const LaunchShape& shape) {
  const int64_t segments = most_segments(shape, 8);
  return shape.max_rank <= 16 && is_wide_pair(shape) && segments >= h200::kLeastSegmentsOfPair &&
         segments <= h200::kMostSegmentsOfPair && shape.num_tokens <= h200::kMostSegmentsOfPair;
}

/// Those of gated expands and of experts, which were not measured, have CTAs of eight warps.
LoraVariant narrow_expand(const LaunchShape& shape) {
  const bool may_have_four = !is_gated(shape.op) && !shape.has_experts;
  if (may_have_four && suits_small_pair(shape)) return {.stages = 2, .warps = 4};
  if (shape.max_rank <= 32) return {.rank_tiles = shape.max_rank > 16 ? 2 : 1};
  if (shape.num_tokens > 32) return {.rank_tiles = 4};
  if (shape.max_rank > 64) {
    if (!may_have_four) return {.rank_tiles = 4, .stages = 2};
    return expand_of_large_ranks(shape);
  }
  LoraVariant out = narrow_two_stages(shape);
  if (!may_have_four) out.warps = 8;
  return out;
}

/// Up to 128 tokens of several slices, one stage of all ranks is faster than two of half of them.
bool fits_one_stage(const LaunchShape& shape) {
  return shape.num_tokens <= 128 && shape.num_slices > 1 && shape.max_rank > 32 &&
         shape.max_rank <= 64;
}

}  // namespace

LoraVariant choose_expand_variant(const LaunchShape& shape, int token_tiles) {
  if (!shape.aligned) return {.stages = 3, .aligned = false};
  if (token_tiles == 8 && takes_wgmma_expand(shape)) return wgmma_expand(shape);
  if (token_tiles == 8 && shape.max_rank <= 32 && shape.num_tokens > h200::kPrefillTokens) {
    return {.token_tiles = 8, .stages = 2};
  }
  if (token_tiles == 1) return narrow_expand(shape);
  if (fits_one_stage(shape)) return {.rank_tiles = 4, .token_tiles = 4};
  return {.rank_tiles = shape.max_rank > 16 ? 2 : 1, .token_tiles = 4, .stages = 2};
}

LoraVariant choose_expand_behind_splits(const LaunchShape& shape) { return wgmma_expand(shape); }

bool pays_to_shrink_next(const LaunchShape& shape) {
  if (!takes_wgmma_expand(shape)) return false;
  const int64_t splits = segments_of_64(shape) * kNumSplits;
  const int64_t waves = (splits + h200::kCtasOfWave - 1) / h200::kCtasOfWave;
  return 3 * splits >= 2 * waves * h200::kCtasOfWave;
}

}  // namespace loratory::gpu
