#include "gpu/plan/quantized_plan.hpp"

#include <algorithm>

#include "gpu/plan/quantized_variants.hpp"

namespace loratory::gpu {

using reference::Dtype;

LoraPath choose_quantized_path(LoraOp op, const QuantizedStage& stage) {
  const bool x_fits = stage.from != Dtype::f32 || op == LoraOp::expand;
  const bool h_fits = op == LoraOp::shrink ? stage.to == Dtype::f32
                                           : stage.from == Dtype::f32 || is_quantized(stage.from);
  const bool fits = stage.aligned && stage.one_group && x_fits && h_fits;
  return fits ? LoraPath::tensor_core : LoraPath::generic;
}

namespace {

constexpr int64_t kNarrowTokens = 256;  // above: segments of 32 tokens, if few adapters share them

// As many tokens for each slot, or so many that the number of slots does not matter.
bool fills_segments(const LaunchShape& shape) {
  return shape.num_tokens > 1024 || shape.num_tokens >= 16 * shape.num_slots;
}

/// With as many adapters as there can be: a graph does not know how many there are.
int64_t most_segments(const LaunchShape& shape) {
  return std::min(shape.num_tokens, shape.num_slots);
}

LoraVariant narrow_quantized(const LaunchShape& shape) {
  const bool is_small = shape.num_tokens <= 32 || shape.num_tokens * shape.num_rank_blocks <= 64;
  const bool few = shape.num_tokens <= kNarrowTokens && shape.num_tokens >= 4 * shape.num_slots;
  const int cluster = is_small || few ? 8 : 2;
  if (shape.max_rank <= 16) {
    // Half as many CTAs where they would be more than 1.5 an SM: what each does besides counts.
    const bool has_many = shape.num_tokens <= 32 && most_segments(shape) * shape.num_slices > 24;
    return {.cluster = has_many ? 4 : cluster, .stages = 2};
  }
  // Few segments and blocks: smaller tiles, so that more SMs have one.
  const bool has_few_segments = shape.num_tokens <= 32 && most_segments(shape) <= 16;
  if (!has_few_segments || shape.num_rank_blocks > 2) return {.rank_tiles = 4, .cluster = cluster};
  if (shape.num_in > 8192) return {.rank_tiles = 2, .cluster = cluster, .stages = 2};
  return {.rank_tiles = shape.max_rank > 64 ? 4 : 2, .cluster = cluster};
}

}  // namespace

LoraVariant choose_quantized_expand(const LaunchShape& shape, int token_tiles) {
  if (token_tiles > 1) return {.rank_tiles = 2, .token_tiles = 4, .stages = 2};
  return {.rank_tiles = shape.max_rank > 16 ? 4 : 1};
}

LoraVariant choose_quantized_variant(const LaunchShape& shape) {
  const bool is_wide = shape.num_tokens > 64 && fills_segments(shape);
  if (shape.op == LoraOp::expand) return choose_quantized_expand(shape, is_wide ? 4 : 1);
  LoraVariant out = narrow_quantized(shape);
  if (is_wide) out = {.rank_tiles = 4, .token_tiles = 4, .cluster = 8, .stages = 4};
  if (shape.op == LoraOp::linear) out.launches = 2;
  return out;
}

}  // namespace loratory::gpu
