#include "reference/moe/moe_layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reference/base/input_error.hpp"
#include "reference/lora/check_args.hpp"
#include "reference/numerics/matrix.hpp"
#include "reference/quantized/quantize.hpp"

namespace loratory::reference {

void check_moe(const MoeArgs& args) {
  check_shape("moe_layer: w13", args.w13, {kAnySize, kAnySize, kAnySize});
  check_shape("moe_layer: w2", args.w2, {args.w13.size(0), args.w13.size(2), kAnySize});
  const int64_t num_slices = args.gated ? 2 : 1;
  check_shape("moe_layer: w13", args.w13,
              {args.w13.size(0), num_slices * args.w2.size(2), args.w13.size(2)});
  check_rows(args.rows, args.w13.size(0));
  check_shape("moe_layer: x", args.x, {args.rows.num_tokens(), args.w13.size(2)});
  for (const Dtype dtype : {args.x.dtype, args.w13.dtype, args.w2.dtype, args.intermediate}) {
    check_wide_dtype("moe_layer", dtype);
  }
  check_wide_dtype("moe_layer: out", args.out);
  if (int64_t(args.router_weights.size()) != args.rows.num_rows()) {
    throw InputError("moe_layer: router_weights", "must be one per expert of each token");
  }
  if (args.router_weight_on_input && args.rows.experts_per_token != 1) {
    throw InputError(
        "moe_layer: router_weight_on_input",
        fmt::format("needs one expert per token, but there are {}", args.rows.experts_per_token));
  }
  if (args.activation == Activation::gpt_oss && !args.gated) {
    throw InputError("moe_layer: activation", "gpt_oss needs a gate");
  }
}

BaseInput base_input(const ConstTensorView& x, std::optional<Dtype> quantised) {
  const int64_t num_rows = x.size(0), num_in = x.size(1);
  BaseInput out{Tensor(quantised.value_or(Dtype::f32), {num_rows, num_in}),
                std::vector<float>(size_t(num_rows), 1.0F)};
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto numbers = read_vector<float>(x[row], num_in);
    float& scale = out.scales[size_t(row)];
    const float largest = num_in == 0 ? 0 : numbers.cwiseAbs().maxCoeff();
    if (quantised) scale = quantization_scale(largest, *quantised);
    for (int64_t c = 0; c < num_in; ++c) {
      const float v = numbers(c) / scale;
      out.numbers.set(quantised ? round_to(*quantised, v, Overflow::saturate) : v, row, c);
    }
  }
  return out;
}

Tensor expert_linear(const ExpertRows& rows, const BaseInput& x, const ConstTensorView& weights,
                     Dtype out) {
  const int64_t num_out = weights.size(1), num_in = weights.size(2);
  Tensor y(out, {rows.num_rows(), num_out});
  const bool x_is_by_row = x.numbers.shape()[0] == rows.num_rows();
  for (int64_t row = 0; row < rows.num_rows(); ++row) {
    const int32_t expert = rows.local_expert(row);
    if (expert < 0) continue;
    const int64_t from = x_is_by_row ? row : rows.token(row);
    const Vector<float> sum =
        multiply_in_order(read_matrix<float>(weights[expert], num_out, num_in),
                          read_vector<float>(x.numbers.view()[from], num_in));
    for (int64_t n = 0; n < num_out; ++n) y.set(sum(n) * x.scales[size_t(from)], row, n);
  }
  return y;
}

Tensor activate_rows(const ConstTensorView& gate_up, const MoeArgs& args) {
  const int64_t inner = gate_up.size(1) / (args.gated ? 2 : 1);
  Tensor a(args.intermediate, {gate_up.size(0), inner});
  for (int64_t row = 0; row < gate_up.size(0); ++row) {
    if (args.rows.local_expert(row) < 0) continue;
    for (int64_t n = 0; n < inner; ++n) {
      const auto gate = float(gate_up.get(row, n));
      a.set(args.gated ? activate(args.activation, gate, float(gate_up.get(row, inner + n)))
                       : activate(args.activation, gate),
            row, n);
    }
  }
  return a;
}

Tensor combine_experts(const ConstTensorView& z, const MoeArgs& args) {
  Tensor y(args.out, {args.rows.num_tokens(), z.size(1)});
  for (int64_t t = 0; t < y.shape()[0]; ++t) {
    Vector<float> sum = Vector<float>::Zero(z.size(1));
    for (int64_t i = 0; i < args.rows.experts_per_token; ++i) {
      const int64_t row = t * args.rows.experts_per_token + i;
      if (args.rows.local_expert(row) < 0) continue;
      const float weight = args.router_weight_on_input ? 1 : args.router_weights[size_t(row)];
      sum += weight * read_vector<float>(z[row], z.size(1));
    }
    for (int64_t n = 0; n < sum.size(); ++n) y.set(sum(n), t, n);
  }
  return y;
}

Tensor moe_input(const MoeArgs& args) {
  Tensor x(args.x.dtype, {args.x.size(0), args.x.size(1)});
  for (int64_t t = 0; t < args.x.size(0); ++t) {
    for (int64_t c = 0; c < args.x.size(1); ++c) {
      const auto v = float(args.x.get(t, c));
      x.set(args.router_weight_on_input ? args.router_weights[size_t(t)] * v : v, t, c);
    }
  }
  return x;
}

namespace {

void add_delta(const MoeArgs& args, const MoeLora& lora, const std::vector<ExpertLoraSlice>& slices,
               const Tensor& x, const std::vector<ExpertTile>& tiles, Tensor& y) {
  expert_lora({.x = x.view(),
               .rows = args.rows,
               .adapters = lora.adapters,
               .slices = slices,
               .router_weights = {},
               .mode = lora.mode,
               .y = y.view()},
              tiles);
}

}  // namespace

std::vector<ExpertLoraSlice> gate_and_up(const MoeLora& lora, bool gated) {
  if (!gated || lora.w13.size() != 1) return lora.w13;
  constexpr size_t kRowsOfB = 2;
  const ExpertLoraSlice& both = lora.w13[0];
  const int64_t inner = both.b.size(kRowsOfB) / 2;
  ExpertLoraSlice gate = both, up = both;
  gate.b = narrow(both.b, kRowsOfB, 0, inner);
  up.b = narrow(both.b, kRowsOfB, inner, inner);
  if (lora.fused_rows == GateUpLayout::interleaved) {
    const int64_t stride = both.b.strides[kRowsOfB];
    up.b.data = both.b.data + stride * int64_t(size_bytes(both.b.dtype));
    gate.b.strides[kRowsOfB] = up.b.strides[kRowsOfB] = 2 * stride;
  }
  return {gate, up};
}

void check_moe_lora(const MoeArgs& args, const MoeLora& lora) {
  const size_t num_slices = args.gated ? 2 : 1;
  if (lora.w13.empty() || lora.w13.size() > num_slices) {
    throw InputError("moe_layer: lora.w13", fmt::format("has {} slices", lora.w13.size()),
                     "gate and up, or one for both, or one if the layer is not gated");
  }
  const int64_t inner = args.w2.size(2), hidden = args.w2.size(1), experts = args.w2.size(0);
  const int64_t rows = inner * int64_t(num_slices / lora.w13.size());
  check_adapters(lora.adapters, args.rows);
  for (const ExpertLoraSlice& slice : lora.w13) {
    check_shape("moe_layer: lora.w13.a", slice.a, {kAnySize, experts, kAnySize, hidden});
    check_shape("moe_layer: lora.w13.b", slice.b, {kAnySize, experts, rows, kAnySize});
  }
  check_shape("moe_layer: lora.w2.a", lora.w2.a, {kAnySize, experts, kAnySize, inner});
  check_shape("moe_layer: lora.w2.b", lora.w2.b, {kAnySize, experts, hidden, kAnySize});
}

MoeStages moe_layer(const MoeArgs& args, const MoeLora* lora, const AlignedRows* aligned) {
  check_moe(args);
  std::vector<ExpertTile> tiles;
  if (lora != nullptr) {
    check_moe_lora(args, *lora);
    tiles =
        aligned == nullptr ? single_row_tiles(args.rows, lora->adapters) : block_tiles(*aligned);
  }
  const Tensor x = moe_input(args);
  Tensor gate_up = expert_linear(args.rows, base_input(x.view(), args.quantised_base_input),
                                 args.w13, args.intermediate);
  const Tensor gate_up_base = gate_up;
  if (lora != nullptr) add_delta(args, *lora, gate_and_up(*lora, args.gated), x, tiles, gate_up);
  const Tensor a = activate_rows(gate_up.view(), args);
  Tensor down = expert_linear(args.rows, base_input(a.view(), args.quantised_base_input), args.w2,
                              args.intermediate);
  const Tensor down_base = down;
  if (lora != nullptr) add_delta(args, *lora, {lora->w2}, a, tiles, down);
  return {x, gate_up_base, gate_up, a, down_base, down, combine_experts(down.view(), args)};
}

}  // namespace loratory::reference
