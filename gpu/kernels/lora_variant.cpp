#include "gpu/kernels/lora_variant.hpp"

namespace loratory::gpu {
namespace {

constexpr int64_t kDecodeTokens = 256;  // beyond: more tokens than a segment of 8 is good for
constexpr int64_t kFewTokens = 64;      // that many clusters of 8 the GPU nearly holds at once

/// Measured on an H200, whose SMs hold 45 clusters of 8 with four stages and 62 with three: three
/// where that saves a round.
LoraVariant choose_wide(const LaunchShape& shape) {
  const int64_t segments = (shape.num_tokens + 31) / 32;
  const int64_t units = segments * (shape.num_blocks);
  const bool saves_a_round = (units + 61) / 62 < (units + 44) / 45;
  return {4, 4, 8, saves_a_round ? 3 : 4, true, shape.stage == LoraStage::linear ? 2 : 1};
}

LoraVariant choose_linear(const LaunchShape& shape) {
  if (shape.num_tokens > kDecodeTokens && shape.has_workspace) return choose_wide(shape);
  if (shape.max_rank > 16) return {shape.num_in > 8192 ? 4 : 2, 1, 8, 2, true};
  if (shape.num_tokens > kFewTokens) return {1, 1, 2, 3, true};
  return {1, 1, 8, 2, true};
}

LoraVariant choose_shrink(const LaunchShape& shape) {
  if (shape.num_tokens > kDecodeTokens) return choose_wide(shape);
  return {shape.max_rank <= 16 ? 1 : 2, 1, 8, 2, true};
}

}  // namespace

LoraVariant expand_variant(int64_t max_rank, int token_tiles, bool aligned) {
  if (!aligned) return {1, 1, 1, 3, false};
  if (token_tiles > 1) return {max_rank > 16 ? 2 : 1, token_tiles, 1, max_rank > 16 ? 2 : 4, true};
  return max_rank > 16 ? LoraVariant{2, 1, 1, 4, true} : LoraVariant{1, 1, 1, 4, true};
}

LoraVariant choose_variant(const LaunchShape& shape) {
  if (shape.stage == LoraStage::expand) {  // takes no clusters
    return expand_variant(shape.max_rank, shape.aligned && shape.num_tokens > kFewTokens ? 4 : 1,
                          shape.aligned);
  }
  if (!shape.has_clusters) return {1, 1, 1, 2, shape.aligned};
  if (!shape.aligned) return {2, 1, 8, 2, false};
  return shape.stage == LoraStage::shrink ? choose_shrink(shape) : choose_linear(shape);
}

std::string describe(const LoraVariant& v) {
  return "r" + std::to_string(16 * v.rank_tiles) + " t" + std::to_string(v.segment_size()) + " c" +
         std::to_string(v.cluster) + " s" + std::to_string(v.stages) +
         (v.launches == 2 ? " x2" : "") + (v.aligned ? "" : " unaligned");
}

}  // namespace loratory::gpu
