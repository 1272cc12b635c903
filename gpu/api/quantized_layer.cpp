// LoraLayer of 8-bit weights: checks, and the stages of a launch.
#include <fmt/format.h>

#include <algorithm>

#include "gpu/api/layer_views.hpp"
#include "gpu/api/lora_layer.hpp"
#include "gpu/plan/quantized_plan.hpp"
#include "gpu/plan/quantized_variants.hpp"
#include "gpu/runtime/device_ability.hpp"

namespace loratory::gpu {

using reference::BlockSize;
using reference::Dtype;

namespace {

int64_t num_groups(int64_t size, int64_t group) { return (size + group - 1) / group; }

// Rows of h in 8 bits begin at multiples of 16 bytes.
int64_t bits_row_size(int64_t max_rank) { return (max_rank + 15) / 16 * 16; }

// Of one slice and token: one for each block of ranks, or one.
int64_t factors_of_row(int64_t max_rank, int64_t block_k) {
  return block_k > 0 ? num_groups(max_rank, block_k) : 1;
}

bool has_shape(const DeviceView& view, std::initializer_list<int64_t> shape) {
  return view.num_axes == int(shape.size()) &&
         std::equal(shape.begin(), shape.end(), view.shape.begin());
}

}  // namespace

size_t quantized_workspace_bytes(int64_t num_tokens, int64_t num_slices, int64_t max_rank,
                                 int64_t block_k) {
  const int64_t rows = num_tokens * num_slices;
  return workspace_bytes(num_tokens, num_slices, max_rank) +
         size_t(rows * (bits_row_size(max_rank) + 4 * factors_of_row(max_rank, block_k)) +
                4 * num_slices);
}

// --- checks -----------------------------------------------------------------------------------

void LoraLayer::check_mode() const {
  require(desc_.mode.h == reference::IntermediateMode::fp32, "mode.h",
          "has no meaning for 8-bit weights, needs fp32");
  require(desc_.mode.scale == reference::ScaleMode::accumulator, "mode.scale",
          "folds into B, 8-bit weights need accumulator");
  const LoraExperts& experts = desc_.experts;
  require(experts.num_experts == 1 && experts.rows_per_x == 1 && experts.router_weights == nullptr,
          "experts", "do not go together with 8-bit weights");
  for (const auto& [place, block] :
       {std::pair{"a_block", desc_.a_block}, {"b_block", desc_.b_block}}) {
    const bool is_none = block.n == 0 && block.k == 0;
    require(is_none || (block.n > 0 && block.k > 0), place,
            fmt::format("is {} x {}, needs two positive sizes, or 0 x 0", block.n, block.k));
    require(block.n < INT32_MAX && block.k < INT32_MAX, place, "has a size of 2^31 or more");
  }
}

void LoraLayer::check_factor_view(const std::string& place, const DeviceView& scale,
                                  int num_axes) const {
  require(num_axes >= 0 && num_axes <= int(scale.shape.size()), place,
          fmt::format("has {} axes, {} at most fit", num_axes, scale.shape.size()));
  require(scale.data != nullptr, place, "is null, 8-bit numbers have factors");
  require(scale.dtype == Dtype::f32, place, fmt::format("is {}, needs f32", name(scale.dtype)));
  require(reinterpret_cast<uintptr_t>(scale.data) % alignof(float) == 0, place,
          "is not aligned to its numbers");
  for (int i = 0; i < num_axes; ++i) {
    require(scale.strides[size_t(i)] >= 0 && scale.strides[size_t(i)] < INT32_MAX, place,
            "has a stride outside [0, 2^31)");
  }
  require(num_axes == 0 || scale.shape[size_t(num_axes - 1)] <= 1 ||
              scale.strides[size_t(num_axes - 1)] == 1,
          place, "needs an innermost stride of 1");
}

WeightScale LoraLayer::weight_scale(const std::string& place, const DeviceView& weight,
                                    const DeviceView& scale, const BlockSize& block) const {
  check_factor_view(place, scale, scale.num_axes);
  const int64_t rows = weight.shape[1], columns = weight.shape[2];
  WeightScale out{.data = static_cast<const float*>(scale.data), .slot_stride = scale.strides[0]};
  if (block.k > 0) {
    const int64_t n = num_groups(rows, block.n), k = num_groups(columns, block.k);
    require(
        has_shape(scale, {num_slots_, n, k}), place,
        fmt::format("has shape {}, needs [{}, {}, {}]", shape_of_view(scale), num_slots_, n, k));
    out.row_stride = int32_t(scale.strides[1]);
    out.group_stride = int32_t(scale.strides[2]);
    out.rows_each = int32_t(block.n);
    out.columns_each = int32_t(block.k);
    return out;
  }
  const bool by_channel = has_shape(scale, {num_slots_, rows});
  require(by_channel || has_shape(scale, {num_slots_}), place,
          fmt::format("has shape {}, needs [{}] or [{}, {}]", shape_of_view(scale), num_slots_,
                      num_slots_, rows));
  if (by_channel) out.row_stride = int32_t(scale.strides[1]);
  return out;
}

void LoraLayer::add_factors(size_t i) {
  const LoraSliceDesc& slice = desc_.slices[i];
  const std::string place = fmt::format("slices[{}]", i);
  if (i == 0) check_mode();
  QuantizedSliceParams& out = of_8_bits_[i];
  if (shrinks()) {
    out.a = slice.a.dtype;
    out.a_scale = weight_scale(place + ".a_scale", slice.a, slice.a_scale, desc_.a_block);
  }
  if (expands()) {
    out.b = slice.b.dtype;
    out.b_scale = weight_scale(place + ".b_scale", slice.b, slice.b_scale, desc_.b_block);
  }
}

// `bits` is [T, columns] or [S, T, columns]; none for wide activations.
ActivationScale LoraLayer::activation_scale(const std::string& place, const DeviceView& scale,
                                            const DeviceView& bits, int64_t block_k) const {
  if (!is_quantized(bits.dtype)) {
    require(scale.data == nullptr, place,
            fmt::format("scales {}, only 8-bit activations have a scale", name(bits.dtype)));
    return {};
  }
  const int lead = bits.num_axes - 2;
  check_factor_view(place, scale, scale.num_axes);
  const auto axis = size_t(lead);
  ActivationScale out{.data = static_cast<const float*>(scale.data)};
  const bool by_tensor = block_k == 0 && scale.num_axes == lead;
  const int64_t groups = block_k > 0 ? num_groups(bits.shape[axis + 1], block_k) : 1;
  const bool fits_lead = lead == 0 || scale.shape[0] == bits.shape[0];
  const bool fits =
      by_tensor || (scale.num_axes == lead + 2 && scale.shape[axis] == bits.shape[axis] &&
                    scale.shape[axis + 1] == groups);
  const std::string wanted = fmt::format(
      "[{}{}, {}]", lead == 1 ? fmt::format("{}, ", bits.shape[0]) : "", bits.shape[axis], groups);
  const std::string whole = lead == 1 ? fmt::format("[{}] or ", bits.shape[0]) : "[] or ";
  require(fits && fits_lead, place,
          fmt::format("has shape {}, needs {}{}", shape_of_view(scale), block_k > 0 ? "" : whole,
                      wanted));
  if (lead == 1) out.slice_stride = scale.strides[0];
  if (by_tensor) return out;
  out.token_stride = scale.strides[axis];
  out.group_stride = scale.strides[axis + 1];
  out.columns_each = int32_t(block_k);
  return out;
}

void LoraLayer::check_pair(const std::string& place, Dtype weight, Dtype activations) const {
  require(!is_quantized(activations) || is_f8(weight) == is_f8(activations), place,
          fmt::format("is {}, the activations are {}: fp8 goes with fp8, i8 with i8", name(weight),
                      name(activations)));
}

void LoraLayer::check_factors(const LoraTensors& tensors) const {
  for (size_t i = 0; i < desc_.slices.size(); ++i) {
    const std::string place = fmt::format("slices[{}]", i);
    if (shrinks()) check_pair(place + ".a", desc_.slices[i].a.dtype, tensors.x.dtype);
    if (expands()) check_pair(place + ".b", desc_.slices[i].b.dtype, h_dtype(tensors));
  }
  if (shrinks()) activation_scale("x_scale", tensors.x_scale, tensors.x, desc_.a_block.k);
  if (desc_.op == LoraOp::expand) {
    activation_scale("h_scale", tensors.h_scale, tensors.h, desc_.b_block.k);
  }
}

// --- paths ------------------------------------------------------------------------------------

/// What the expand reads.
Dtype LoraLayer::h_dtype(const LoraTensors& tensors) const {
  if (desc_.op != LoraOp::linear) return tensors.h.dtype;
  return is_quantized(tensors.x.dtype) ? tensors.x.dtype : Dtype::f32;
}

LoraPath LoraLayer::shrink_path(const LoraTensors& tensors) const {
  const bool one_group = desc_.a_block.k == 0 || desc_.a_block.k >= params_.num_in;
  return choose_quantized_path(
      LoraOp::shrink, {.from = tensors.x.dtype,
                       .to = desc_.op == LoraOp::linear ? Dtype::f32 : tensors.h.dtype,
                       .aligned = weights_aligned_ && is_aligned(tensors.x) && has_clusters(),
                       .one_group = one_group});
}

LoraPath LoraLayer::expand_path(const LoraTensors& tensors, Dtype h) const {
  const bool one_group = desc_.b_block.k == 0 || desc_.b_block.k >= max_rank_;
  return choose_quantized_path(LoraOp::expand,
                               {.from = h,
                                .to = tensors.y.dtype,
                                .aligned = weights_aligned_ && is_aligned(tensors.y),
                                .one_group = one_group});
}

/// Beside wide x: h never leaves the cluster, and y has the type of x or fp32.
bool LoraLayer::fits_one_launch(const LoraTensors& tensors) const {
  const bool y_fits = tensors.y.dtype == Dtype::f32 || tensors.y.dtype == tensors.x.dtype;
  return desc_.op == LoraOp::linear && !is_quantized(tensors.x.dtype) && y_fits &&
         path_for(tensors) == LoraPath::tensor_core;
}

// --- launches ---------------------------------------------------------------------------------

QuantizedParams LoraLayer::quantized_params(const LoraTensors& tensors,
                                            const SegmentView& segments) const {
  QuantizedParams out;
  static_cast<KernelParams&>(out) = params(tensors, segments);
  std::ranges::copy(of_8_bits_, out.of);
  out.x_dtype = tensors.x.dtype;
  out.y_dtype = tensors.y.dtype;
  out.h_dtype = h_dtype(tensors);
  if (shrinks()) {
    out.x_scale = activation_scale("x_scale", tensors.x_scale, tensors.x, desc_.a_block.k);
  }
  if (desc_.op == LoraOp::expand) {
    out.h_scale = activation_scale("h_scale", tensors.h_scale, tensors.h, desc_.b_block.k);
    if (is_quantized(tensors.h.dtype)) out.h_aligned = has_aligned_rows(tensors.h, 8);
  }
  return out;
}

void LoraLayer::launch_stage(LoraOp op, LoraPath path, const LoraVariant& variant,
                             QuantizedParams& params, CUstream_st* stream,
                             LaunchOrder order) const {
  set_items(op, variant, params);
  // 8-bit h is exact in f16.
  params.split_h = !is_quantized(params.h_dtype);
  launch_quantized({.op = op,
                    .path = path,
                    .variant = variant,
                    .params = params,
                    .stream = stream,
                    .order = order});
}

void LoraLayer::launch_8_bits(const LoraVariant& variant, const LoraTensors& tensors,
                              const SegmentView& segments, CUstream_st* stream,
                              LaunchOrder order) const {
  require(has_quantized_kernel(desc_.op, variant), "variant",
          fmt::format("has no kernel for 8-bit weights: {}", describe(variant)));
  require(!variant.needs_wgmma() || has_wgmma(), "variant",
          "needs wgmma, which this GPU lacks: it is not sm_90");
  QuantizedParams params = quantized_params(tensors, segments);
  params.parts_per_segment = parts_per_segment(variant, segments);
  if (num_tokens(tensors) == 0) return;
  if (desc_.op == LoraOp::linear && variant.launches == 1) {
    require(fits_one_launch(tensors), "variant",
            "needs two launches: in one x has 16 bits, y its dtype or fp32, and both are aligned");
    launch_stage(desc_.op, LoraPath::tensor_core, variant, params, stream, order);
  } else if (desc_.op == LoraOp::linear) {
    LoraVariant shrink = variant;
    shrink.launches = 1;
    const LoraVariant expand = choose_quantized_expand(shape_of(tensors), variant.token_tiles,
                                                       !is_quantized(tensors.x.dtype));
    launch_linear({shrink, expand}, tensors, params, stream, order);
  } else {
    const LoraPath path = shrinks() ? shrink_path(tensors) : expand_path(tensors, params.h_dtype);
    launch_stage(desc_.op, path, variant, params, stream, order);
  }
}

void LoraLayer::launch_8_bit_silu_mul(const SiluMulVariants& variants, const LoraTensors& tensors,
                                      const DeviceView& activation, const SegmentView& segments,
                                      CUstream_st* stream, LaunchOrder order) const {
  QuantizedParams params = quantized_params(tensors, segments);
  params.activation = activation.data;
  params.activation_row_stride = activation.strides[0];
  launch_linear({variants.shrink, variants.expand, variants.expand_op()}, tensors, params, stream,
                order);
}

void LoraLayer::launch_linear(const Stages& stages, const LoraTensors& tensors,
                              QuantizedParams& params, CUstream_st* stream,
                              LaunchOrder order) const {
  const LoraVariant &shrink = stages.shrink, &expand = stages.expand;
  const int64_t rows = num_tokens(tensors);
  const bool quantizes = is_quantized(tensors.x.dtype);
  const size_t needed =
      quantizes ? quantized_workspace_bytes(rows, params_.num_slices, max_rank_, desc_.b_block.k)
                : workspace_bytes(rows, params_.num_slices, max_rank_);
  require(desc_.workspace != nullptr && desc_.workspace_bytes >= needed, "workspace",
          fmt::format("has {} bytes, 8-bit weights need {}",
                      desc_.workspace == nullptr ? 0 : desc_.workspace_bytes, needed));
  params.h = static_cast<float*>(desc_.workspace);
  params.h_row_stride = h_row_size(max_rank_);
  params.h_slice_stride = rows * params.h_row_stride;
  params.h_aligned = reinterpret_cast<uintptr_t>(desc_.workspace) % kVectorBytes == 0;
  const Dtype h = params.h_dtype;
  params.h_dtype = Dtype::f32;
  const LoraPath path = shrink_path(tensors);
  params.x_is_ready = order == LaunchOrder::x_is_ready && path == LoraPath::tensor_core &&
                      shrink.may_read_x_early();
  launch_stage(LoraOp::shrink, path, shrink, params, stream, order);
  // A shrink of many tokens lets the expand start once y is settled, unless it reads x early.
  params.may_read_y_early = shrink.is_wide() && path == LoraPath::tensor_core && !params.x_is_ready;
  params.x_is_ready = false;
  params.h_dtype = h;
  const LoraPath path_of_expand = expand_path(tensors, h);
  const bool by_tensor = desc_.b_block.k == 0 && tensors.x_scale.num_axes == 0;
  // In prefill many CTAs share a row of h: one makes it.
  params.quantizes_h =
      quantizes && !by_tensor && path_of_expand == LoraPath::tensor_core && shrink.token_tiles < 8;
  if (params.quantizes_h) {
    params.h_row_stride *= sizeof(float), params.h_slice_stride *= sizeof(float);
  } else if (quantizes) {
    quantize_h({.num_tokens = rows, .segment_size = shrink.segment_size(), .by_tensor = by_tensor},
               params, stream);
  }
  params.parts_per_segment = shrink.token_tiles / expand.token_tiles;
  launch_stage(stages.expand_op, path_of_expand, expand, params, stream,
               LaunchOrder::overlaps_previous);
}

/// From h of the workspace to h in 8 bits behind it, which `params` has afterwards.
void LoraLayer::quantize_h(const HRows& of, QuantizedParams& params, CUstream_st* stream) const {
  const int64_t num_tokens = of.num_tokens, rows = num_tokens * params.num_slices;
  auto* const bits = static_cast<std::byte*>(desc_.workspace) +
                     workspace_bytes(num_tokens, params.num_slices, max_rank_);
  QuantizeHParams out;
  out.h = params.h;
  out.h_slice_stride = params.h_slice_stride;
  out.h_row_stride = params.h_row_stride;
  out.bits = reinterpret_cast<uint8_t*>(bits);
  out.bits_row_stride = bits_row_size(max_rank_);
  out.bits_slice_stride = num_tokens * out.bits_row_stride;
  out.scale = reinterpret_cast<float*>(bits + rows * out.bits_row_stride);
  const int64_t factors = factors_of_row(max_rank_, desc_.b_block.k);
  out.by_tensor = of.by_tensor;
  out.of = out.by_tensor ? ActivationScale{.data = out.scale, .slice_stride = 1}
                         : ActivationScale{.data = out.scale,
                                           .slice_stride = num_tokens * factors,
                                           .token_stride = factors,
                                           .group_stride = 1,
                                           .columns_each = int32_t(desc_.b_block.k)};
  out.dtype = params.h_dtype;
  out.num_segments = params.num_segments;
  out.segments = params.segments;
  out.token_indices = params.token_indices;
  out.segment_size = of.segment_size;
  out.num_slices = params.num_slices;
  out.num_tokens = int32_t(num_tokens);
  for (int i = 0; i < params.num_slices; ++i) out.ranks[i] = params.slices[i].ranks;
  launch_quantize_h(out, stream, LaunchOrder::overlaps_previous);
  params.h = reinterpret_cast<float*>(out.bits);
  params.h_slice_stride = out.bits_slice_stride;
  params.h_row_stride = out.bits_row_stride;
  params.h_aligned = reinterpret_cast<uintptr_t>(bits) % 8 == 0;
  params.h_scale = out.of;
}

}  // namespace loratory::gpu
