#include "gpu_case.hpp"

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

LoraShrinkDesc shrink_desc(const LoraLinearDesc& linear) {
  LoraShrinkDesc out;
  for (const LoraSliceDesc& slice : linear.slices) {
    out.slices.push_back({.a = slice.a, .ranks = slice.ranks});
  }
  return out;
}

LoraExpandDesc expand_desc(const LoraLinearDesc& linear) {
  LoraExpandDesc out{.slices = {}, .mode = linear.mode};
  for (const LoraSliceDesc& slice : linear.slices) {
    out.slices.push_back({.b = slice.b, .ranks = slice.ranks, .scalings = slice.scalings});
  }
  return out;
}

}  // namespace

GpuCase::GpuCase(const reference::LoraData& data)
    : data_(data),
      x_(data.x),
      y_(data.y),
      desc_(make_desc()),
      layer_(desc_),
      shrink_(shrink_desc(desc_)),
      expand_(expand_desc(desc_)) {}

LoraLinearDesc GpuCase::make_desc() {
  LoraLinearDesc out{.slices = {}, .mode = data_.mode};
  out.workspace_bytes = workspace_bytes(int64_t(data_.slots.size()), int64_t(data_.a.size()), 512);
  workspace_ = make_device_buffer(out.workspace_bytes);
  out.workspace = workspace_.get();
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

DeviceSegments GpuCase::segments(int32_t segment_size) const {
  const auto max_loras = int32_t(data_.ranks[0].size());
  DeviceSegments out(int64_t(data_.slots.size()), max_loras, segment_size);
  out.upload(reference::make_batch_layout(data_.slots, max_loras), nullptr);
  return out;
}

Tensor GpuCase::run(const LoraLinear& layer, const LoraVariant& variant) const {
  const DeviceSegments list = segments(variant.segment_size());
  y_.write(data_.y);
  layer.launch(variant, x_.view(), y_.view(), list.view(), nullptr, LaunchOrder::after_previous);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  return y_.read();
}

Tensor GpuCase::shrink(const LoraVariant& variant, const Tensor& h) const {
  const DeviceSegments list = segments(variant.segment_size());
  const DeviceTensor on_gpu(h);
  shrink_.launch(variant, x_.view(), on_gpu.view(), list.view(), nullptr,
                 LaunchOrder::after_previous);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  return on_gpu.read();
}

Tensor GpuCase::expand(const LoraVariant& variant, const Tensor& h, int32_t parts) const {
  const DeviceSegments list = segments(parts * variant.segment_size());
  const DeviceTensor on_gpu(h);
  y_.write(data_.y);
  expand_.launch(variant, on_gpu.view(), y_.view(), list.view(), nullptr,
                 LaunchOrder::after_previous);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  return y_.read();
}

std::vector<LoraVariant> variants(bool aligned) {
  constexpr auto kBf16 = reference::Dtype::bf16;
  std::vector<LoraVariant> out =
      lora_variants(LoraStage::linear, {.x = kBf16, .weight = kBf16, .h = {}, .y = kBf16});
  std::erase_if(out, [&](const LoraVariant& v) { return v.aligned && !aligned; });
  return out;
}

}  // namespace loratory::gpu
