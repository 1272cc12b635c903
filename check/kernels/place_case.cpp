#include "check/kernels/place_case.hpp"

#include <optional>

namespace loratory::check {

using reference::Tensor;

namespace {

LoratoryTensor no_tensor() { return {}; }

LoratoryTensor view(const Tensor& t, void* data) {
  LoratoryTensor out{};
  static std::byte no_bytes{};
  out.data = data == nullptr && t.bytes().empty() ? &no_bytes : data;  // null: no such tensor
  out.num_axes = int32_t(t.shape().size());
  out.dtype = int32_t(t.dtype());
  for (size_t i = 0; i < t.shape().size(); ++i) {
    out.shape[i] = t.shape()[i];
    out.strides[i] = t.strides()[i];
  }
  return out;
}

LoratoryTensor put(const std::optional<Tensor>& t, Placing& place, const char* name, size_t slice,
                   bool is_input = true, bool is_scale = false) {
  if (!t) return no_tensor();
  return view(*t, place({.name = name,
                         .slice = slice,
                         .host = t->bytes().data(),
                         .bytes = t->bytes().size(),
                         .is_input = is_input,
                         .element_bytes = is_scale ? 0 : size_bytes(t->dtype())}));
}

template <typename Number>
const Number* put(const std::vector<Number>& numbers, Placing& place, const char* name,
                  size_t slice) {
  if (numbers.empty()) return nullptr;
  return static_cast<const Number*>(
      place({name, slice, numbers.data(), numbers.size() * sizeof(Number), true}));
}

LoratorySlice place_slice(const SliceData& from, size_t i, int64_t num_out, Placing& place) {
  LoratorySlice out{};
  out.a = put(from.a, place, "A", i);
  out.b = put(from.b, place, "B", i);
  out.a_scale = put(from.a_scale, place, "the scale of A", i, true, true);
  out.b_scale = put(from.b_scale, place, "the scale of B", i, true, true);
  out.ranks = put(from.ranks, place, "ranks", i);
  out.scalings = put(from.scalings, place, "scalings", i);
  out.host_ranks = from.ranks.data();
  out.host_scalings = from.scalings.data();
  out.num_out = num_out;
  return out;
}

LoratoryLayer plain_fields(const CaseData& data) {
  const Case& c = data.shape;
  LoratoryLayer out{};
  out.struct_bytes = sizeof out;
  out.operation = c.operation;
  out.layout = c.layout;
  out.weight_dtype = int32_t(c.weight);
  out.x_dtype = int32_t(c.x);
  out.h_dtype = int32_t(c.expands() && c.has_quantized_activations() ? c.x : c.h);
  out.y_dtype = int32_t(c.y);
  out.mode = {int32_t(c.mode.h), int32_t(c.mode.sum), int32_t(c.mode.scale)};
  out.add_inputs = c.add_inputs ? 1 : 0;
  out.num_slots = c.num_slots();
  out.max_rank = c.max_rank;
  out.num_in = c.num_in;
  out.num_columns = c.num_columns();
  out.offset_start = c.offset_start;
  out.weight_scales = c.weight_scales;
  out.activation_scales = c.activation_scales;
  out.a_block_n = data.a_block_n, out.a_block_k = data.a_block_k;
  out.b_block_n = data.b_block_n, out.b_block_k = data.b_block_k;
  out.num_experts = c.num_experts;
  out.experts_per_token = c.experts_per_token;
  out.rows_per_x = c.x_by_row ? 1 : c.experts_per_token;
  out.has_router_weights = c.router_weights ? 1 : 0;
  return out;
}

}  // namespace

PlacedLayer place_layer(const CaseData& data, int64_t max_tokens, Placing& place) {
  PlacedLayer out{plain_fields(data), {}};
  out.layer.max_tokens = max_tokens;
  for (size_t i = 0; i < data.slices.size(); ++i) {
    out.slices.push_back(place_slice(data.slices[i], i, data.shape.num_out[i], place));
  }
  out.layer.stacked_a = put(data.stacked_a, place, "the stacked A", 0);
  out.layer.stacked_b = put(data.stacked_b, place, "the stacked B", 0);
  out.layer.num_slices = int64_t(out.slices.size());
  out.layer.slices = out.slices.data();
  return out;
}

PlacedCall place_call(const CaseData& data, const StepData& step, Placing& place) {
  PlacedCall out{};
  const bool shrinks = data.shape.shrinks();
  out.step.struct_bytes = sizeof out.step;
  out.call.struct_bytes = sizeof out.call;
  out.step.num_tokens = step.num_tokens();
  out.step.slots = put(step.slots, place, "slots", 0);
  out.step.host_slots = step.slots.data();
  out.step.token_ids = put(step.token_ids, place, "token ids", 0);
  out.step.host_token_ids = step.token_ids.data();
  out.step.experts = put(step.experts, place, "experts", 0);
  out.step.host_experts = step.experts.data();
  out.step.enabled = put(step.enabled, place, "enabled slots", 0);
  out.step.host_enabled = step.enabled.empty() ? nullptr : step.enabled.data();
  out.step.router_weights = put(step.router_weights, place, "router weights", 0);
  out.call.x = put(step.x, place, "x", 0);
  out.call.x_scale = put(step.x_scale, place, "the scale of x", 0, true, true);
  out.call.h = put(step.h, place, "h", 0, !shrinks);
  out.call.h_scale = put(step.h_scale, place, "the scale of h", 0, true, true);
  out.call.y = put(step.y, place, "y", 0, false);
  return out;
}

}  // namespace loratory::check
