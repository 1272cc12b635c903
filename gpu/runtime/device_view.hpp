#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "reference/numerics/dtype.hpp"

namespace loratory::gpu {

/// Numbers in device memory: reference::TensorView without a heap, for up to three axes.
/// Element [i, j, k] lies at data + size·(i·strides[0] + j·strides[1] + k·strides[2]); 64-bit.
struct DeviceView {
  reference::Dtype dtype = reference::Dtype::bf16;
  void* data = nullptr;
  int num_axes = 0;
  std::array<int64_t, 3> shape{};
  std::array<int64_t, 3> strides{};  ///< in elements, outermost axis first
};

/// "{dtype=bf16 data=0x1000 shape=[4, 16, 64] strides=[1024, 64, 1]}"
std::string describe(const DeviceView& view);

/// Row-major without gaps.
DeviceView device_view(reference::Dtype dtype, void* data, std::initializer_list<int64_t> shape);

}  // namespace loratory::gpu
