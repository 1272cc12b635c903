#include "guarded_tensor.hpp"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "fuzz/support/lora_case.hpp"
#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {

using reference::Tensor;

namespace {

/// One band. compute-sanitizer wants none: it watches the ends of allocations itself.
const std::vector<uint16_t>& canaries() {
  static const char* const text = std::getenv("LORATORY_GPU_CANARIES");
  static const size_t count = text == nullptr || std::string_view(text) != "0" ? 2048 : 0;
  static const std::vector<uint16_t> band(count, 0x7FC1);
  return band;
}
size_t guard_bytes() { return 2 * canaries().size(); }

}  // namespace

GuardedTensor::GuardedTensor(const Tensor& host, int64_t shift)
    : shape_(host.shape()),
      strides_(host.strides()),
      num_bytes_(host.bytes().size()),
      shift_bytes_(size_t(shift) * size_bytes(host.dtype())) {
  const size_t front = guard_bytes() + shift_bytes_;
  buffer_ = make_device_buffer(front + num_bytes_ + guard_bytes());
  for (const size_t begin : {shift_bytes_, front + num_bytes_}) {
    LORATORY_CUDA_CHECK(cudaMemcpy(buffer_.get() + begin, canaries().data(), guard_bytes(),
                                   cudaMemcpyHostToDevice));
  }
  view_ = {.dtype = host.dtype(), .data = buffer_.get() + front, .num_axes = int(shape_.size())};
  for (size_t i = 0; i < shape_.size(); ++i) {
    view_.shape[i] = shape_[i];
    view_.strides[i] = strides_[i];
  }
  write(host);
}

void GuardedTensor::write(const Tensor& host) {
  LORATORY_CUDA_CHECK(
      cudaMemcpy(view_.data, host.bytes().data(), num_bytes_, cudaMemcpyHostToDevice));
}

Tensor GuardedTensor::read() const {
  Tensor host(view_.dtype, shape_, strides_);
  LORATORY_CUDA_CHECK(
      cudaMemcpy(host.bytes().data(), view_.data, num_bytes_, cudaMemcpyDeviceToHost));
  return host;
}

bool GuardedTensor::guards_are_intact() const {
  std::vector<uint16_t> band(canaries().size());
  for (const size_t begin : {shift_bytes_, shift_bytes_ + guard_bytes() + num_bytes_}) {
    LORATORY_CUDA_CHECK(
        cudaMemcpy(band.data(), buffer_.get() + begin, guard_bytes(), cudaMemcpyDeviceToHost));
    if (band != canaries()) return false;
  }
  return true;
}

testing::AssertionResult have_same_bits(const Tensor& left, const Tensor& right) {
  if (left.shape() == right.shape() && left.bytes() == right.bytes()) {
    return testing::AssertionSuccess();
  }
  if (left.shape() != right.shape() || left.bytes().size() != right.bytes().size()) {
    return testing::AssertionFailure() << "shapes or strides differ";
  }
  int64_t num_different = 0, first = -1;
  const size_t size = size_bytes(left.dtype());
  for (size_t at = 0; at < left.bytes().size(); at += size) {
    if (std::memcmp(left.bytes().data() + at, right.bytes().data() + at, size) == 0) continue;
    if (num_different++ == 0) first = int64_t(at / size);
  }
  const int64_t stride = left.strides()[0];
  return testing::AssertionFailure()
         << num_different << " elements differ, first in row " << first / stride << " column "
         << first % stride << ": " << reference::number(left, first) << " and "
         << reference::number(right, first);
}

}  // namespace loratory::gpu
