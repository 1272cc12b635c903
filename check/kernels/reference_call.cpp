#include "check/kernels/reference_call.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "check/kernels/place_case.hpp"
#include "reference/base/input_error.hpp"
#include "reference/moe/expert_lora.hpp"
#include "reference/quantized/quantized_linear.hpp"

namespace loratory::check {

using reference::ConstTensorView;
using reference::Dtype;
using reference::Extents;
using reference::LinearArgs;
using reference::TensorView;

namespace {

TensorView view(const LoratoryTensor& t) {
  return {Dtype(t.dtype), static_cast<std::byte*>(t.data), Extents(t.shape, t.shape + t.num_axes),
          Extents(t.strides, t.strides + t.num_axes)};
}

std::optional<ConstTensorView> optional_view(const LoratoryTensor& t) {
  return t.data == nullptr ? std::nullopt : std::optional<ConstTensorView>(view(t));
}

std::span<const LoratorySlice> slices_of(const LoratoryLayer& layer) {
  return {layer.slices, size_t(layer.num_slices)};
}

std::span<const int32_t> ranks_of(const LoratoryLayer& layer, const LoratorySlice& slice) {
  return {slice.ranks, size_t(layer.num_slots * layer.num_experts)};
}
std::span<const float> scalings_of(const LoratoryLayer& layer, const LoratorySlice& slice) {
  return {slice.scalings, size_t(layer.num_slots * layer.num_experts)};
}

std::span<const int32_t> slots_of(const LoratoryCall& call) {
  return {call.step->slots, size_t(call.step->num_tokens)};
}

reference::NumericMode mode_of(const LoratoryLayer& layer) {
  return {reference::IntermediateMode(layer.mode.h), reference::SumMode(layer.mode.sum),
          reference::ScaleMode(layer.mode.scale)};
}

// --- one slot at a time: weights that lie elsewhere in each ---------------------------------

ConstTensorView with_axis(ConstTensorView of) {
  of.shape.insert(of.shape.begin(), 1);
  of.strides.insert(of.strides.begin(), 0);
  return of;
}

void run_stacked(const LoratoryLayer& layer, const LoratoryCall& call) {
  const TensorView a = view(layer.stacked_a), b = view(layer.stacked_b), x = view(call.x);
  const TensorView y = view(call.y);
  const std::vector<int32_t> only_slot{0};
  for (int64_t t = 0; t < call.step->num_tokens; ++t) {
    const int32_t slot = call.step->slots[t];
    if (slot < 0) continue;
    LinearArgs args{.x = x.part(0, t, t + 1),
                    .slots = only_slot,
                    .slices = {},
                    .offset_start = layer.offset_start,
                    .add_inputs = layer.add_inputs != 0,
                    .mode = mode_of(layer),
                    .y = y.part(0, t, t + 1)};
    int64_t column = 0;
    for (int64_t i = 0; i < layer.num_slices; ++i) {
      const LoratorySlice& slice = layer.slices[i];
      const int64_t rank = slice.ranks[slot], end = column + slice.num_out;
      args.slices.push_back(
          {with_axis(ConstTensorView(a[slot].part(0, i * rank, (i + 1) * rank))),
           with_axis(ConstTensorView(b[slot].part(0, column, end).part(1, 0, rank))),
           std::span(slice.ranks + slot, 1), std::span(slice.scalings + slot, 1), std::nullopt});
      column = end;
    }
    lora_linear(args);
  }
}

// --- 8-bit weights --------------------------------------------------------------------------

reference::SumMode sum_of(const LoratoryLayer& layer) { return reference::SumMode(layer.mode.sum); }
reference::BlockSize a_block(const LoratoryLayer& layer) {
  return {layer.a_block_n, layer.a_block_k};
}
reference::BlockSize b_block(const LoratoryLayer& layer) {
  return {layer.b_block_n, layer.b_block_k};
}

}  // namespace

reference::QuantizedShrinkArgs quantized_shrink_args(const LoratoryLayer& layer,
                                                     const LoratoryCall& call) {
  reference::QuantizedShrinkArgs args{.x = view(call.x),
                                      .x_scale = optional_view(call.x_scale),
                                      .slots = slots_of(call),
                                      .slices = {},
                                      .block = a_block(layer),
                                      .h = view(call.h)};
  for (const LoratorySlice& s : slices_of(layer)) {
    args.slices.push_back({view(s.a), view(s.a_scale), ranks_of(layer, s)});
  }
  return args;
}

reference::QuantizedExpandArgs quantized_expand_args(const LoratoryLayer& layer,
                                                     const LoratoryCall& call) {
  reference::QuantizedExpandArgs args{.h = view(call.h),
                                      .h_scale = optional_view(call.h_scale),
                                      .slots = slots_of(call),
                                      .slices = {},
                                      .block = b_block(layer),
                                      .offset_start = layer.offset_start,
                                      .add_inputs = layer.add_inputs != 0,
                                      .sum = sum_of(layer),
                                      .y = view(call.y)};
  for (const LoratorySlice& s : slices_of(layer)) {
    args.slices.push_back({view(s.b), view(s.b_scale), ranks_of(layer, s), scalings_of(layer, s)});
  }
  return args;
}

reference::QuantizedLinearArgs quantized_linear_args(const LoratoryLayer& layer,
                                                     const LoratoryCall& call) {
  reference::QuantizedLinearArgs args{.x = view(call.x),
                                      .x_scale = optional_view(call.x_scale),
                                      .slots = slots_of(call),
                                      .slices = {},
                                      .a_block = a_block(layer),
                                      .b_block = b_block(layer),
                                      .offset_start = layer.offset_start,
                                      .add_inputs = layer.add_inputs != 0,
                                      .sum = sum_of(layer),
                                      .y = view(call.y)};
  for (const LoratorySlice& s : slices_of(layer)) {
    args.slices.push_back({view(s.a), view(s.a_scale), view(s.b), view(s.b_scale),
                           ranks_of(layer, s), scalings_of(layer, s)});
  }
  return args;
}

namespace {

// --- 16-bit weights -------------------------------------------------------------------------

void run_shrink(const LoratoryLayer& layer, const LoratoryCall& call) {
  reference::ShrinkArgs args{view(call.x), slots_of(call), {}, view(call.h)};
  for (const LoratorySlice& s : slices_of(layer)) {
    args.slices.push_back({view(s.a), ranks_of(layer, s)});
  }
  shrink(args);
}

void run_expand(const LoratoryLayer& layer, const LoratoryCall& call) {
  reference::ExpandArgs args{.h = view(call.h),
                             .slots = slots_of(call),
                             .slices = {},
                             .offset_start = layer.offset_start,
                             .add_inputs = layer.add_inputs != 0,
                             .mode = mode_of(layer),
                             .y = view(call.y)};
  for (const LoratorySlice& s : slices_of(layer)) {
    args.slices.push_back({view(s.b), ranks_of(layer, s), scalings_of(layer, s)});
  }
  expand(args);
}

void run_embedding(const LoratoryLayer& layer, const LoratoryCall& call) {
  const LoratorySlice& s = layer.slices[0];
  reference::lora_embedding(
      {.token_ids = {call.step->token_ids, size_t(call.step->num_tokens)},
       .slots = slots_of(call),
       .slice = {view(s.a), view(s.b), ranks_of(layer, s), scalings_of(layer, s), std::nullopt},
       .mode = mode_of(layer),
       .y = view(call.y)});
}

// --- experts --------------------------------------------------------------------------------

// Nobody reads the half that an operation has not.
ConstTensorView view_or(const LoratoryTensor& t, const LoratoryTensor& other) {
  return view(t.data == nullptr ? other : t);
}

// An expert that is not here is one of k more, which the map sends nowhere.
struct Experts {
  std::vector<int32_t> enabled, numbers, map;
  reference::ExpertRows rows;
  reference::TokenAdapters adapters;
  std::vector<reference::ExpertLoraSlice> slices;
  std::vector<reference::ExpertTile> tiles;

  Experts(const LoratoryLayer& layer, const LoratoryCall& call)
      : enabled(size_t(layer.num_slots + 1), 1), adapters{slots_of(call), enabled} {
    const int64_t k = layer.experts_per_token;
    for (int64_t s = 0; call.step->enabled != nullptr && s < layer.num_slots; ++s) {
      enabled[size_t(s)] = call.step->enabled[s];
    }
    for (int64_t row = 0; row < call.step->num_tokens * k; ++row) {
      const int32_t expert = call.step->experts[row];
      numbers.push_back(expert < 0 ? int32_t(layer.num_experts + row % k) : expert);
    }
    map.assign(size_t(layer.num_experts + k), -1);
    std::iota(map.begin(), map.begin() + ptrdiff_t(layer.num_experts), 0);
    rows = {k, numbers, map};
    for (const LoratorySlice& s : slices_of(layer)) {
      slices.push_back(
          {view_or(s.a, s.b), view_or(s.b, s.a), ranks_of(layer, s), scalings_of(layer, s)});
    }
    tiles = single_row_tiles(rows, adapters);
  }
};

void run_expert_expand(const LoratoryLayer& layer, const LoratoryCall& call, const Experts& experts,
                       const ConstTensorView& h) {
  reference::ExpertExpandArgs args{.h = h,
                                   .rows = experts.rows,
                                   .adapters = experts.adapters,
                                   .slices = experts.slices,
                                   .router_weights = {},
                                   .offset_start = layer.offset_start,
                                   .mode = mode_of(layer),
                                   .y = view(call.y)};
  if (call.step->router_weights != nullptr) {
    args.router_weights = {call.step->router_weights, size_t(experts.rows.num_rows())};
  }
  expert_expand(args, experts.tiles);
}

void run_experts(const LoratoryLayer& layer, const LoratoryCall& call) {
  const Experts experts(layer, call);
  const auto shrink_to = [&](const TensorView& h) {
    expert_shrink({view(call.x), experts.rows, experts.adapters, experts.slices, h}, experts.tiles);
  };
  if (layer.operation == LORATORY_OP_EXPERT_SHRINK) return shrink_to(view(call.h));
  if (layer.operation == LORATORY_OP_EXPERT_EXPAND) {
    return run_expert_expand(layer, call, experts, view(call.h));
  }
  reference::Tensor h = expert_h_buffer(view(call.x), experts.rows, experts.slices, mode_of(layer));
  shrink_to(h.view());
  run_expert_expand(layer, call, experts, h.view());
}

}  // namespace

LinearArgs linear_args(const LoratoryLayer& layer, const LoratoryCall& call) {
  LinearArgs args{.x = view(call.x),
                  .slots = slots_of(call),
                  .slices = {},
                  .offset_start = layer.offset_start,
                  .add_inputs = layer.add_inputs != 0,
                  .mode = mode_of(layer),
                  .y = view(call.y)};
  for (const LoratorySlice& s : slices_of(layer)) {
    args.slices.push_back(
        {view(s.a), view(s.b), ranks_of(layer, s), scalings_of(layer, s), std::nullopt});
  }
  return args;
}

void run_reference(const LoratoryLayer& layer, const LoratoryCall& call) {
  const bool is_quantized = layer.weight_scales != LORATORY_SCALES_NONE;
  switch (layer.operation) {
    case LORATORY_OP_LINEAR:
    case LORATORY_OP_LOGITS:
      if (layer.layout == LORATORY_LAYOUT_STACKED) return run_stacked(layer, call);
      return is_quantized ? lora_linear_quantized(quantized_linear_args(layer, call))
                          : lora_linear(linear_args(layer, call));
    case LORATORY_OP_SHRINK:
      return is_quantized ? shrink_quantized(quantized_shrink_args(layer, call))
                          : run_shrink(layer, call);
    case LORATORY_OP_EXPAND:
      return is_quantized ? expand_quantized(quantized_expand_args(layer, call))
                          : run_expand(layer, call);
    case LORATORY_OP_EMBEDDING:
      return run_embedding(layer, call);
    default:
      return run_experts(layer, call);
  }
}

InHostMemory::InHostMemory(const CaseData& data, const StepData& step) {
  InPlace in_place;
  layer_ = place_layer(data, step.num_tokens(), in_place);
  layer_.layer.slices = layer_.slices.data();
  call_ = place_call(data, step, in_place);
  call_.call.step = &call_.step;
}

reference::Tensor reference_output(const CaseData& data, const StepData& step) {
  StepData copy = step;
  const InHostMemory placed(data, copy);
  run_reference(placed.layer(), placed.call());
  return data.output(copy);
}

}  // namespace loratory::check
