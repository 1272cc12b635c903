#pragma once

#include <cuda.h>

#include <cstdint>
#include <span>

#include "reference/numerics/dtype.hpp"

namespace loratory::gpu {

/// A tensor of bf16 or f16 in device memory, and the box of it that a bulk copy takes
/// (gpu/kernels/bulk_tensor.cuh). The first axis has its numbers side by side, 64 of them in a box:
/// 128 bytes, which the copy swizzles as wgmma reads them.
struct TensorBoxes {
  reference::Dtype dtype = reference::Dtype::bf16;
  const void* data = nullptr;           ///< a multiple of 16 bytes
  std::span<const cuuint64_t> sizes;    ///< of each axis
  std::span<const cuuint64_t> strides;  ///< in bytes, of each axis but the first
  std::span<const cuuint32_t> box;      ///< of each axis
  CUtensorMapL2promotion fetches = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;  ///< of a line that L2 lacks
};

/// Host work alone. Errors   std::runtime_error: the driver has no tensor maps, or does not take
/// this one.
CUtensorMap tensor_map_of(const TensorBoxes& boxes);

}  // namespace loratory::gpu
