#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>

#include "gpu/product/skinny_kernel.cuh"
#include "gpu/product/skinny_product.hpp"
#include "gpu/runtime/cuda_check.hpp"
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

/// The driver's function, found at run time: programs do not link with the driver.
decltype(&cuTensorMapEncodeTiled) encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    LORATORY_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                         cudaEnableDefault, &result));
    if (result != cudaDriverEntryPointSuccess) {
      throw std::runtime_error("cuTensorMapEncodeTiled: the driver has none");
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return found;
}

/// Boxes of 64 columns, in the swizzle that wgmma reads.
template <size_t kAxes>
CUtensorMap encode(const DeviceView& matrix, const std::array<cuuint64_t, kAxes>& sizes,
                   const std::array<cuuint64_t, kAxes - 1>& strides,
                   const std::array<cuuint32_t, kAxes>& box, CUtensorMapL2promotion promotion) {
  CUtensorMap map{};
  std::array<cuuint32_t, kAxes> steps;
  steps.fill(1);
  const CUresult result =
      encoder()(&map,
                matrix.dtype == Dtype::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                            : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                kAxes, matrix.data, sizes.data(), strides.data(), box.data(), steps.data(),
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("cuTensorMapEncodeTiled: error " + std::to_string(int(result)) +
                             " for " + describe(matrix));
  }
  return map;
}

cuuint64_t row_bytes(const DeviceView& matrix) {
  return cuuint64_t(matrix.shape[0] > 1 ? matrix.strides[0] : matrix.shape[1]) * 2;
}

CUtensorMap map_of(const DeviceView& matrix, int box_rows, CUtensorMapL2promotion promotion) {
  return encode<2>(matrix, {cuuint64_t(matrix.shape[1]), cuuint64_t(matrix.shape[0])},
                   {row_bytes(matrix)}, {kPanelDepth, cuuint32_t(box_rows)}, promotion);
}

/// Of a matrix whose rows are two halves: eights of the first and the second half take turns.
CUtensorMap map_of_halves(const DeviceView& matrix, int box_rows,
                          CUtensorMapL2promotion promotion) {
  const auto half = cuuint64_t(matrix.shape[0] / 2);
  const cuuint64_t row = row_bytes(matrix);
  return encode<4>(matrix, {cuuint64_t(matrix.shape[1]), 8, 2, half / 8},
                   {row, half * row, 8 * row}, {kPanelDepth, 8, 2, cuuint32_t(box_rows / 16)},
                   promotion);
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
  const SkinnyLayout layout = skinny_layout(shape, tensors.x.shape[0], choice);
  const Kernel kernel = kernel_of(shape.weight, choice.columns, layout.tokens);
  CUtensorMap weights = (tensors.is_gated ? map_of_halves : map_of)(
      tensors.weight, choice.columns / choice.token_ctas, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
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
