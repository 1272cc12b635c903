#include "tests/gpu/emulated/emulated_products.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "gpu/product/skinny_kernel.cuh"

namespace loratory::gpu::emulated {
namespace {

// Dynamic memory begins behind the barriers, aligned to no more than the GPU aligns it: what a
// layout adds to align its stages is used up.
constexpr size_t kDynamic = 1024 + 16;
constexpr size_t kFirstStage = 2048;
static_assert(sizeof(SkinnyBarriers) <= kDynamic);

struct Maps {
  CUtensorMap weights, x;
};

CUtensorMap map_of(const DeviceView& matrix, int box_rows, bool has_halves) {
  return gpu::map_of(
      Box{.matrix = static_cast<const std::byte*>(matrix.data),
          .num_rows = matrix.shape[0],
          .num_columns = matrix.shape[1],
          .row_bytes = 2 * (matrix.shape[0] > 1 ? matrix.strides[0] : matrix.shape[1]),
          .box_rows = box_rows,
          .half_rows = has_halves ? matrix.shape[0] / 2 : 0});
}

template <typename C>
void run_kernel(const SkinnyParams& params, const Maps& maps, const Launch& launch) {
  static_assert(C::kNumThreads % 32 == 0);
  if (C::kNumThreads != launch.num_threads) throw std::runtime_error("not the kernel's threads");
  run(launch, [&](std::byte* shared) {
    auto& barriers = *reinterpret_cast<SkinnyBarriers*>(shared);
    SkinnyCta<C>(params, shared + kDynamic, barriers).run(maps.weights, maps.x);
  });
}

// --- the kernels: of every tile width and as many tokens of wgmma --------------------------------

using Kernel = void (*)(const SkinnyParams&, const Maps&, const Launch&);

template <typename Weight, int kTokens, size_t... i>
Kernel kernel_of(int columns, std::index_sequence<i...>) {
  Kernel found = nullptr;
  ((found = columns == kSkinnyColumns[i]
                ? &run_kernel<SkinnyConfig<Weight, kSkinnyColumns[i], kTokens>>
                : found),
   ...);
  return found;
}
template <typename Weight, size_t... i>
Kernel kernel_of(const SkinnyLayout& layout, std::index_sequence<i...>) {
  constexpr std::make_index_sequence<std::size(kSkinnyColumns)> kAll{};
  Kernel found = nullptr;
  ((found = layout.tokens == kWgmmaTokens[i]
                ? kernel_of<Weight, kWgmmaTokens[i]>(layout.columns, kAll)
                : found),
   ...);
  return found;
}
Kernel kernel_of(reference::Dtype weight, const SkinnyLayout& layout) {
  constexpr std::make_index_sequence<std::size(kWgmmaTokens)> kAll{};
  return weight == reference::Dtype::bf16 ? kernel_of<__nv_bfloat16>(layout, kAll)
                                          : kernel_of<__half>(layout, kAll);
}

// Rows of W, or of x where tokens are rows of products, from this place on, up to the end of their
// panel.
int rows_of_panel(const SkinnyLayout& layout, size_t place) {
  const int row = int((place - kFirstStage) % size_t(layout.stage_bytes) / 128);
  if (!tokens_are_rows(layout.tokens)) return layout.columns - row % layout.columns;
  return layout.x_rows - (row - layout.panels * layout.columns) % layout.x_rows;
}

}  // namespace

void run_skinny_product(const ProductShape& shape, const ProductChoice& choice,
                        const ProductTensors& tensors, const SkinnyRun& run) {
  SkinnyLayout layout = skinny_layout(shape, tensors.x.shape[0], choice);
  if (run.num_stages > 0) layout.num_stages = std::min(layout.num_stages, run.num_stages);
  SkinnyParams params = skinny_params(shape, choice, layout, tensors);
  if (run.num_asked_ahead > 0) {
    params.num_asked_ahead = std::min(run.num_asked_ahead, layout.num_stages);
  }
  const Maps maps{map_of(tensors.weight, choice.columns / choice.token_ctas, tensors.is_gated),
                  map_of(tensors.x, layout.x_rows / choice.cluster, false)};
  const Launch launch{.num_threads = layout.num_threads(),
                      .cluster = choice.num_ctas(),
                      .num_clusters = std::min(run.max_clusters, layout.num_items()),
                      .shared_bytes = kDynamic + size_t(layout.shared_bytes()),
                      .seed = run.seed,
                      .wgmma_rows = [&](size_t place) { return rows_of_panel(layout, place); },
                      .wgmma_columns = tokens_are_rows(layout.tokens)
                                           ? layout.columns
                                           : std::min(layout.x_rows, int32_t(tensors.x.shape[0])),
                      .prior_grid = run.prior_grid,
                      .dependents_find_x = true};
  kernel_of(shape.weight, layout)(params, maps, launch);
}

float silu_mul_of(float gate, float up) { return silu_mul(gate, up); }

}  // namespace loratory::gpu::emulated
