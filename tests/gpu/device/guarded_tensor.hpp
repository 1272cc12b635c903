#pragma once

#include <gtest/gtest.h>

#include "gpu/runtime/device_buffer.hpp"
#include "gpu/runtime/device_view.hpp"
#include "reference/numerics/tensor.hpp"

namespace loratory::gpu {

/// A tensor of the host in device memory, same strides, between two bands of canaries: NaN that no
/// arithmetic makes.
class GuardedTensor {
 public:
  /// Its first number lies `shift` numbers behind a multiple of 256 bytes.
  explicit GuardedTensor(const reference::Tensor& host, int64_t shift = 0);
  DeviceView view() const { return view_; }
  /// What is there now; waits for the device.
  reference::Tensor read() const;
  void write(const reference::Tensor& host);
  bool guards_are_intact() const;
  size_t num_bytes() const { return num_bytes_; }

 private:
  DeviceBuffer buffer_;
  DeviceView view_;
  reference::Extents shape_, strides_;
  size_t num_bytes_, shift_bytes_;
};

/// Whether all elements, and whatever lies between rows, have the same bits.
testing::AssertionResult have_same_bits(const reference::Tensor& left,
                                        const reference::Tensor& right);

}  // namespace loratory::gpu
