#pragma once

#include <cstddef>
#include <memory>

namespace loratory::gpu {

struct DeviceFree {
  void operator()(void* p) const;
};
struct PinnedFree {
  void operator()(void* p) const;
};

/// Device memory, as cudaMalloc gives it (aligned to 256 bytes, not cleared).
using DeviceBuffer = std::unique_ptr<std::byte, DeviceFree>;
/// Page-locked host memory, which the GPU copies from directly.
using PinnedBuffer = std::unique_ptr<std::byte, PinnedFree>;

/// Errors   std::runtime_error: out of memory, no device.
DeviceBuffer make_device_buffer(size_t bytes);
/// The same, of zeros. The clearing has ended: a stream that does not wait for the default one may
/// write it at once.
DeviceBuffer make_cleared_device_buffer(size_t bytes);
PinnedBuffer make_pinned_buffer(size_t bytes);

}  // namespace loratory::gpu
