#include "layer_on_gpu.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "gpu/layout/device_segment_builder.hpp"
#include "gpu/plan/variant_table.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_ability.hpp"
#include "reference/base/input_error.hpp"
#include "upload.hpp"

namespace loratory::gpu {
namespace {

using reference::LayerBatch;
using reference::LayerData;
using reference::Tensor;

/// For batches of up to 8,192 tokens.
size_t workspace_size(const LayerData& data) {
  return workspace_bytes(8192, int64_t(data.slices.size()), data.shape.max_rank);
}

/// Variants that need more for a larger batch are left out.
size_t split_sums_size(const LayerData& data) {
  return split_sums_bytes(1024, int64_t(data.slices.size()), data.shape.max_rank);
}

void to_device(void* to, const void* from, size_t num_bytes) {
  LORATORY_CUDA_CHECK(cudaMemcpy(to, from, num_bytes, cudaMemcpyHostToDevice));
}

}  // namespace

LayerOnGpu::LayerOnGpu(const LayerData& data) : data_(&data) {
  for (const reference::LayerSlice& slice : data.slices) {
    weights_.emplace_back(slice.a, shift());
    weights_.emplace_back(slice.b, shift());
    tables_.push_back(upload(slice.ranks));
    tables_.push_back(upload(slice.scalings));
  }
  workspace_ = make_device_buffer(workspace_size(data));
  // NaN: what no shrink has written is not read.
  LORATORY_CUDA_CHECK(cudaMemset(workspace_.get(), 0xFF, workspace_size(data)));
  split_sums_ = zeroed_buffer(split_sums_size(data));
  layer_ = std::make_unique<LoraLayer>(desc());
}

LoraLayerDesc LayerOnGpu::desc() const {
  LoraLayerDesc out{.slices = {},
                    .offset_start = data_->shape.offset_start,
                    .add_inputs = data_->shape.add_inputs,
                    .mode = data_->shape.mode,
                    .workspace = workspace_.get(),
                    .workspace_bytes = workspace_size(*data_),
                    .split_sums = split_sums_.get(),
                    .split_sums_bytes = split_sums_size(*data_)};
  for (size_t i = 0; i < data_->slices.size(); ++i) {
    out.slices.push_back({.a = weights_[2 * i].view(),
                          .b = weights_[2 * i + 1].view(),
                          .ranks = reinterpret_cast<const int32_t*>(tables_[2 * i].get()),
                          .scalings = reinterpret_cast<const float*>(tables_[2 * i + 1].get())});
  }
  return out;
}

void LayerOnGpu::write(const LayerData& data) {
  data_ = &data;
  for (size_t i = 0; i < data.slices.size(); ++i) {
    const reference::LayerSlice& slice = data.slices[i];
    weights_[2 * i].write(slice.a);
    weights_[2 * i + 1].write(slice.b);
    to_device(tables_[2 * i].get(), slice.ranks.data(), slice.ranks.size() * 4);
    to_device(tables_[2 * i + 1].get(), slice.scalings.data(), slice.scalings.size() * 4);
  }
}

LoraLayerDesc with_op(LoraLayerDesc linear, LoraOp op) {
  linear.op = op;
  return linear;
}

std::vector<LoraVariant> variants_here(LoraOp op) {
  return lora_variants(op, has_clusters(), has_wgmma());
}

KernelUnderTest LayerOnGpu::kernel_of(const LoraVariant& v) const {
  return {.name = describe(v),
          .segment_size = v.segment_size(),
          .launch = [this, v](const DeviceView& x, const DeviceView& y, const SegmentView& segments,
                              CUstream_st* stream, LaunchOrder order) {
            layer_->launch_variant(v, {.x = x, .y = y}, segments, stream, order);
          }};
}

namespace {

/// A shrink and an expand through an fp32 h; NaN where no shrink has written.
struct Halves {
  Halves(const LoraLayerDesc& desc, const Tensor& nan_h)
      : h(nan_h), shrink(with_op(desc, LoraOp::shrink)), expand(with_op(desc, LoraOp::expand)) {}

  GuardedTensor h;
  LoraLayer shrink;
  LoraLayer expand;
};

}  // namespace

std::vector<KernelUnderTest> LayerOnGpu::kernels_of_halves(const DeviceView& x,
                                                           const DeviceView& y) const {
  std::vector<KernelUnderTest> out;
  const auto& c = data_->shape;
  // An h that is stored as x has its own tensor, which the other path computes.
  const bool in_fp32 = c.mode.h != reference::IntermediateMode::store_as_x;
  if (layer_->path_for({.x = x, .y = y}) != LoraPath::tensor_core || !in_fp32) return out;
  Tensor nan_h(reference::Dtype::f32, {int64_t(data_->slices.size()), x.shape[0], c.max_rank});
  std::ranges::fill(nan_h.bytes(), std::byte{0xFF});
  const auto halves = std::make_shared<Halves>(desc(), nan_h);
  const DeviceView h = halves->h.view();
  // Expands see the same h of every shrink: the first of a size meets all of them, others one.
  std::set<int> sizes;
  for (const LoraVariant& down : variants_here(LoraOp::shrink)) {
    if (down.aligned && !halves->shrink.variant_for({.x = x, .h = h}).aligned) continue;
    const bool meets_all = sizes.insert(down.segment_size()).second;
    for (const LoraVariant& up : variants_here(LoraOp::expand)) {
      if (down.segment_size() % up.segment_size() != 0) continue;
      if (up.aligned && !halves->expand.variant_for({.h = h, .y = y}).aligned) continue;
      out.push_back(
          {.name = "shrink " + describe(down) + ", expand " + describe(up),
           .expand = describe(up),
           .segment_size = down.segment_size(),
           .launch = [halves, down, up](const DeviceView& from, const DeviceView& to,
                                        const SegmentView& segments, CUstream_st* stream,
                                        LaunchOrder order) {
             DeviceView part = halves->h.view();
             part.shape[1] = from.shape[0];
             halves->shrink.launch_variant(down, {.x = from, .h = part}, segments, stream, order);
             halves->expand.launch_variant(up, {.h = part, .y = to}, segments, stream, order);
           }});
      if (!meets_all) break;
    }
  }
  return out;
}

bool LayerOnGpu::fits(const KernelUnderTest& kernel, const DeviceView& x,
                      const DeviceView& y) const {
  const Cut nothing{{{}}, {0}};
  const DeviceBuffer segments = upload(nothing.segments), tokens = upload(nothing.token_indices);
  const DeviceBuffer count = upload(std::vector<int32_t>{0});
  try {
    kernel.launch(x, y,
                  {.num_segments = reinterpret_cast<const int32_t*>(count.get()),
                   .segments = reinterpret_cast<const Segment*>(segments.get()),
                   .token_indices = reinterpret_cast<const int32_t*>(tokens.get()),
                   .segment_size = kernel.segment_size},
                  nullptr, LaunchOrder::after_previous);
  } catch (const InputError&) {  // of a variant that has no room for this layer
    return false;
  }
  return true;
}

std::vector<KernelUnderTest> LayerOnGpu::kernels(const LayerBatch& batch) const {
  const GuardedTensor x_tensor(batch.x, shift()), y_tensor(batch.y, shift());
  const DeviceView x = x_tensor.view(), y = y_tensor.view();
  const LoraVariant chosen = layer_->variant_for({.x = x, .y = y});
  std::vector<KernelUnderTest> out{kernel_of(chosen)};
  for (const LoraVariant& v : variants_here(LoraOp::linear)) {
    if (v == chosen || (v.aligned && !chosen.aligned)) continue;
    KernelUnderTest kernel = kernel_of(v);
    if (fits(kernel, x, y)) out.push_back(std::move(kernel));
  }
  for (KernelUnderTest& kernel : kernels_of_halves(x, y)) {
    if (fits(kernel, x, y)) out.push_back(std::move(kernel));
  }
  return out;
}

Tensor LayerOnGpu::run(const KernelUnderTest& kernel, const LayerBatch& batch,
                       SegmentsFrom from) const {
  const auto max_loras = data_->shape.max_loras;
  if (from == SegmentsFrom::device) {
    const DeviceSegmentBuilder builder(batch.num_tokens(), max_loras, {{kernel.segment_size}});
    const DeviceBuffer mapping = upload(batch.slots);
    builder.build(reinterpret_cast<const int32_t*>(mapping.get()), batch.num_tokens(), nullptr);
    return launch(kernel, batch, builder.view(kernel.segment_size));
  }
  DeviceSegments segments(batch.num_tokens(), max_loras, kernel.segment_size);
  segments.upload(reference::make_batch_layout(batch.slots, max_loras), nullptr);
  return launch(kernel, batch, segments.view());
}

Tensor LayerOnGpu::run_on_few_clusters(const KernelUnderTest& kernel,
                                       const LayerBatch& batch) const {
  DeviceSegments segments(batch.num_tokens(), data_->shape.max_loras, kernel.segment_size);
  segments.upload(reference::make_batch_layout(batch.slots, data_->shape.max_loras), nullptr);
  SegmentView view = segments.view();
  view.max_segments = 1;  // what the grid is cut for; the count on the GPU says how many there are
  return launch(kernel, batch, view);
}

Tensor LayerOnGpu::run(const KernelUnderTest& kernel, const LayerBatch& batch,
                       const Cut& cut) const {
  const DeviceBuffer segments = upload(cut.segments), tokens = upload(cut.token_indices);
  const DeviceBuffer count = upload(std::vector<int32_t>{int32_t(cut.segments.size())});
  return launch(kernel, batch,
                {.num_segments = reinterpret_cast<const int32_t*>(count.get()),
                 .segments = reinterpret_cast<const Segment*>(segments.get()),
                 .token_indices = reinterpret_cast<const int32_t*>(tokens.get()),
                 .segment_size = kernel.segment_size});
}

Tensor LayerOnGpu::launch(const KernelUnderTest& kernel, const LayerBatch& batch,
                          const SegmentView& segments) const {
  SCOPED_TRACE(kernel.name);
  const GuardedTensor x(batch.x, shift()), y(batch.y, shift());
  // What this shrink does not write is not there from another.
  const size_t h_bytes =
      workspace_bytes(batch.num_tokens(), int64_t(data_->slices.size()), data_->shape.max_rank);
  LORATORY_CUDA_CHECK(cudaMemset(workspace_.get(), 0xFF, h_bytes));
  kernel.launch(x.view(), y.view(), segments, nullptr, LaunchOrder::after_previous);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  Tensor out = y.read();
  EXPECT_TRUE(y.guards_are_intact()) << "written around y";
  EXPECT_TRUE(have_same_bits(covered_part(*data_, batch, out), out)) << "written where not covered";
  expect_inputs_intact(x, batch);
  return out;
}

void LayerOnGpu::expect_inputs_intact(const GuardedTensor& x, const LayerBatch& batch) const {
  constexpr size_t kMostBytes = size_t(1) << 22;  // to read back after each launch
  if (x.num_bytes() <= kMostBytes) {
    EXPECT_TRUE(x.read().bytes() == batch.x.bytes()) << "x was written";
  }
  EXPECT_TRUE(x.guards_are_intact()) << "written around x";
  for (size_t i = 0; i < weights_.size(); ++i) {
    const reference::LayerSlice& slice = data_->slices[i / 2];
    const Tensor& host = i % 2 == 0 ? slice.a : slice.b;
    if (weights_[i].num_bytes() > kMostBytes) continue;
    EXPECT_TRUE(weights_[i].guards_are_intact()) << "written around weights";
    EXPECT_TRUE(weights_[i].read().bytes() == host.bytes()) << "weights were written";
  }
}

Cut random_cut(const std::vector<int32_t>& slots, int32_t segment_size, uint64_t seed) {
  std::map<int32_t, std::vector<int32_t>> tokens_of;
  for (const int64_t t : reference::shuffled(int64_t(slots.size()), seed)) {
    if (slots[size_t(t)] >= 0) tokens_of[slots[size_t(t)]].push_back(int32_t(t));
  }
  Cut ordered;
  for (const auto& [slot, tokens] : tokens_of) {
    for (int32_t i = 0, size = 0; i < int32_t(tokens.size()); i += size) {
      const auto bits = reference::random_bits(seed, 1, ordered.segments.size());
      size = std::min(int32_t(tokens.size()) - i, 1 + int32_t(bits % uint64_t(segment_size)));
      ordered.segments.push_back({slot, int32_t(ordered.token_indices.size()), size, 0});
      const auto first = tokens.begin() + i;
      ordered.token_indices.insert(ordered.token_indices.end(), first, first + size);
    }
  }
  Cut out{{}, ordered.token_indices};
  for (const int64_t i : reference::shuffled(int64_t(ordered.segments.size()), seed + 1)) {
    out.segments.push_back(ordered.segments[size_t(i)]);
  }
  return out;
}

}  // namespace loratory::gpu
