#include "gpu/kernels/lora_variant.hpp"

namespace loratory::gpu {
namespace {

constexpr int64_t kDecodeTokens = 256;  // beyond: more tokens than a segment of 8 is good for

LoraVariant choose_linear(const LaunchShape& shape) {
  if (shape.num_tokens > kDecodeTokens) return {4, 4, 8, true};
  if (shape.max_rank > 16) return {shape.num_in > 8192 ? 4 : 2, 1, 8, true};
  constexpr int64_t kFewTokens = 64;  // that many units of 8 CTAs fit the GPU at once
  return {1, 1, shape.num_tokens > kFewTokens ? 2 : 8, true};
}

LoraVariant choose_shrink(const LaunchShape& shape) {
  if (shape.num_tokens > kDecodeTokens) return {4, 4, 8, true};
  return {shape.max_rank <= 16 ? 1 : 2, 1, 8, true};
}

}  // namespace

LoraVariant choose_variant(const LaunchShape& shape) {
  if (shape.stage == LoraStage::expand) {  // takes no clusters
    return {1, shape.aligned && shape.num_tokens > kDecodeTokens ? 4 : 1, 1, shape.aligned};
  }
  if (!shape.has_clusters) return {1, 1, 1, shape.aligned};
  if (!shape.aligned) return {2, 1, 8, false};
  return shape.stage == LoraStage::shrink ? choose_shrink(shape) : choose_linear(shape);
}

std::string describe(const LoraVariant& v) {
  return "r" + std::to_string(16 * v.rank_tiles) + " t" + std::to_string(v.segment_size()) + " c" +
         std::to_string(v.cluster) + (v.aligned ? "" : " unaligned");
}

}  // namespace loratory::gpu
