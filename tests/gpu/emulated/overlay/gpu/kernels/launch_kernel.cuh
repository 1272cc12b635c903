#pragma once

#include <cuda_runtime.h>

#include "gpu/plan/launch_order.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_ability.hpp"
#include "tests/gpu/emulated/emulated_cuda.hpp"

// gpu/kernels/launch_kernel.cuh for an emulated GPU: of kernels without clusters and dynamic shared
// memory.

#undef __shared__
#define __shared__ static  // one CTA runs at a time

namespace loratory::gpu {

struct GridShape {
  dim3 grid, block;
};

template <typename... Params, typename... Args>
void launch_kernel(void (*kernel)(Params...), const GridShape& shape, CUstream_st* stream,
                   LaunchOrder, const Args&... args) {
  emulated::launch(
      {.num_threads = int(shape.block.x),
       .num_clusters = int(shape.grid.x),
       .grid_y = int(shape.grid.y),
       .grid_z = int(shape.grid.z)},
      [=](std::byte*) { kernel(args...); }, stream);
}

}  // namespace loratory::gpu
