#include "gpu/product/skinny_plan.hpp"

#include <algorithm>

#include "reference/base/check.hpp"

namespace loratory::gpu {

namespace {

constexpr int32_t kRowBytes = 128;
constexpr size_t kMostTiles = 4;  // tile widths worth timing

int32_t ceil_div(int64_t a, int64_t b) { return int32_t((a + b - 1) / b); }

// How well tiles of `columns` use the GPU: the share of the SMs' time that they fill if all take
// equally long, less what each loads of x. Only the order of the figures matters.
double fitness(const ProductShape& shape, int64_t num_tokens, int32_t columns, int num_sms) {
  constexpr double kCostOfX = 0.25;  // of a byte of x that L2 has, in bytes of W
  const int64_t blocks = ceil_div(num_tokens, kSkinnyTokens);
  const int64_t waves = ceil_div(ceil_div(shape.num_out, columns) * blocks, num_sms);
  const double filled = double(shape.num_out * blocks) / double(waves * num_sms * columns);
  const auto x_rows = double(std::min<int64_t>(num_tokens, kSkinnyTokens));
  return filled / (1 + kCostOfX * x_rows / columns);
}

}  // namespace

SkinnyLayout skinny_layout(const ProductShape& shape, int64_t num_tokens,
                           const ProductChoice& choice) {
  LORATORY_ASSERT(choice.kernel == ProductKernel::skinny, "a tile of the skinny kernel");
  SkinnyLayout out;
  // A narrow tile takes 256 bytes of each row at a time, so that DRAM meets longer runs.
  out.panels = choice.columns <= 64 ? 2 : 1;
  const int64_t at_once = int64_t{kFewTokens} * choice.cluster;
  const int64_t rows = ceil_div(num_tokens, at_once) * at_once;
  out.x_rows = int32_t(std::min<int64_t>(rows, kSkinnyTokens));
  out.stage_bytes = out.panels * (choice.columns + out.x_rows) * kRowBytes;
  out.num_steps = ceil_div(shape.num_in, int64_t(out.panels) * kPanelDepth);
  out.num_stages = kMaxSkinnyStages;
  while (out.shared_bytes() > kSkinnySharedBytes) --out.num_stages;
  out.num_token_blocks = ceil_div(num_tokens, kSkinnyTokens);
  out.num_column_groups = ceil_div(shape.num_out, int64_t(choice.columns) * choice.cluster);
  return out;
}

SkinnyParams skinny_params(const ProductShape& shape, const ProductChoice& choice,
                           const SkinnyLayout& layout, const ProductTensors& tensors) {
  const int64_t stride = tensors.y.shape[0] > 1 ? tensors.y.strides[0] : 0;
  const bool even = stride % 2 == 0 && reinterpret_cast<uintptr_t>(tensors.y.data) % 4 == 0;
  return {.y = tensors.y.data,
          .bias = tensors.bias,
          .y_stride = stride,
          .num_tokens = int32_t(tensors.x.shape[0]),
          .num_out = int32_t(shape.num_out),
          .num_steps = layout.num_steps,
          .num_items = layout.num_items(),
          .num_token_blocks = layout.num_token_blocks,
          .num_stages = layout.num_stages,
          .stage_bytes = layout.stage_bytes,
          .x_rows = layout.x_rows,
          .x_rows_of_cta = layout.x_rows / choice.cluster,
          .out_is_f32 = shape.out == reference::Dtype::f32,
          .in_pairs = even};
}

std::vector<ProductChoice> skinny_choices(const ProductShape& shape, int64_t num_tokens,
                                          int num_sms) {
  // Of equals the widest, which has the fewest steps.
  std::vector<int32_t> columns(std::rbegin(kSkinnyColumns), std::rend(kSkinnyColumns));
  std::ranges::stable_sort(columns, std::greater{},
                           [&](int32_t c) { return fitness(shape, num_tokens, c, num_sms); });
  columns.resize(kMostTiles);
  std::vector<ProductChoice> out;
  for (const int32_t c : columns) {
    for (const int32_t cluster : kSkinnyClusters) {
      if (num_tokens <= kFewTokens && cluster > 1) continue;
      if (cluster > ceil_div(shape.num_out, c)) continue;
      out.push_back({.kernel = ProductKernel::skinny, .columns = c, .cluster = cluster});
    }
  }
  return out;
}

}  // namespace loratory::gpu
