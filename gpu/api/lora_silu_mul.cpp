#include <fmt/format.h>

#include "gpu/api/layer_views.hpp"
#include "gpu/api/lora_layer.hpp"
#include "gpu/plan/kernel_shape.hpp"
#include "gpu/plan/quantized_plan.hpp"
#include "gpu/plan/quantized_variants.hpp"
#include "gpu/plan/variant_table.hpp"
#include "gpu/runtime/device_ability.hpp"
#include "reference/base/input_error.hpp"

// LoRA on gate and up that ends with SwiGLU.

namespace loratory::gpu {

using reference::Dtype;

namespace {

/// Behind the last number of a matrix.
const std::byte* end_of(const DeviceView& m) {
  const int64_t numbers = (m.shape[0] - 1) * m.strides[0] + m.shape[1];
  return static_cast<const std::byte*>(m.data) + numbers * int64_t(size_bytes(m.dtype));
}
bool overlap(const DeviceView& a, const DeviceView& b) {
  return a.data < end_of(b) && b.data < end_of(a);
}

}  // namespace

bool LoraLayer::is_gate_and_up() const {
  return desc_.slices.size() == 2 && params_.slices[0].num_out == params_.slices[1].num_out &&
         desc_.offset_start == 0;
}

/// h of both slices, as the kernels pad it, has room beside the pipelines.
bool LoraLayer::both_h_fit() const {
  int width = 0;
  for (const LoraSliceDesc& slice : desc_.slices) {
    width += padded_rank(int(slice.b.shape[2]), kPanelRanks);
  }
  return width <= kMostRanks;
}

/// A CTA keeps a panel of its ranks, and leaves the sums of a split in the columns of gate that it
/// has read. Every split has as many.
bool LoraLayer::can_be_shrunk_before() const {
  const bool is_plain = desc_.op == LoraOp::linear && !has_8_bits() && params_.num_slices == 1 &&
                        desc_.experts.num_experts == 1 && desc_.experts.rows_per_x == 1 &&
                        desc_.experts.router_weights == nullptr &&
                        params_.slices[0].a_rank_steps == 0;
  const int32_t num_in = params_.num_in;
  const int32_t of_last_split = num_in - (kNumSplits - 1) * split_size(num_in);
  const int32_t of_sums = padded_rank(int(max_rank_)) * int(sizeof(float) / sizeof(uint16_t));
  return is_plain && weights_aligned_ && num_in % kPanelRanks == 0 && max_rank_ <= kPanelRanks &&
         of_sums <= of_last_split;
}

/// A CTA keeps a panel of ranks of each slice.
bool LoraLayer::can_shrink(const LoraLayer& next) const {
  return next.can_be_shrunk_before() && max_rank_ <= kPanelRanks && next.weight_ == weight_ &&
         next.params_.num_in == params_.slices[0].num_out && next.num_slots_ == num_slots_;
}

bool LoraLayer::can_end_with_silu_mul(const LoraTensors& tensors,
                                      const DeviceView& activation) const {
  const bool is_plain = desc_.op == LoraOp::linear && desc_.add_inputs &&
                        desc_.experts.num_experts == 1 && desc_.experts.rows_per_x == 1 &&
                        desc_.experts.router_weights == nullptr;
  if (!is_plain || !is_gate_and_up() || !both_h_fit()) return false;
  const bool fills_y = tensors.y.shape[1] == num_columns_;
  const Dtype y = has_8_bits() ? tensors.x.dtype : weight_;  // 16 bits, and those of x
  const bool is_fast =
      path_for(tensors) == LoraPath::tensor_core && !is_quantized(y) && tensors.y.dtype == y;
  return fills_y && is_fast && has_workspace(num_tokens(tensors)) && are_aligned(tensors) &&
         is_aligned(activation);
}

std::optional<SiluMulVariants> LoraLayer::silu_mul_variants_for(const LoraTensors& tensors,
                                                                const DeviceView& activation,
                                                                const LoraLayer* next) const {
  if (!can_end_with_silu_mul(tensors, activation)) return std::nullopt;
  LaunchShape shape = shape_of(tensors);
  shape.op = LoraOp::shrink;
  if (has_8_bits()) {
    const LoraVariant shrink = choose_quantized_variant(shape);
    shape.op = LoraOp::gated_expand;
    const LoraVariant expand =
        choose_quantized_expand(shape, shrink.token_tiles, /*h_is_wide=*/true);
    if (!has_quantized_kernel(LoraOp::gated_expand, expand)) return std::nullopt;
    return SiluMulVariants{shrink, expand};
  }
  const LoraVariant shrink = choose_variant(shape);
  if (next != nullptr && shrink.token_tiles == 8 && pays_to_shrink_next(shape) &&
      can_shrink(*next)) {
    return SiluMulVariants{shrink, kGatedShrinkVariants[0], /*shrinks_next=*/true};
  }
  shape.op = LoraOp::gated_expand;
  return SiluMulVariants{shrink, choose_expand_variant(shape, shrink.token_tiles)};
}

void LoraLayer::check_activation(const LoraTensors& tensors, const DeviceView& activation) const {
  check_view("activation", activation, 2);
  const DeviceView& y = tensors.y;
  require(activation.dtype == y.dtype, "activation",
          fmt::format("is {}, y is {}", name(activation.dtype), name(y.dtype)));
  const int64_t size = y.shape[1] / 2;
  require(activation.shape[0] == y.shape[0] && activation.shape[1] == size, "activation",
          fmt::format("has shape {}, needs [{}, {}]", shape_of_view(activation), y.shape[0], size));
  require(activation.shape[0] <= 1 || activation.strides[0] >= size, "activation",
          "has rows that overlap");
  require(y.shape[0] == 0 || !overlap(activation, y), "activation", "overlaps y");
}

void LoraLayer::check_kernel(LoraOp op, const LoraVariant& variant) const {
  require(has_8_bits() ? has_quantized_kernel(op, variant) : has_kernel(op, variant), "variant",
          fmt::format("{} has no kernel: {}", name(op), describe(variant)));
  require(can_launch(variant, has_clusters(), has_wgmma()), "variant",
          fmt::format("needs what this GPU lacks: {}", describe(variant)));
}

void LoraLayer::check_variants(const SiluMulVariants& variants, const SegmentView& segments) const {
  check_kernel(LoraOp::shrink, variants.shrink);
  check_kernel(variants.expand_op(), variants.expand);
  const int32_t size = variants.shrink.segment_size();
  require(
      segments.segment_size == size, "segments",
      fmt::format("has segments of {} tokens, the kernel needs {}", segments.segment_size, size));
  require(size % variants.expand.segment_size() == 0, "variant",
          "has an expand that does not divide the segments of its shrink");
}

void LoraLayer::launch_silu_mul(const SiluMulVariants& variants, const LoraTensors& tensors,
                                const DeviceView& activation, const SegmentView& segments,
                                CUstream_st* stream, LaunchOrder order,
                                const LoraLayer* next) const {
  check_tensors(tensors, segments);
  check_activation(tensors, activation);
  require(can_end_with_silu_mul(tensors, activation), "activation",
          "this layer and these tensors cannot end with SwiGLU");
  check_variants(variants, segments);
  require(!variants.shrinks_next || (next != nullptr && can_shrink(*next)), "next",
          "cannot be shrunk with this layer");
  if (num_tokens(tensors) == 0) return;
  if (has_8_bits()) {
    launch_8_bit_silu_mul(variants, tensors, activation, segments, stream, order);
    return;
  }
  LoraLaunch launch{.op = desc_.op,
                    .path = LoraPath::tensor_core,
                    .variant = variants.shrink,
                    .dtypes = dtypes(tensors),
                    .mode = desc_.mode,
                    .params = params(tensors, segments),
                    .stream = stream,
                    .order = order};
  launch.params.activation = activation.data;
  launch.params.activation_row_stride = activation.strides[0];
  if (variants.shrinks_next) launch.params.next = next->params_.slices[0];
  launch_both(launch, variants.expand_op(), variants.expand);
}

void LoraLayer::launch_behind_splits(const LoraTensors& tensors, const DeviceView& splits,
                                     const SegmentView& segments, CUstream_st* stream,
                                     LaunchOrder order) const {
  check_tensors(tensors, segments);
  require(can_be_shrunk_before(), "splits", "are of no layer that a launch_silu_mul() shrinks for");
  check_view("splits", splits, 2);
  require(splits.shape[0] == num_tokens(tensors) && splits.shape[1] == 2 * params_.num_in &&
              splits.dtype == weight_ && is_aligned(splits),
          "splits", "is not the y that a launch_silu_mul() of the layer before has left");
  require(path_for(tensors) == LoraPath::tensor_core && are_aligned(tensors), "y",
          "or x is not what a launch_silu_mul() shrinks for");
  const LoraVariant variant = choose_expand_behind_splits(shape_of(tensors));
  check_kernel(LoraOp::expand, variant);
  const int32_t parts = parts_per_segment(variant, segments);
  if (num_tokens(tensors) == 0) return;
  LoraLaunch launch{.op = LoraOp::expand,
                    .path = LoraPath::tensor_core,
                    .variant = variant,
                    .dtypes = dtypes(tensors),
                    .mode = desc_.mode,
                    .params = params(tensors, segments),
                    .stream = stream,
                    .order = order};
  constexpr int64_t kNumbersOfSum = sizeof(float) / sizeof(uint16_t);
  KernelParams& p = launch.params;
  p.parts_per_segment = parts;
  p.h = static_cast<float*>(splits.data);
  p.h_row_stride = splits.strides[0] / kNumbersOfSum;
  p.h_split_stride = split_size(params_.num_in) / kNumbersOfSum;
  p.h_slice_stride = 0;
  set_items(launch.op, launch.variant, p);
  launch_lora(launch);
}

}  // namespace loratory::gpu
