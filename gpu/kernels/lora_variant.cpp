#include "gpu/kernels/lora_variant.hpp"

#include <algorithm>

namespace loratory::gpu {
namespace {

// Measured on an H200 (docs/kernel_measurements.md). Of prefill beyond 512 tokens a few points of
// prototypes alone; kMostDecodeTokens not at all.

constexpr int64_t kDecodeTokens = 256;        // beyond: more tokens than a segment of 8 is good for
constexpr int64_t kMostDecodeTokens = 1024;   // up to there, where each may have its own adapter
constexpr int64_t kShortPrefillTokens = 512;  // beyond: 64 tokens of B at a time, of large ranks
constexpr int64_t kLongPrefillTokens = 2048;  // beyond: of all ranks
constexpr int64_t kDeepWideClusters = 30;  // of 8 CTAs with four stages of 64 tokens, all at once

/// A graph does not know whether a step has one adapter or as many as tokens. Where slots allow the
/// latter, segments of 64 tokens could be one token each.
bool may_be_distinct(const LaunchShape& shape) {
  return shape.num_tokens <= kMostDecodeTokens && shape.num_tokens <= 2 * shape.num_slots;
}

LoraVariant in_two_launches(LoraVariant variant) {
  variant.launches = 2;
  return variant;
}

/// Four stages where all units are there at once. Otherwise fewer units that begin, of clusters of
/// four; in long prefill, where x of a unit comes again for each block, blocks of 128 ranks.
LoraVariant wide_shrink(const LaunchShape& shape) {
  if (!shape.has_wgmma) return {4, 4, 8, 4, true};
  const int64_t units = (shape.num_tokens + 63) / 64 * shape.num_blocks;
  if (units <= kDeepWideClusters) return {4, 8, 8, 4, true};
  const bool is_long = shape.num_tokens > kLongPrefillTokens;
  const bool has_many_blocks = shape.num_blocks > 1;
  if (is_long && has_many_blocks) return {8, 8, 8, 3, true};
  return {4, 8, shape.max_rank > 32 && (is_long || has_many_blocks) ? 4 : 8, 3, true};
}

/// Enough units to fill the GPU, and yet few enough that all of them are there at once: from 33
/// tokens on there may be as many adapters, and a smaller cluster reads more of one in a row.
LoraVariant shrink_variant(const LaunchShape& shape) {
  if (shape.num_tokens > kDecodeTokens && !may_be_distinct(shape)) return wide_shrink(shape);
  if (shape.max_rank <= 16) {
    if (shape.num_tokens > 64) return {1, 1, 2, 2, true};
    if (shape.num_tokens > 32 || shape.num_slices > 1) return {1, 1, 4, 2, true};
    return {1, 1, 8, 2, true};
  }
  if (shape.num_tokens > 128 && shape.max_rank > 64) return {2, 1, 2, 1, true};
  if (shape.num_tokens > 32) return {2, 1, 4, 1, true};
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

/// Three stages where shared memory has room for them whatever the dtype of y is.
LoraVariant wgmma_expand(const LaunchShape& shape) {
  const int64_t panels = shape.num_slices * ((shape.max_rank + 63) / 64);
  return {4, 8, 1, shape.num_tokens > kLongPrefillTokens && panels < 8 ? 3 : 2, true};
}

}  // namespace

LoraVariant expand_variant(const LaunchShape& shape, int token_tiles) {
  if (!shape.aligned) return {1, 1, 1, 3, false};
  const int rank_tiles = shape.max_rank > 16 ? 2 : 1;
  if (token_tiles == 8 && shape.num_tokens > kShortPrefillTokens) {
    if (shape.max_rank > 32 && shape.has_wgmma) return wgmma_expand(shape);
    if (shape.max_rank <= 32 && shape.num_tokens > kLongPrefillTokens) return {1, 8, 1, 2, true};
  }
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
    const bool is_wide = shape.aligned && shape.num_tokens > 64 && !may_be_distinct(shape);
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
