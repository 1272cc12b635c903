#include "gpu/product/skinny_plan.hpp"

#include <algorithm>

#include "reference/base/check.hpp"

namespace loratory::gpu {

namespace {

constexpr int32_t kRowBytes = 128;
constexpr size_t kMostTiles = 6;  // tile widths worth timing
// Of W, by a CTA, before its x is there. 132 of them keep 6.5 MB on the way, what an H100 reads in
// 2 us. More holds up the kernels that x waits for, less leaves DRAM idle (docs/kernel_trials.md).
constexpr int32_t kBytesAskedAhead = 48 * 1024;

int32_t ceil_div(int64_t a, int64_t b) { return int32_t((a + b - 1) / b); }

int64_t stride_of(const DeviceView& y) { return y.shape[0] > 1 ? y.strides[0] : 0; }

// Whether all columns are aligned words of two.
bool is_even(const DeviceView& y) {
  return y.shape[1] % 2 == 0 && stride_of(y) % 2 == 0 &&
         reinterpret_cast<uintptr_t>(y.data) % 4 == 0;
}

// Of the kernel for M tokens.
int32_t kernel_tokens(int64_t num_tokens) {
  const auto* const found = std::ranges::lower_bound(kWgmmaTokens, num_tokens);
  return found == std::end(kWgmmaTokens) ? found[-1] : *found;
}

template <typename Range>
bool contains(const Range& values, int32_t value) {
  return std::ranges::find(values, value) != std::end(values);
}

// How well tiles of `columns` use the GPU: the share of the SMs' time that they fill if all take
// equally long, less what each loads of x. Only the order of the figures matters.
double fitness(const ProductShape& shape, int64_t num_tokens, int32_t columns, int num_sms) {
  constexpr double kCostOfX = 0.25;  // of a byte of x that L2 has, in bytes of W
  const int64_t blocks = ceil_div(num_tokens, kernel_tokens(num_tokens));
  const int64_t waves = ceil_div(ceil_div(shape.num_out, columns) * blocks, num_sms);
  const double filled = double(shape.num_out * blocks) / double(waves * num_sms * columns);
  const auto x_rows = double(std::min<int64_t>(num_tokens, kernel_tokens(num_tokens)));
  return filled / (1 + kCostOfX * x_rows / columns);
}

// The widest tiles that are the best so far, each with as many CTAs side by side as there are
// columns and tokens for.
void add_choices(const ProductShape& shape, int64_t cta_tokens, int32_t token_ctas, int num_sms,
                 std::vector<ProductChoice>& out) {
  // Of equals the widest, which has the fewest steps.
  std::vector<int32_t> columns(std::rbegin(kSkinnyColumns), std::rend(kSkinnyColumns));
  std::ranges::stable_sort(columns, std::greater{}, [&](int32_t c) {
    return fitness(shape, cta_tokens, c, num_sms / token_ctas);
  });
  columns.resize(kMostTiles);
  for (const int32_t c : columns) {
    for (const int32_t cluster : kSkinnyClusters) {
      const ProductChoice choice{.kernel = ProductKernel::skinny,
                                 .columns = c,
                                 .cluster = cluster,
                                 .token_ctas = token_ctas};
      if (kWgmmaTokens[0] * cluster > kernel_tokens(cta_tokens)) continue;
      if (cluster > ceil_div(shape.num_out, c) || !has_skinny_kernel(choice)) continue;
      out.push_back(choice);
    }
  }
}

}  // namespace

bool has_skinny_kernel(const ProductChoice& choice) {
  return contains(kSkinnyColumns, choice.columns) && contains(kSkinnyClusters, choice.cluster) &&
         contains(kSkinnyTokenCtas, choice.token_ctas) && choice.num_ctas() <= kMostSkinnyCtas &&
         choice.columns % (8 * choice.token_ctas) == 0;
}

int32_t SkinnyLayout::shared_bytes() const {
  const int32_t last = panels - 1;
  const int32_t rows_of_w = last * columns + skinny_blocks(columns) * kWgmmaRows;
  const int32_t rows_of_x = panels * columns + last * x_rows + tokens;
  const int32_t read = std::max(rows_of_w, rows_of_x) * kRowBytes;
  return num_stages * stage_bytes + std::max(0, read - stage_bytes) + 1024;
}

SkinnyLayout skinny_layout(const ProductShape& shape, int64_t num_tokens,
                           const ProductChoice& choice) {
  LORATORY_ASSERT(choice.kernel == ProductKernel::skinny, "a tile of the skinny kernel");
  SkinnyLayout out;
  out.columns = choice.columns;
  out.tokens = kernel_tokens(ceil_div(num_tokens, choice.token_ctas));
  out.panels = skinny_panels(out.columns, out.tokens);
  const int64_t at_once = int64_t{kWgmmaTokens[0]} * choice.cluster;
  out.x_rows = int32_t(std::min<int64_t>(ceil_div(num_tokens, at_once) * at_once, out.tokens));
  out.stage_bytes = out.panels * (choice.columns + out.x_rows) * kRowBytes;
  out.num_steps = ceil_div(shape.num_in, int64_t(out.panels) * kPanelDepth);
  out.num_stages = kMaxSkinnyStages;
  while (out.shared_bytes() > kSkinnySharedBytes) --out.num_stages;
  out.num_token_groups = ceil_div(num_tokens, int64_t(out.tokens) * choice.token_ctas);
  out.num_column_groups = ceil_div(shape.num_out, int64_t(choice.columns) * choice.cluster);
  return out;
}

bool may_fuse_silu(const ProductShape& shape, const ProductChoice& choice) {
  return choice.kernel == ProductKernel::skinny && choice.columns % (16 * choice.token_ctas) == 0 &&
         shape.num_out % 16 == 0 && shape.out == shape.weight && !shape.has_bias;
}
bool fuses_silu(const ProductShape& shape, const ProductChoice& choice,
                const ProductTensors& tensors) {
  return may_fuse_silu(shape, choice) && is_even(tensors.y);
}

SkinnyParams skinny_params(const ProductShape& shape, const ProductChoice& choice,
                           const SkinnyLayout& layout, const ProductTensors& tensors) {
  // Of a stage, what this CTA asks for.
  const int32_t weight_bytes = layout.panels * layout.columns * kRowBytes / choice.token_ctas;
  return {
      .y = tensors.y.data,
      .bias = tensors.bias,
      .y_stride = stride_of(tensors.y),
      .num_tokens = int32_t(tensors.x.shape[0]),
      .y_columns = int32_t(tensors.y.shape[1]),
      .num_steps = layout.num_steps,
      .num_items = layout.num_items(),
      .num_token_groups = layout.num_token_groups,
      .block_tokens = layout.tokens,
      .num_stages = layout.num_stages,
      .num_asked_ahead = std::clamp(ceil_div(kBytesAskedAhead, weight_bytes), 1, layout.num_stages),
      .stage_bytes = layout.stage_bytes,
      .x_rows = layout.x_rows,
      .column_ctas = choice.cluster,
      .token_ctas = choice.token_ctas,
      .is_gated = tensors.is_gated,
      .out_is_f32 = shape.out == reference::Dtype::f32,
      .in_pairs = is_even(tensors.y)};
}

std::vector<ProductChoice> skinny_choices(const ProductShape& shape, int64_t num_tokens,
                                          int num_sms) {
  std::vector<ProductChoice> out;
  add_choices(shape, num_tokens, 1, num_sms, out);
  // Half of the tokens, where a product of fewer takes them.
  const int64_t half = ceil_div(num_tokens, 2);
  if (kernel_tokens(half) < kernel_tokens(num_tokens)) add_choices(shape, half, 2, num_sms, out);
  return out;
}

}  // namespace loratory::gpu
