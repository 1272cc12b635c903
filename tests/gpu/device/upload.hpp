#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_buffer.hpp"

namespace loratory::gpu {

/// The values in device memory.
template <typename T>
DeviceBuffer upload(const std::vector<T>& values) {
  DeviceBuffer buffer = make_device_buffer(values.size() * sizeof(T));
  LORATORY_CUDA_CHECK(
      cudaMemcpy(buffer.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return buffer;
}

/// For LoraLayerDesc::split_sums.
inline DeviceBuffer zeroed_buffer(size_t num_bytes) {
  DeviceBuffer buffer = make_device_buffer(num_bytes);
  if (num_bytes > 0) LORATORY_CUDA_CHECK(cudaMemset(buffer.get(), 0, num_bytes));
  return buffer;
}

}  // namespace loratory::gpu
