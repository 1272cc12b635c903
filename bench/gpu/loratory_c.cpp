#include "bench/gpu/loratory_c.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "bench/gpu/read_node.hpp"
#include "gpu/kernels/lora_expand.hpp"
#include "gpu/kernels/lora_linear.hpp"
#include "gpu/kernels/lora_shrink.hpp"
#include "gpu/layout/device_segments.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "reference/base/input_error.hpp"

using loratory::InputError;
using loratory::gpu::DeviceSegments;
using loratory::gpu::DeviceView;
using loratory::gpu::LaunchOrder;
using loratory::gpu::LoraExpand;
using loratory::gpu::LoraExpandDesc;
using loratory::gpu::LoraLinear;
using loratory::gpu::LoraLinearDesc;
using loratory::gpu::LoraShrink;
using loratory::gpu::LoraShrinkDesc;
using loratory::gpu::LoraVariant;
using loratory::reference::Dtype;

struct LoratoryLayer {
  std::variant<LoraLinear, LoraShrink, LoraExpand> layer;
};
struct LoratorySegments {
  DeviceSegments device;
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
    default:
      throw InputError("dtype", "is " + std::to_string(value) + ", needs 0, 1 or 2");
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
          .launches = from.launches};
}

LoratoryVariant variant(const LoraVariant& from) {
  return {.rank_tiles = from.rank_tiles,
          .token_tiles = from.token_tiles,
          .cluster = from.cluster,
          .stages = from.stages,
          .aligned = from.aligned ? 1 : 0,
          .launches = from.launches};
}

}  // namespace

const char* loratory_error() { return last_error().c_str(); }

LoratoryLayer* loratory_linear_create(const LoratorySlice* slices, int32_t num_slices,
                                      void* workspace, int64_t workspace_bytes) {
  return guarded<>(static_cast<LoratoryLayer*>(nullptr), [&] {
    LoraLinearDesc desc;
    for (const LoratorySlice& slice : std::span(slices, size_t(num_slices))) {
      desc.slices.push_back({.a = view(slice.a),
                             .b = view(slice.b),
                             .ranks = slice.ranks,
                             .scalings = slice.scalings});
    }
    desc.workspace = workspace;
    desc.workspace_bytes = size_t(workspace_bytes);
    return new LoratoryLayer{LoraLinear(std::move(desc))};
  });
}

LoratoryLayer* loratory_shrink_create(const LoratorySlice* slices, int32_t num_slices) {
  return guarded<>(static_cast<LoratoryLayer*>(nullptr), [&] {
    LoraShrinkDesc desc;
    for (const LoratorySlice& slice : std::span(slices, size_t(num_slices))) {
      desc.slices.push_back({.a = view(slice.a), .ranks = slice.ranks});
    }
    return new LoratoryLayer{LoraShrink(desc)};
  });
}

LoratoryLayer* loratory_expand_create(const LoratorySlice* slices, int32_t num_slices) {
  return guarded<>(static_cast<LoratoryLayer*>(nullptr), [&] {
    LoraExpandDesc desc;
    for (const LoratorySlice& slice : std::span(slices, size_t(num_slices))) {
      desc.slices.push_back({.b = view(slice.b), .ranks = slice.ranks, .scalings = slice.scalings});
    }
    return new LoratoryLayer{LoraExpand(desc)};
  });
}

void loratory_layer_destroy(LoratoryLayer* layer) { delete layer; }

int loratory_layer_variant(const LoratoryLayer* layer, const LoratoryTensor* from,
                           const LoratoryTensor* to, LoratoryVariant* out) {
  return guarded(1, [&] {
    *out = variant(std::visit(
        [&](const auto& one) { return one.variant_for(view(*from), view(*to)); }, layer->layer));
    return 0;
  });
}

int loratory_layer_launch(const LoratoryLayer* layer, const LoratoryVariant* with,
                          const LoratoryTensor* from, const LoratoryTensor* to,
                          const LoratorySegments* segments, void* stream,
                          int32_t overlaps_previous) {
  return guarded(1, [&] {
    const LaunchOrder order =
        overlaps_previous != 0 ? LaunchOrder::overlaps_previous : LaunchOrder::after_previous;
    std::visit(
        [&](const auto& one) {
          one.launch(variant(*with), view(*from), view(*to), segments->device.view(),
                     static_cast<cudaStream_t>(stream), order);
        },
        layer->layer);
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

int loratory_read_node(const void* const* spans, const int64_t* num_bytes, int32_t num_spans,
                       void* stream) {
  return guarded(1, [&] {
    std::vector<loratory::bench::ReadSpan> list;
    for (int32_t i = 0; i < num_spans; ++i) list.push_back({spans[i], num_bytes[i]});
    loratory::bench::launch_read_node(list, static_cast<cudaStream_t>(stream));
    return 0;
  });
}
