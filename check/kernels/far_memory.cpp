#include "check/kernels/far_memory.hpp"

#include <algorithm>
#include <array>

namespace loratory::check {

using reference::Tensor;

namespace {

// Elements in front.
int64_t elements_before(const Places& to) {
  return to.stride * (to.count - 1) >= kWraps ? kWraps : 0;
}

// Bytes of row i of the host's tensor: the last may be short.
struct HostRow {
  int64_t begin, bytes;
};
HostRow host_row(const Tensor& host, size_t axis, int64_t i) {
  const int64_t stride = host.strides()[axis] * int64_t(size_bytes(host.dtype()));
  const int64_t begin = i * stride;
  return {begin, std::min(stride, int64_t(host.bytes().size()) - begin)};
}

}  // namespace

FarMemory::~FarMemory() {
  for (void* const address : owned_) memory_->release(address);
}

void* FarMemory::operator()(const Part& part) {
  owned_.push_back(memory_->allocate(part.bytes + 1));
  if (part.host != nullptr) memory_->write(owned_.back(), part.host, part.bytes);
  return owned_.back();
}

int64_t FarMemory::bytes_of(const Tensor& host, const Places& to, size_t axis) {
  const auto size = int64_t(size_bytes(host.dtype()));
  return (elements_before(to) + to.stride * (to.count - 1) + host.strides()[axis]) * size + 1;
}

void FarMemory::spread(LoratoryTensor& t, const Tensor& host, const Places& to, size_t axis) {
  const auto size = int64_t(size_bytes(host.dtype()));
  owned_.push_back(memory_->reserve(size_t(bytes_of(host, to, axis))));
  auto* const first = static_cast<std::byte*>(owned_.back()) + elements_before(to) * size;
  t.data = first;
  t.shape[axis] = to.count;
  t.strides[axis] = to.stride;
  for (size_t outer = 0; outer < axis; ++outer) t.strides[outer] = to.stride * to.count;
  for (size_t i = 0; i < to.at.size(); ++i) {
    const HostRow row = host_row(host, axis, int64_t(i));
    memory_->write(first + to.at[i] * to.stride * size, host.bytes().data() + row.begin,
                   size_t(row.bytes));
  }
}

void FarMemory::collect(const LoratoryTensor& t, Tensor& host, const Places& from,
                        size_t axis) const {
  const auto size = int64_t(size_bytes(host.dtype()));
  const auto* const first = static_cast<const std::byte*>(t.data);
  for (size_t i = 0; i < from.at.size(); ++i) {
    const HostRow row = host_row(host, axis, int64_t(i));
    memory_->read(host.bytes().data() + row.begin, first + from.at[i] * from.stride * size,
                  size_t(row.bytes));
  }
}

void* FarMemory::workspace(size_t bytes) {
  constexpr size_t kLarge = size_t(1) << 26;
  if (bytes > kLarge) return owned_.emplace_back(memory_->reserve(bytes));
  const std::vector<std::byte> nan(bytes + 1, std::byte{0xFF});
  return (*this)({"the workspace", 0, nan.data(), bytes, false});
}

}  // namespace loratory::check
