#include "gpu_case.hpp"

#include <cuda_runtime_api.h>

#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {

using reference::Tensor;

DeviceTensor::DeviceTensor(const Tensor& host)
    : buffer_(make_device_buffer(host.bytes().size())),
      shape_(host.shape()),
      strides_(host.strides()),
      num_bytes_(host.bytes().size()) {
  view_ = {.dtype = host.dtype(), .data = buffer_.get(), .num_axes = int(shape_.size())};
  for (size_t i = 0; i < shape_.size(); ++i) {
    view_.shape[i] = shape_[i];
    view_.strides[i] = strides_[i];
  }
  write(host);
}

void DeviceTensor::write(const Tensor& host) {
  LORATORY_CUDA_CHECK(
      cudaMemcpy(buffer_.get(), host.bytes().data(), num_bytes_, cudaMemcpyHostToDevice));
}

Tensor DeviceTensor::read() const {
  Tensor host(view_.dtype, shape_, strides_);
  LORATORY_CUDA_CHECK(
      cudaMemcpy(host.bytes().data(), buffer_.get(), num_bytes_, cudaMemcpyDeviceToHost));
  return host;
}

bool has_gpu() {
  int count = 0;
  const bool ok = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  cudaGetLastError();
  return ok;
}

namespace {

template <typename T>
DeviceBuffer upload(const std::vector<T>& values) {
  DeviceBuffer buffer = make_device_buffer(values.size() * sizeof(T));
  LORATORY_CUDA_CHECK(
      cudaMemcpy(buffer.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return buffer;
}

}  // namespace

GpuCase::GpuCase(const reference::LoraData& data)
    : data_(data), x_(data.x), y_(data.y), layer_(desc()) {}

LoraLinearDesc GpuCase::desc() {
  LoraLinearDesc out{.slices = {}, .mode = data_.mode};
  for (size_t i = 0; i < data_.a.size(); ++i) {
    weights_.emplace_back(data_.a[i]);
    weights_.emplace_back(data_.b[i]);
    tables_.push_back(upload(data_.ranks[i]));
    tables_.push_back(upload(data_.scalings[i]));
    out.slices.push_back({.a = weights_[2 * i].view(),
                          .b = weights_[2 * i + 1].view(),
                          .ranks = reinterpret_cast<const int32_t*>(tables_[2 * i].get()),
                          .scalings = reinterpret_cast<const float*>(tables_[2 * i + 1].get())});
  }
  return out;
}

Tensor GpuCase::run(const LoraVariant& variant) const {
  const auto max_loras = int32_t(data_.ranks[0].size());
  DeviceSegments segments(int64_t(data_.slots.size()), max_loras, variant.segment_size());
  segments.upload(reference::make_batch_layout(data_.slots, max_loras), nullptr);
  y_.write(data_.y);
  layer_.launch(variant, x_.view(), y_.view(), segments.view(), nullptr,
                LaunchOrder::after_previous);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  return y_.read();
}

std::vector<LoraVariant> variants(bool aligned) {
  std::vector<LoraVariant> out{{2, 1, 8, false}};
  if (!aligned) return out;
  for (const LoraVariant& v :
       {LoraVariant{1, 1, 8, true}, LoraVariant{1, 1, 2, true}, LoraVariant{4, 1, 8, true},
        LoraVariant{1, 4, 8, true}, LoraVariant{1, 4, 1, true}, LoraVariant{2, 4, 8, true},
        LoraVariant{2, 4, 1, true}}) {
    out.push_back(v);
  }
  return out;
}

}  // namespace loratory::gpu
