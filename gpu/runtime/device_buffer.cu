#include "gpu/runtime/device_buffer.hpp"

#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {

void DeviceFree::operator()(void* p) const { cudaFree(p); }
void PinnedFree::operator()(void* p) const { cudaFreeHost(p); }

DeviceBuffer make_device_buffer(size_t bytes) {
  void* p = nullptr;
  LORATORY_CUDA_CHECK(cudaMalloc(&p, bytes == 0 ? 1 : bytes));
  return DeviceBuffer(static_cast<std::byte*>(p));
}

DeviceBuffer make_cleared_device_buffer(size_t bytes) {
  DeviceBuffer out = make_device_buffer(bytes);
  LORATORY_CUDA_CHECK(cudaMemset(out.get(), 0, bytes));
  LORATORY_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  return out;
}

PinnedBuffer make_pinned_buffer(size_t bytes) {
  void* p = nullptr;
  LORATORY_CUDA_CHECK(cudaMallocHost(&p, bytes == 0 ? 1 : bytes));
  return PinnedBuffer(static_cast<std::byte*>(p));
}

}  // namespace loratory::gpu
