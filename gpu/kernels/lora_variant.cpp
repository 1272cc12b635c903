#include "gpu/kernels/lora_variant.hpp"

#include <algorithm>

namespace loratory::gpu {
namespace {

// Measured on an H200 (docs/kernel_measurements.md).

constexpr int64_t kDecodeTokens = 256;        // beyond: more tokens than a segment of 8 is good for
constexpr int64_t kShortPrefillTokens = 512;  // beyond: wgmma for h of any width
constexpr int64_t kMostDecodeTokens = 1024;   // up to there, where slots allow many adapters
constexpr int64_t kPrefillTokens = 2048;      // beyond: B for 64 tokens at a time, of small ranks
constexpr int64_t kLongPrefillTokens = 4096;  // beyond: one more stage of B in any case

// Units of a wide shrink that are there at once: of 64 ranks in clusters of 8, 4, 2 and 1, and of
// 128 ranks; deep: with four stages in place of three.
constexpr int64_t kUnitsOf8Deep = 30, kUnitsOf8 = 45, kUnitsOf4Deep = 60, kUnitsOf4 = 92;
constexpr int64_t kUnitsOf2Deep = 132, kUnitsOf2 = 198, kUnitsOf1Deep = 264, kUnitsOf1 = 396;
constexpr int64_t kUnitsOf4By128 = 60, kUnitsOf2By128 = 132, kUnitsOf1By128 = 264;

/// A graph does not know whether a step has one adapter or as many as slots. Where that leaves few
/// tokens each, segments of 64 would be mostly empty.
bool may_have_many_adapters(const LaunchShape& shape) {
  const int64_t few = shape.num_tokens > kShortPrefillTokens ? 4 : 8;
  return shape.num_tokens <= kMostDecodeTokens && shape.num_tokens <= few * shape.num_slots;
}

LoraVariant in_two_launches(LoraVariant variant) {
  variant.launches = 2;
  return variant;
}

/// The last of an adapter is half full, more or less.
int64_t segments_of_64(const LaunchShape& shape) {
  const int64_t full = (shape.num_tokens + 63) / 64;
  return full + std::min(full, shape.num_slots) / 2;
}

/// The largest cluster, and then the deepest ring, with which all units are there at once. More
/// than one block goes 128 ranks at a time where those are, for x comes half as often.
LoraVariant wide_shrink(const LaunchShape& shape) {
  if (!shape.has_wgmma) return {4, 4, 8, 4, true};
  const int64_t segments = segments_of_64(shape);
  const int64_t units = segments * shape.num_blocks;
  const int64_t units_by_128 = segments * ((shape.num_blocks + 1) / 2);
  if (units <= kUnitsOf8Deep) return {4, 8, 8, 4, true};
  if (units <= kUnitsOf8) return {4, 8, 8, 3, true};
  if (units <= kUnitsOf4Deep) return {4, 8, 4, 4, true};
  if (shape.num_blocks == 2 && units_by_128 <= kUnitsOf4By128) return {8, 8, 4, 3, true};
  if (units <= kUnitsOf4) return {4, 8, 4, 3, true};
  if (units <= kUnitsOf2Deep) return {4, 8, 2, 4, true};
  if (units <= kUnitsOf2 || shape.num_blocks == 1) return {4, 8, 2, 3, true};
  if (units_by_128 <= kUnitsOf2By128) return {8, 8, 2, 3, true};
  if (units <= kUnitsOf1Deep) return {4, 8, 1, 4, true};
  if (units <= kUnitsOf1) return {4, 8, 1, 3, true};
  return {8, 8, units_by_128 <= kUnitsOf1By128 ? 1 : 2, 3, true};
}

/// Slots allow no more adapters than leave each so many tokens.
bool has_tokens_each(const LaunchShape& shape, int64_t tokens) {
  return shape.num_tokens >= tokens * shape.num_slots;
}

/// More than 32 tokens, 8 at a time. Few adapters: as for fewer tokens, while their units are there
/// at once. Many: small clusters, which read more of one in a row.
LoraVariant narrow_shrink(const LaunchShape& shape) {
  const bool few = has_tokens_each(shape, 4) && shape.num_tokens <= kDecodeTokens;
  if (shape.max_rank <= 16) {
    const bool is_small = shape.num_tokens * shape.num_slices <= 64;
    if (few) return {1, 1, shape.num_slices == 1 || shape.num_tokens <= 64 ? 8 : 4, 2, true};
    return {1, 1, is_small ? 4 : 2, 2, true};
  }
  const bool is_small = shape.num_tokens * shape.num_blocks <= 128;
  if (few && is_small && shape.max_rank <= 32) return {2, 1, 8, 2, true};
  if (few && is_small) return {4, 1, 8, 1, true};
  return {2, 1, few || is_small ? 4 : 2, 1, true};
}

/// Up to 32 tokens there are few units, and each has a cluster of 8. From 65 tokens on segments of
/// 32 are full where slots allow few adapters; of one slice of a small rank nothing is gained.
LoraVariant shrink_variant(const LaunchShape& shape) {
  if (shape.num_tokens > kDecodeTokens && !may_have_many_adapters(shape)) return wide_shrink(shape);
  if (shape.num_tokens > 32) {
    const bool fills_32 = shape.num_tokens > 64 && has_tokens_each(shape, 32);
    const bool is_small = shape.max_rank <= 16 && shape.num_slices == 1;
    return fills_32 && !is_small ? LoraVariant{4, 4, 8, 4, true} : narrow_shrink(shape);
  }
  if (shape.max_rank <= 16) return {1, 1, shape.num_slices > 1 ? 4 : 8, 2, true};
  if (shape.num_in > 8192) return {2, 1, 8, 2, true};
  return {shape.num_blocks > 1 ? 4 : 2, 1, 8, 1, true};
}

/// One launch. Without a workspace there is no other way; with one it is the faster for few tokens
/// of small ranks.
bool takes_one_launch(const LaunchShape& shape) {
  return !shape.has_workspace || (shape.num_tokens <= 8 && shape.max_rank <= 16);
}
LoraVariant one_launch(const LaunchShape& shape) {
  if (shape.max_rank > 16) return {2, 1, 8, 2, true};
  return shape.num_tokens > 64 ? LoraVariant{1, 1, 2, 3, true} : LoraVariant{1, 1, 8, 2, true};
}

int64_t num_panels(const LaunchShape& shape) {
  return shape.num_slices * ((shape.max_rank + 63) / 64);
}

/// In short prefill of many panels of h its beginning, which fetches all of them, takes too long.
bool takes_wgmma_expand(const LaunchShape& shape) {
  if (!shape.has_wgmma || shape.max_rank <= 32) return false;
  if (shape.num_tokens <= kShortPrefillTokens)
    return shape.num_tokens > kDecodeTokens && num_panels(shape) <= 2;
  return true;
}

/// Two stages where they were the faster: in middling prefill of one panel of h, and of three, with
/// which an SM then has room for two CTAs. Of eight, fp32 y leaves no room for a third.
LoraVariant wgmma_expand(const LaunchShape& shape) {
  const int64_t panels = num_panels(shape);
  const bool is_middling =
      shape.num_tokens > kShortPrefillTokens && shape.num_tokens <= kLongPrefillTokens;
  const bool is_deep = panels == 2 || panels > 3 || !is_middling;
  return {4, 8, 1, is_deep && panels < 8 ? 3 : 2, true};
}

}  // namespace

LoraVariant expand_variant(const LaunchShape& shape, int token_tiles) {
  if (!shape.aligned) return {1, 1, 1, 3, false};
  const int rank_tiles = shape.max_rank > 16 ? 2 : 1;
  if (token_tiles == 8 && takes_wgmma_expand(shape)) return wgmma_expand(shape);
  if (token_tiles == 8 && shape.max_rank <= 32 && shape.num_tokens > kPrefillTokens)
    return {1, 8, 1, 2, true};
  if (token_tiles > 1) return {rank_tiles, 4, 1, 2, true};
  // A stage of all ranks: neighbouring columns are then one run of B. Many stages only where few
  // CTAs must have all of B under way.
  if (shape.max_rank <= 32) return {rank_tiles, 1, 1, 1, true};
  if (shape.num_tokens > 32) return {4, 1, 1, 1, true};
  return {shape.max_rank > 64 ? 4 : 2, 1, 1, 2, true};
}

LoraVariant choose_variant(const LaunchShape& shape) {
  if (shape.stage == LoraStage::expand) {      // takes no clusters
    const int wide = shape.has_wgmma ? 8 : 4;  // segments of a shrink of as many tokens
    const bool is_wide = shape.aligned && shape.num_tokens > 64 && !may_have_many_adapters(shape);
    return expand_variant(shape, is_wide ? wide : 1);
  }
  if (!shape.has_clusters) return {1, 1, 1, 2, shape.aligned};
  if (!shape.aligned) return {2, 1, 8, 2, false};
  if (shape.stage == LoraStage::shrink) return shrink_variant(shape);
  return takes_one_launch(shape) ? one_launch(shape) : in_two_launches(shrink_variant(shape));
}

std::string describe(const LoraVariant& v) {
  return "r" + std::to_string(16 * v.rank_tiles) + " t" + std::to_string(v.segment_size()) + " c" +
         std::to_string(v.cluster) + " s" + std::to_string(v.stages) +
         (v.launches == 2 ? " x2" : "") + (v.aligned ? "" : " unaligned");
}

}  // namespace loratory::gpu
