#include "bench/gpu/loratory_c.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/gpu/read_node.hpp"
#include "gpu/api/lora_layer.hpp"
#include "gpu/layout/device_segments.hpp"
#include "gpu/moe/expert_groups.hpp"
#include "gpu/moe/expert_lora.hpp"
#include "gpu/plugin/cuda_plugin.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "reference/base/input_error.hpp"

using loratory::InputError;
using loratory::gpu::DeviceSegments;
using loratory::gpu::DeviceView;
using loratory::gpu::ExpertGroups;
using loratory::gpu::ExpertLora;
using loratory::gpu::LaunchOrder;
using loratory::gpu::LoraLayer;
using loratory::gpu::LoraLayerDesc;
using loratory::gpu::LoraOp;
using loratory::gpu::LoraTensors;
using loratory::gpu::LoraVariant;
using loratory::reference::Dtype;

struct LoratoryTimedLayer {
  LoraOp op;
  LoraLayer layer;
};
struct LoratorySegments {
  DeviceSegments device;
};
struct LoratoryExpertLayer {
  ExpertLora layer;
};
struct LoratoryGroups {
  ExpertGroups device;
};

namespace {

std::string& last_error() {
  thread_local std::string text;
  return text;
}

/// Nothing may be thrown through C: `body`'s result, or `failed` and the text kept.
template <typename Body, typename Result>
Result guarded(Result failed, Body body) {
  try {
    return body();
  } catch (const std::exception& error) {
    last_error() = error.what();
  }
  return failed;
}

Dtype dtype(int32_t value) {
  switch (value) {
    case LORATORY_F32:
      return Dtype::f32;
    case LORATORY_BF16:
      return Dtype::bf16;
    case LORATORY_F16:
      return Dtype::f16;
    case LORATORY_F8_E4M3FN:
      return Dtype::f8_e4m3fn;
    case LORATORY_F8_E5M2:
      return Dtype::f8_e5m2;
    case LORATORY_I8:
      return Dtype::i8;
    default:
      throw InputError("dtype", "is " + std::to_string(value) + ", needs 0 to 5");
  }
}

DeviceView view(const LoratoryTensor& tensor) {
  if (tensor.num_axes < 1 || tensor.num_axes > 3) {
    throw InputError("num_axes", "is " + std::to_string(tensor.num_axes) + ", needs 1 to 3");
  }
  DeviceView out{.dtype = dtype(tensor.dtype), .data = tensor.data, .num_axes = tensor.num_axes};
  for (int i = 0; i < tensor.num_axes; ++i) {
    out.shape[size_t(i)] = tensor.shape[i];
    out.strides[size_t(i)] = tensor.strides[i];
  }
  return out;
}

LoraVariant variant(const LoratoryVariant& from) {
  return {.rank_tiles = from.rank_tiles,
          .token_tiles = from.token_tiles,
          .cluster = from.cluster,
          .stages = from.stages,
          .aligned = from.aligned != 0,
          .launches = from.launches,
          .warps = from.warps};
}

LoratoryVariant variant(const LoraVariant& from) {
  return {.rank_tiles = from.rank_tiles,
          .token_tiles = from.token_tiles,
          .cluster = from.cluster,
          .stages = from.stages,
          .aligned = from.aligned ? 1 : 0,
          .launches = from.launches,
          .warps = from.warps};
}

LoraOp op(int32_t value) {
  if (value < LORATORY_OP_LINEAR || value > LORATORY_OP_EXPAND) {
    throw InputError("op", "is " + std::to_string(value) + ", needs 0, 1 or 2");
  }
  return LoraOp(value);
}

/// None where its data is null.
DeviceView scale(const LoratoryTensor& tensor) {
  return tensor.data == nullptr ? DeviceView{} : view(tensor);
}

/// An operation ignores the weights of the others.
DeviceView weight(const LoratoryTensor& tensor, bool is_used) {
  return is_used ? view(tensor) : DeviceView{};
}

LoraTensors tensors(LoraOp op, const LoratoryTensor& from, const LoratoryTensor& to) {
  if (op == LoraOp::shrink) return {.x = view(from), .h = view(to)};
  if (op == LoraOp::expand) return {.h = view(from), .y = view(to)};
  return {.x = view(from), .y = view(to)};
}

std::vector<loratory::bench::ReadSpan> read_spans(const void* const* spans,
                                                  const int64_t* num_bytes, int32_t num_spans) {
  std::vector<loratory::bench::ReadSpan> out;
  for (int32_t i = 0; i < num_spans; ++i) out.push_back({spans[i], num_bytes[i]});
  return out;
}

}  // namespace

const LoratoryPlugin* loratory_plugin() { return loratory::gpu::cuda_plugin(); }

const char* loratory_error() { return last_error().c_str(); }

LoratoryTimedLayer* loratory_layer_create(int32_t of_op, const LoratorySlice* slices,
                                          int32_t num_slices, void* workspace,
                                          int64_t workspace_bytes) {
  return guarded<>(static_cast<LoratoryTimedLayer*>(nullptr), [&] {
    LoraLayerDesc desc{.op = op(of_op),
                       .slices = {},
                       .workspace = workspace,
                       .workspace_bytes = size_t(workspace_bytes)};
    for (const LoratorySlice& slice : std::span(slices, size_t(num_slices))) {
      desc.slices.push_back({.a = weight(slice.a, desc.op != LoraOp::expand),
                             .b = weight(slice.b, desc.op != LoraOp::shrink),
                             .ranks = slice.ranks,
                             .scalings = slice.scalings,
                             .a_scale = scale(slice.a_scale),
                             .b_scale = scale(slice.b_scale)});
    }
    const LoraOp of = desc.op;
    return new LoratoryTimedLayer{of, LoraLayer(std::move(desc))};
  });
}

void loratory_layer_destroy(LoratoryTimedLayer* layer) { delete layer; }

int loratory_layer_variant(const LoratoryTimedLayer* layer, const LoratoryTensor* from,
                           const LoratoryTensor* to, LoratoryVariant* out) {
  return guarded(1, [&] {
    *out = variant(layer->layer.variant_for(tensors(layer->op, *from, *to)));
    return 0;
  });
}

int loratory_layer_launch(const LoratoryTimedLayer* layer, const LoratoryVariant* with,
                          const LoratoryTensor* from, const LoratoryTensor* from_scale,
                          const LoratoryTensor* to, const LoratorySegments* segments, void* stream,
                          int32_t overlaps_previous) {
  return guarded(1, [&] {
    LoraTensors of = tensors(layer->op, *from, *to);
    if (from_scale != nullptr) of.x_scale = view(*from_scale);
    layer->layer.launch_variant(
        variant(*with), of, segments->device.view(), static_cast<cudaStream_t>(stream),
        overlaps_previous != 0 ? LaunchOrder::overlaps_previous : LaunchOrder::after_previous);
    return 0;
  });
}

LoratorySegments* loratory_segments_create(const int32_t* token_slots, int32_t num_tokens,
                                           int32_t max_loras, const LoratoryVariant* with) {
  return guarded<>(static_cast<LoratorySegments*>(nullptr), [&] {
    auto out = std::make_unique<LoratorySegments>(
        DeviceSegments(num_tokens, max_loras, variant(*with).segment_size()));
    out->device.upload(loratory::reference::make_batch_layout(
                           std::span(token_slots, size_t(num_tokens)), max_loras),
                       nullptr);
    LORATORY_CUDA_CHECK(cudaStreamSynchronize(nullptr));
    return out.release();
  });
}

void loratory_segments_destroy(LoratorySegments* segments) { delete segments; }

LoratoryExpertLayer* loratory_expert_layer_create(
    int32_t of_dtype, const LoratoryExpertSlice* slices, int32_t num_slices, int64_t num_slots,
    int64_t num_experts, int64_t max_rank, int64_t num_in, int32_t rows_per_x,
    const float* router_weights, void* workspace, int64_t workspace_bytes) {
  return guarded<>(static_cast<LoratoryExpertLayer*>(nullptr), [&] {
    LoraLayerDesc desc{.op = LoraOp::linear,
                       .slices = {},
                       .experts = {.num_experts = int32_t(num_experts),
                                   .rows_per_x = rows_per_x,
                                   .router_weights = router_weights},
                       .workspace = workspace,
                       .workspace_bytes = size_t(workspace_bytes)};
    for (const LoratoryExpertSlice& slice : std::span(slices, size_t(num_slices))) {
      desc.slices.push_back(loratory::gpu::expert_slice(dtype(of_dtype), slice.a, slice.b,
                                                        {.num_slots = num_slots,
                                                         .num_experts = num_experts,
                                                         .max_rank = max_rank,
                                                         .num_in = num_in,
                                                         .num_out = slice.num_out},
                                                        slice.ranks, slice.scalings));
    }
    return new LoratoryExpertLayer{ExpertLora(std::move(desc))};
  });
}

void loratory_expert_layer_destroy(LoratoryExpertLayer* layer) { delete layer; }

int loratory_expert_layer_variant(const LoratoryExpertLayer* layer, const LoratoryTensor* x,
                                  const LoratoryTensor* y, LoratoryVariant* out) {
  return guarded(1, [&] {
    *out = variant(layer->layer.layer().variant_for(tensors(LoraOp::linear, *x, *y)));
    return 0;
  });
}

int loratory_expert_layer_launch(const LoratoryExpertLayer* layer, const LoratoryVariant* with,
                                 const LoratoryTensor* x, const LoratoryTensor* y,
                                 const LoratoryGroups* groups, void* stream,
                                 int32_t overlaps_previous) {
  return guarded(1, [&] {
    const LoraTensors of = tensors(LoraOp::linear, *x, *y);
    const LoraVariant v = with != nullptr ? variant(*with) : layer->layer.layer().variant_for(of);
    layer->layer.layer().launch_variant(
        v, of, groups->device.views().of(v.segment_size()), static_cast<cudaStream_t>(stream),
        overlaps_previous != 0 ? LaunchOrder::overlaps_previous : LaunchOrder::after_previous);
    return 0;
  });
}

LoratoryGroups* loratory_groups_create(int64_t max_tokens, int32_t experts_per_token,
                                       int32_t num_experts, int32_t num_slots) {
  return guarded<>(static_cast<LoratoryGroups*>(nullptr), [&] {
    return new LoratoryGroups{ExpertGroups({.max_tokens = max_tokens,
                                            .experts_per_token = experts_per_token,
                                            .num_experts = num_experts,
                                            .num_slots = num_slots})};
  });
}

int loratory_groups_build(const LoratoryGroups* groups, const int32_t* experts,
                          const int32_t* slots, int64_t num_tokens, void* stream) {
  return guarded(1, [&] {
    groups->device.build({.num_tokens = num_tokens, .experts = experts, .slots = slots},
                         static_cast<cudaStream_t>(stream));
    return 0;
  });
}

void loratory_groups_destroy(LoratoryGroups* groups) { delete groups; }

int loratory_read_node(const void* const* spans, const int64_t* num_bytes, int32_t num_spans,
                       void* stream) {
  return guarded(1, [&] {
    loratory::bench::launch_read_node(read_spans(spans, num_bytes, num_spans),
                                      static_cast<cudaStream_t>(stream));
    return 0;
  });
}

int loratory_read_stage(const void* const* spans, const int64_t* num_bytes, int32_t num_early,
                        int32_t num_spans, void* stream) {
  return guarded(1, [&] {
    const auto all = read_spans(spans, num_bytes, num_spans);
    const std::span early = std::span(all).first(size_t(num_early));
    loratory::bench::launch_read_stage(early, std::span(all).subspan(early.size()),
                                       static_cast<cudaStream_t>(stream));
    return 0;
  });
}
