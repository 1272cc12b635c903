#include "tests/gpu/emulated/emulated_products.hpp"

#include <algorithm>
#include <utility>

#include "gpu/product/skinny_kernel.cuh"

namespace loratory::gpu::emulated {
namespace {

// Dynamic memory begins behind the barriers, aligned to no more than the GPU aligns it: what a
// layout adds to align its stages is used up.
constexpr size_t kBarrierBytes = 2 * kMaxSkinnyStages * sizeof(uint64_t);
constexpr size_t kDynamic = 1024 + 16;
static_assert(kBarrierBytes <= kDynamic);

CUtensorMap map_of(const DeviceView& matrix, int box_rows) {
  return gpu::map_of(Box{.matrix = static_cast<const std::byte*>(matrix.data),
                         .num_rows = matrix.shape[0],
                         .num_columns = matrix.shape[1],
                         .row_bytes = 2 * matrix.strides[0],
                         .box_rows = box_rows});
}

struct Maps {
  CUtensorMap weights, x;
};

template <typename C>
void run_kernel(const SkinnyParams& params, const Maps& maps, const Launch& launch) {
  run(launch, [&](std::byte* shared) {
    auto* const full = reinterpret_cast<uint64_t*>(shared);
    SkinnyCta<C>(params, shared + kDynamic, full, full + kMaxSkinnyStages)
        .run(maps.weights, maps.x);
  });
}

template <typename Weight, size_t... i>
void run_tile(int columns, const SkinnyParams& params, const Maps& maps, const Launch& launch,
              std::index_sequence<i...>) {
  ((columns == kSkinnyColumns[i]
        ? run_kernel<SkinnyConfig<Weight, kSkinnyColumns[i]>>(params, maps, launch)
        : void()),
   ...);
}

}  // namespace

void run_skinny_product(const ProductShape& shape, const ProductChoice& choice,
                        const SkinnyLayout& layout, const ProductTensors& tensors, int max_clusters,
                        uint64_t seed) {
  const SkinnyParams params = skinny_params(shape, choice, layout, tensors);
  const Maps maps{map_of(tensors.weight, choice.columns),
                  map_of(tensors.x, layout.x_rows / choice.cluster)};
  const Launch launch{.num_threads = SkinnyConfig<__half, 64>::kNumThreads,
                      .cluster = choice.cluster,
                      .num_clusters = std::min(max_clusters, layout.num_items()),
                      .shared_bytes = kDynamic + size_t(layout.shared_bytes()),
                      .seed = seed,
                      .wgmma_rows = std::min(layout.x_rows, int32_t(tensors.x.shape[0]))};
  constexpr std::make_index_sequence<std::size(kSkinnyColumns)> kAll{};
  if (shape.weight == reference::Dtype::bf16)
    run_tile<__nv_bfloat16>(choice.columns, params, maps, launch, kAll);
  else
    run_tile<__half>(choice.columns, params, maps, launch, kAll);
}

}  // namespace loratory::gpu::emulated
