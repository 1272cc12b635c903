#pragma once

#include <cuda_runtime.h>

#include "gpu/plan/launch_order.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_ability.hpp"

namespace loratory::gpu {

/// How a kernel is launched.
struct GridShape {
  dim3 grid, block;
  size_t shared_bytes = 0;
  unsigned cluster = 1;  ///< CTAs side by side on the x axis of the grid
};

/// Before sm_90 every LaunchOrder behaves as after_previous.
/// Errors   std::runtime_error: CUDA's name and text.
template <typename... Params, typename... Args>
void launch_kernel(void (*kernel)(Params...), const GridShape& shape, CUstream_st* stream,
                   LaunchOrder order, const Args&... args) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  // Also of one CTA: a kernel of clusters does not start beside one that was launched without.
  if (has_clusters()) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {shape.cluster, 1, 1};
  }
  if (overlaps(order) && has_clusters()) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  LORATORY_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

}  // namespace loratory::gpu
