#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>

#include "gpu/product/skinny_kernel.cuh"
#include "gpu/product/skinny_product.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_ability.hpp"
#include "gpu/runtime/tensor_map.hpp"
#include "reference/base/check.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using Kernel = SkinnyKernel;

Kernel kernel_of(Dtype weight, int columns, int tokens) {
  const SkinnyKernel kernel = weight == Dtype::bf16
                                  ? skinny_kernel_of<__nv_bfloat16>(columns, tokens)
                                  : skinny_kernel_of<__half>(columns, tokens);
  LORATORY_ASSERT(kernel != nullptr, "choices name tiles that have a kernel");
  return kernel;
}

// --- maps of tensors ---------------------------------------------------------------------------

cuuint64_t row_bytes(const DeviceView& matrix) {
  return cuuint64_t(matrix.shape[0] > 1 ? matrix.strides[0] : matrix.shape[1]) * 2;
}

CUtensorMap map_of(const DeviceView& matrix, int box_rows, CUtensorMapL2promotion fetches) {
  const cuuint64_t sizes[] = {cuuint64_t(matrix.shape[1]), cuuint64_t(matrix.shape[0])};
  const cuuint64_t strides[] = {row_bytes(matrix)};
  const cuuint32_t box[] = {kPanelDepth, cuuint32_t(box_rows)};
  return tensor_map_of({matrix.dtype, matrix.data, sizes, strides, box, fetches});
}

/// Of a matrix whose rows are two halves: eights of the first and the second half take turns.
CUtensorMap map_of_halves(const DeviceView& matrix, int box_rows, CUtensorMapL2promotion fetches) {
  const auto half = cuuint64_t(matrix.shape[0] / 2);
  const cuuint64_t row = row_bytes(matrix);
  const cuuint64_t sizes[] = {cuuint64_t(matrix.shape[1]), 8, 2, half / 8};
  const cuuint64_t strides[] = {row, half * row, 8 * row};
  const cuuint32_t box[] = {kPanelDepth, 8, 2, cuuint32_t(box_rows / 16)};
  return tensor_map_of({matrix.dtype, matrix.data, sizes, strides, box, fetches});
}

/// Of a line of W that L2 lacks. For few tokens an H200 is 0 to 3 % faster with 128 bytes, for 128
/// of them 1 to 4 % slower.
CUtensorMapL2promotion weight_fetches(const SkinnyLayout& layout) {
  return layout.tokens <= 32 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B
                             : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
}

// --- launches ----------------------------------------------------------------------------------

cudaLaunchConfig_t config_of(const ProductChoice& choice, const SkinnyLayout& layout,
                             cudaLaunchAttribute* attributes) {
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(unsigned(layout.num_threads()));
  config.dynamicSmemBytes = size_t(layout.shared_bytes());
  config.attrs = attributes;
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {unsigned(choice.num_ctas()), 1, 1};
  config.numAttrs = 1;
  return config;
}

int query_clusters(Kernel kernel, const ProductChoice& choice, const SkinnyLayout& layout) {
  // For all layouts at once: the attribute is the kernel's.
  LORATORY_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           kSkinnySharedBytes));
  cudaLaunchAttribute attribute{};
  cudaLaunchConfig_t config = config_of(choice, layout, &attribute);
  config.gridDim = dim3(unsigned(choice.num_ctas()));
  int clusters = 0;
  LORATORY_CUDA_CHECK(
      cudaOccupancyMaxActiveClusters(&clusters, reinterpret_cast<const void*>(kernel), &config));
  return std::max(1, clusters);
}

/// How many clusters the GPU holds at once. Asked once: launches happen in captures.
int max_clusters(Kernel kernel, const ProductChoice& choice, const SkinnyLayout& layout) {
  static std::mutex mutex;
  static std::map<std::tuple<Kernel, int, int, int>, int> known;
  int device = 0;
  LORATORY_CUDA_CHECK(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  const auto [found, is_new] =
      known.try_emplace({kernel, choice.num_ctas(), layout.shared_bytes(), device}, 0);
  if (is_new) found->second = query_clusters(kernel, choice, layout);
  return found->second;
}

}  // namespace

void launch_skinny_product(const ProductShape& shape, const ProductChoice& choice,
                           const ProductTensors& tensors, CUstream_st* stream, LaunchOrder order) {
  if (tensors.x.shape[0] == 0) return;
  // Elsewhere the kernel is empty where it multiplies, or not there.
  if (!has_wgmma()) throw std::runtime_error("products: this GPU has no wgmma (sm_90 has it)");
  const SkinnyLayout layout = skinny_layout(shape, tensors.x.shape[0], choice);
  const Kernel kernel = kernel_of(shape.weight, choice.columns, layout.tokens);
  CUtensorMap weights = (tensors.is_gated ? map_of_halves : map_of)(
      tensors.weight, choice.columns / choice.token_ctas, weight_fetches(layout));
  CUtensorMap x =
      map_of(tensors.x, layout.x_rows / choice.cluster, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  SkinnyParams params = skinny_params(shape, choice, layout, tensors);
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = config_of(choice, layout, attributes);
  const int most = max_clusters(kernel, choice, layout);
  config.gridDim = dim3(unsigned(std::min(most, layout.num_items()) * choice.num_ctas()));
  config.stream = stream;
  if (overlaps(order)) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  void* arguments[] = {&weights, &x, &params};
  LORATORY_CUDA_CHECK(
      cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments));
}

}  // namespace loratory::gpu
