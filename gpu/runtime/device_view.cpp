#include "gpu/runtime/device_view.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "reference/base/check.hpp"

namespace loratory::gpu {

DeviceView device_view(reference::Dtype dtype, void* data, std::initializer_list<int64_t> shape) {
  LORATORY_ASSERT(shape.size() <= 3, "a device view has up to three axes");
  DeviceView view{.dtype = dtype, .data = data, .num_axes = int(shape.size())};
  size_t axis = 0;
  for (const int64_t size : shape) view.shape[axis++] = size;
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    view.strides[i] = stride;
    stride *= view.shape[i];
  }
  return view;
}

std::string describe(const DeviceView& view) {
  const auto axes = size_t(std::clamp(view.num_axes, 0, 3));
  return fmt::format("{{dtype={} data={} shape={} strides={}}}", name(view.dtype),
                     fmt::ptr(view.data), std::span(view.shape).first(axes),
                     std::span(view.strides).first(axes));
}

}  // namespace loratory::gpu
