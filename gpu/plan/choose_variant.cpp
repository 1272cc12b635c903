#include "gpu/plan/lora_variant.hpp"

namespace loratory::gpu {

// Measured on an H200 of 132 SMs (docs/kernel_measurements.md), those of decode also in an engine
// on H100s of as many (docs/gpu_engine.md). On another card all results are the same and the rules
// are merely not tuned.
namespace h200 {

constexpr int64_t kMostColumnsOfOneLaunch = 90'000;  ///< of all segments
constexpr int64_t kFewSegmentsBehindProduct = 4;     ///< eight gained nothing

}  // namespace h200

/// A single launch is faster for few tokens of small ranks, but not with many columns: each of its
/// clusters multiplies x by A anew. Behind a product of x (split_sums) the shrink of few adapters
/// starts before the product has ended, which a single launch cannot.
bool gains_by_one_launch(const LaunchShape& shape) {
  const int64_t segments = most_segments(shape, 8);
  if (shape.num_tokens > 8 || shape.max_rank > 16) return false;
  if (shape.num_split_units > 0 && segments <= h200::kFewSegmentsBehindProduct) return false;
  return segments * shape.num_columns <= h200::kMostColumnsOfOneLaunch;
}

namespace {

/// Without a workspace there is no other way. Router weights meet h on its way from one launch to
/// the other.
bool takes_one_launch(const LaunchShape& shape) {
  if (shape.has_router_weights) return false;
  return !shape.has_workspace || gains_by_one_launch(shape);
}
LoraVariant one_launch(const LaunchShape& shape) {
  if (shape.max_rank > 16) return {.rank_tiles = 2, .cluster = 8, .stages = 2};
  if (shape.num_tokens > 64) return {.cluster = 2, .stages = 3};
  return {.cluster = 8, .stages = 2};
}

LoraVariant in_two_launches(LoraVariant variant) {
  variant.launches = 2;
  return variant;
}

/// Of a shrink or a linear where the GPU has no clusters or the tensors are not aligned.
LoraVariant only_variant(const LaunchShape& shape) {
  if (!shape.has_clusters) return {.stages = 2, .aligned = shape.aligned};
  return {.rank_tiles = 2, .cluster = 8, .stages = 2, .aligned = false};
}

}  // namespace

LoraVariant choose_variant(const LaunchShape& shape) {
  if (shape.op == LoraOp::expand) {  // never a cluster: every CTA reads h from global memory
    const int token_tiles = shape.has_wgmma ? 8 : 4;  // as a shrink of as many tokens
    const bool is_wide = shape.aligned && shape.num_tokens > 64 && !may_have_many_adapters(shape);
    return choose_expand_variant(shape, is_wide ? token_tiles : 1);
  }
  const bool is_weighted = shape.op == LoraOp::linear && shape.has_router_weights;
  if (!shape.has_clusters || !shape.aligned) {
    const LoraVariant any = only_variant(shape);
    return is_weighted ? in_two_launches(any) : any;
  }
  if (shape.op == LoraOp::shrink) return choose_shrink_variant(shape);
  return takes_one_launch(shape) ? one_launch(shape)
                                 : in_two_launches(choose_shrink_variant(shape));
}

}  // namespace loratory::gpu
