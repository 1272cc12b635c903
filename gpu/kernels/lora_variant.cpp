#include "gpu/kernels/lora_variant.hpp"

#include <algorithm>

namespace loratory::gpu {
namespace {

// Measured on an H200 (docs/kernel_measurements.md).

constexpr int64_t kDecodeTokens = 256;        // beyond: more tokens than a segment of 8 is good for
constexpr int64_t kLongPrefillTokens = 2048;  // beyond: all of 64 ranks of B, or B for 64 tokens
constexpr int64_t kBlockStageRanks = 80;      // there, of one slice: beyond, 32 ranks at a time
constexpr int64_t kDeepWideClusters = 30;     // with four stages of 64 tokens, all at once
constexpr int64_t kDeepTokens = 8192;         // from here on four stages pay for their round

LoraVariant in_two_launches(LoraVariant variant) {
  variant.launches = 2;
  return variant;
}

/// Three stages where four would take another round; four again from kDeepTokens on where all ranks
/// are one block and the expand takes 32 tokens at a time. Measured with K 4096, N 4096.
LoraVariant wide_shrink(const LaunchShape& shape) {
  if (!shape.has_wgmma) return {4, 4, 8, 4, true};
  const int64_t units = (shape.num_tokens + 63) / 64 * shape.num_blocks;
  const bool is_long = shape.num_tokens >= kDeepTokens && shape.num_blocks == 1;
  const bool is_deep = units <= kDeepWideClusters || (is_long && shape.max_rank > 32);
  return {4, 8, 8, is_deep ? 4 : 3, true};
}

/// Enough units to fill the GPU, and yet few enough that all of them are there at once: from 33
/// tokens on there may be as many adapters, and a smaller cluster reads more of one in a row.
LoraVariant shrink_variant(const LaunchShape& shape) {
  if (shape.num_tokens > kDecodeTokens) return wide_shrink(shape);
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

}  // namespace

LoraVariant expand_variant(const LaunchShape& shape, int token_tiles) {
  if (!shape.aligned) return {1, 1, 1, 3, false};
  const int rank_tiles = shape.max_rank > 16 ? 2 : 1;
  if (token_tiles > 1 && shape.num_tokens > kLongPrefillTokens) {
    const bool in_halves = shape.num_slices == 1 && shape.max_rank > kBlockStageRanks;
    if (shape.max_rank > 32) return {in_halves ? 2 : 4, 4, 1, 2, true};
    if (token_tiles == 8) return {1, 8, 1, 2, true};
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
    return expand_variant(shape, shape.aligned && shape.num_tokens > 64 ? wide : 1);
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
