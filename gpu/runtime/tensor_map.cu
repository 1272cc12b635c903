#include "gpu/runtime/tensor_map.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <stdexcept>
#include <string>

#include "gpu/runtime/cuda_check.hpp"
#include "reference/base/check.hpp"

namespace loratory::gpu {
namespace {

constexpr size_t kMostAxes = 5;

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

std::string numbers(const std::span<const cuuint64_t>& of) {
  std::string out;
  for (const cuuint64_t v : of) out += (out.empty() ? "" : ", ") + std::to_string(v);
  return out;
}

}  // namespace

CUtensorMap tensor_map_of(const TensorBoxes& boxes) {
  const size_t axes = boxes.sizes.size();
  LORATORY_ASSERT(axes <= kMostAxes && boxes.strides.size() + 1 == axes && boxes.box.size() == axes,
                  "sizes and a box for each axis");
  std::array<cuuint32_t, kMostAxes> steps;
  steps.fill(1);
  CUtensorMap map{};
  const CUresult result =
      encoder()(&map,
                boxes.dtype == reference::Dtype::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                      : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                cuuint32_t(axes), const_cast<void*>(boxes.data), boxes.sizes.data(),
                boxes.strides.data(), boxes.box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, boxes.fetches, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("cuTensorMapEncodeTiled: error " + std::to_string(int(result)) +
                             " for sizes " + numbers(boxes.sizes) + ", strides " +
                             numbers(boxes.strides));
  }
  return map;
}

}  // namespace loratory::gpu
