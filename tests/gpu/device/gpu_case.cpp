#include "gpu_case.hpp"

#include <gtest/gtest.h>

#include "gpu/runtime/cuda_check.hpp"
#include "layer_on_gpu.hpp"
#include "upload.hpp"

namespace loratory::gpu {

using reference::Tensor;

namespace {

Tensor read(const GuardedTensor& written) {
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(written.guards_are_intact()) << "written around a result";
  return written.read();
}

}  // namespace

GpuCase::GpuCase(const reference::LoraData& data)
    : data_(data),
      x_(data.x),
      y_(data.y),
      desc_(make_desc()),
      layer_(desc_),
      shrink_(with_op(desc_, LoraOp::shrink)),
      expand_(with_op(desc_, LoraOp::expand)) {}

LoraLayerDesc GpuCase::make_desc() {
  LoraLayerDesc out{.slices = {}, .mode = data_.mode};
  out.workspace_bytes = workspace_bytes(int64_t(data_.slots.size()), int64_t(data_.a.size()), 512);
  workspace_ = make_device_buffer(out.workspace_bytes);
  out.workspace = workspace_.get();
  out.split_sums_bytes =
      split_sums_bytes(int64_t(data_.slots.size()), int64_t(data_.a.size()), 512);
  split_sums_ = zeroed_buffer(out.split_sums_bytes);
  out.split_sums = split_sums_.get();
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

Tensor GpuCase::run(const LoraLayer& layer, const LoraVariant& variant) const {
  const DeviceSegments list = segments(variant.segment_size());
  y_.write(data_.y);
  layer.launch_variant(variant, {.x = x_.view(), .y = y_.view()}, list.view(), nullptr);
  return read(y_);
}

Tensor GpuCase::shrink(const LoraLayer& layer, const LoraVariant& variant, const Tensor& h,
                       int32_t max_segments) const {
  const DeviceSegments list = segments(variant.segment_size());
  SegmentView view = list.view();
  if (max_segments > 0) view.max_segments = max_segments;
  const GuardedTensor on_gpu(h);
  layer.launch_variant(variant, {.x = x_.view(), .h = on_gpu.view()}, view, nullptr);
  return read(on_gpu);
}

Tensor GpuCase::expand(const LoraVariant& variant, const Tensor& h, int32_t parts) const {
  const DeviceSegments list = segments(parts * variant.segment_size());
  const GuardedTensor on_gpu(h);
  y_.write(data_.y);
  expand_.launch_variant(variant, {.h = on_gpu.view(), .y = y_.view()}, list.view(), nullptr);
  return read(y_);
}

std::vector<LoraVariant> variants(bool aligned) {
  std::vector<LoraVariant> out = variants_here(LoraOp::linear);
  std::erase_if(out, [&](const LoraVariant& v) { return v.aligned && !aligned; });
  return out;
}

}  // namespace loratory::gpu
