#include "reference/moe/oracle.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "reference/numerics/matrix.hpp"

namespace loratory::reference {
namespace {

// The arguments of one row as those of a linear layer with one slot.
struct OneRow {
  std::vector<int32_t> slots{0};
  std::vector<std::vector<int32_t>> ranks;
  std::vector<std::vector<float>> scalings;
  LinearArgs args;
};

ConstTensorView with_axis(ConstTensorView view) {
  view.shape.insert(view.shape.begin(), 1);
  view.strides.insert(view.strides.begin(), 0);
  return view;
}

OneRow one_row(const ExpertLoraArgs& args, int64_t row, int32_t slot, int32_t expert) {
  OneRow one;
  for (const ExpertLoraSlice& slice : args.slices) {
    const size_t index = size_t(slot * slice.a.size(1) + expert);
    one.ranks.push_back({slice.ranks[index]});
    one.scalings.push_back({slice.scalings[index]});
  }
  const bool x_is_by_row = args.x.size(0) == args.rows.num_rows();
  one.args.x = with_axis(args.x[x_is_by_row ? row : args.rows.token(row)]);
  one.args.slots = one.slots;
  one.args.mode = args.mode;
  one.args.y = args.y[row];
  one.args.y.shape.insert(one.args.y.shape.begin(), 1);
  one.args.y.strides.insert(one.args.y.strides.begin(), 0);
  for (size_t i = 0; i < args.slices.size(); ++i) {
    one.args.slices.push_back({with_axis(args.slices[i].a[slot][expert]),
                               with_axis(args.slices[i].b[slot][expert]), one.ranks[i],
                               one.scalings[i], std::nullopt});
  }
  return one;
}

DeltaFacts weighted(DeltaFacts facts, double router_weight) {
  facts.delta *= router_weight;
  facts.scaling *= router_weight;
  ++facts.num_in;
  return facts;
}

}  // namespace

Oracle expert_lora_oracle(const ExpertLoraArgs& args) {
  const int64_t num_columns = args.y.size(1);
  Oracle oracle{num_columns,
                std::vector<std::optional<DeltaFacts>>(size_t(args.rows.num_rows() * num_columns))};
  for (const ExpertTile& tile : single_row_tiles(args.rows, args.adapters)) {
    const int64_t row = tile.rows[0];
    OneRow one = one_row(args, row, tile.slot, tile.expert);
    one.args.slots = one.slots;
    const Oracle of_row = linear_oracle(one.args);
    for (int64_t n = 0; n < num_columns; ++n) {
      auto facts = of_row.at(0, n);
      if (facts && !args.router_weights.empty()) {
        facts = weighted(*facts, args.router_weights[size_t(row)]);
      }
      oracle.elements[size_t(row * num_columns + n)] = facts;
    }
  }
  return oracle;
}

DeltaModels expert_delta_models(const ExpertLoraArgs& args, const Arithmetic& arithmetic) {
  const int64_t num_columns = args.y.size(1);
  DeltaModels out{num_columns, {}, {}};
  out.elements.resize(size_t(args.rows.num_rows() * num_columns));
  for (int64_t row = 0; row < args.rows.num_rows(); ++row)
    out.groups.push_back(args.rows.token(row));
  for (const ExpertTile& tile : single_row_tiles(args.rows, args.adapters)) {
    const int64_t row = tile.rows[0];
    OneRow one = one_row(args, row, tile.slot, tile.expert);
    one.args.slots = one.slots;
    std::optional<float> factor;
    if (!args.router_weights.empty()) factor = args.router_weights[size_t(row)];
    DeltaModels of_row = delta_models(one.args, arithmetic, factor);
    std::ranges::copy(of_row.elements, out.elements.begin() + row * num_columns);
  }
  return out;
}

Arithmetic arithmetic_of(const ExpertLoraArgs& args) {
  const Dtype weight = args.slices.empty() ? args.x.dtype : args.slices[0].b.dtype;
  return {.mode = args.mode, .h = args.x.dtype, .weight = weight, .out = args.y.dtype};
}

double activation_error_bound(Activation activation, bool gated, double gate, double up,
                              Dtype dtype) {
  const bool is_gpt_oss = activation == Activation::gpt_oss;
  double num_roundings = gated ? 1 : 0, absolute = 0, factor = gated ? std::fabs(up) : 1;
  if (activation == Activation::silu || is_gpt_oss) num_roundings += 4;
  if (is_gpt_oss) {
    gate = std::min(gate, double(kGptOssLimit));
    factor = kGptOssLimit + 1;
    // up + 1, and alpha·gate, whose error the exponential multiplies by the exponent.
    num_roundings += 1 + std::ceil(1.01 * kGptOssAlpha * std::fabs(gate));
  }
  // exp(-gate) is infinite from 88.7 on: 0 instead of at most 88.8·exp(-88.7) < 2^-121.
  if (num_roundings > 1 && gate < -50) absolute = 0x1p-121;
  const double exact = gated ? activate(activation, gate, up) : activate(activation, gate);
  // shrink_error_bound adds the underflow of num_roundings steps and the last rounding.
  return factor * (absolute + 0x1p-149) +
         (num_roundings == 0
              ? shrink_error_bound(exact, 0, 0, dtype)
              : shrink_error_bound(exact, std::fabs(exact), int64_t(num_roundings), dtype));
}

double MoeStageErrors::worst() const {
  return std::max({input, gate_up_base, gate_up, activated, down_base, down, y});
}

namespace {

constexpr double kWrong = std::numeric_limits<double>::infinity();

// The worst of the stage so far, and this element. NaN must be met by NaN.
void judge(double got, double exact, double bound, Dtype dtype, double& worst) {
  if (std::isnan(got) && std::isnan(exact)) return;
  worst = std::max(worst, error_over(got, exact, bound, dtype));
}

double judge_input(const MoeArgs& args, const Tensor& input) {
  double worst = 0;
  for (int64_t t = 0; t < args.x.size(0); ++t) {
    for (int64_t c = 0; c < args.x.size(1); ++c) {
      const double g = args.router_weight_on_input ? double(args.router_weights[size_t(t)]) : 1;
      const double exact = g * args.x.get(t, c);
      judge(input.get(t, c), exact, shrink_error_bound(exact, std::fabs(exact), 1, input.dtype()),
            input.dtype(), worst);
    }
  }
  return worst;
}

double judge_linear(const ExpertRows& rows, const BaseInput& x, const ConstTensorView& weights,
                    const Tensor& y) {
  double worst = 0;
  const int64_t num_in = weights.size(2);
  for (int64_t row = 0; row < rows.num_rows(); ++row) {
    const int32_t expert = rows.local_expert(row);
    if (expert < 0) continue;
    const int64_t from = x.numbers.shape()[0] == rows.num_rows() ? row : rows.token(row);
    const double scale = x.scales[size_t(from)];
    for (int64_t n = 0; n < weights.size(1); ++n) {
      double sum = 0, sum_abs = 0;
      for (int64_t c = 0; c < num_in; ++c) {
        const double product = weights.get(expert, n, c) * x.numbers.get(from, c);
        sum += product, sum_abs += std::fabs(product);
      }
      // The scale is one more rounding.
      const double bound = shrink_error_bound(scale * sum, scale * sum_abs, num_in + 1, y.dtype()) +
                           0x1p-149 * scale * double(num_in);
      judge(y.get(row, n), scale * sum, bound, y.dtype(), worst);
    }
  }
  return worst;
}

double judge_delta(const MoeArgs& args, const MoeLora* lora,
                   const std::vector<ExpertLoraSlice>& slices, const Tensor& x, const Tensor& base,
                   const Tensor& y) {
  if (lora == nullptr) return y.bytes() == base.bytes() ? 0 : kWrong;
  Tensor copy = base;
  const ExpertLoraArgs lora_args{.x = x.view(),
                                 .rows = args.rows,
                                 .adapters = lora->adapters,
                                 .slices = slices,
                                 .router_weights = {},
                                 .mode = lora->mode,
                                 .y = copy.view()};
  const Oracle oracle = expert_lora_oracle(lora_args);
  const Arithmetic arithmetic = arithmetic_of(lora_args);
  double worst = 0;
  for (int64_t row = 0; row < y.shape()[0]; ++row) {
    if (args.rows.local_expert(row) < 0) continue;
    for (int64_t n = 0; n < y.shape()[1]; ++n) {
      const double got = y.get(row, n), before = base.get(row, n);
      const bool same = encode(y.dtype(), got) == encode(y.dtype(), before);
      const auto& facts = oracle.at(row, n);
      worst =
          std::max(worst, facts ? error_over_bound(got, *facts, arithmetic) : (same ? 0 : kWrong));
    }
  }
  return worst;
}

double judge_activation(const MoeArgs& args, const Tensor& gate_up, const Tensor& a) {
  double worst = 0;
  const int64_t inner = a.shape()[1];
  for (int64_t row = 0; row < a.shape()[0]; ++row) {
    if (args.rows.local_expert(row) < 0) continue;
    for (int64_t n = 0; n < inner; ++n) {
      const double gate = gate_up.get(row, n), up = args.gated ? gate_up.get(row, inner + n) : 1;
      const double exact =
          args.gated ? activate(args.activation, gate, up) : activate(args.activation, gate);
      judge(a.get(row, n), exact,
            activation_error_bound(args.activation, args.gated, gate, up, a.dtype()), a.dtype(),
            worst);
    }
  }
  return worst;
}

double judge_combine(const MoeArgs& args, const Tensor& z, const Tensor& y) {
  double worst = 0;
  const int64_t k = args.rows.experts_per_token;
  for (int64_t t = 0; t < y.shape()[0]; ++t) {
    for (int64_t n = 0; n < y.shape()[1]; ++n) {
      double sum = 0, sum_abs = 0;
      for (int64_t row = t * k; row < (t + 1) * k; ++row) {
        if (args.rows.local_expert(row) < 0) continue;
        const double g = args.router_weight_on_input ? 1 : double(args.router_weights[size_t(row)]);
        sum += g * z.get(row, n), sum_abs += std::fabs(g * z.get(row, n));
      }
      judge(y.get(t, n), sum, shrink_error_bound(sum, sum_abs, k, y.dtype()), y.dtype(), worst);
    }
  }
  return worst;
}

}  // namespace

MoeStageErrors judge_stages(const MoeArgs& args, const MoeLora* lora, const MoeStages& s) {
  check_moe(args);
  const std::vector<ExpertLoraSlice> none, w2{lora == nullptr ? ExpertLoraSlice{} : lora->w2};
  const auto quantised = [&](const Tensor& x) {
    return base_input(x.view(), args.quantised_base_input);
  };
  return {
      .input = judge_input(args, s.input),
      .gate_up_base = judge_linear(args.rows, quantised(s.input), args.w13, s.gate_up_base),
      .gate_up = judge_delta(args, lora, lora == nullptr ? none : gate_and_up(*lora, args.gated),
                             s.input, s.gate_up_base, s.gate_up),
      .activated = judge_activation(args, s.gate_up, s.activated),
      .down_base = judge_linear(args.rows, quantised(s.activated), args.w2, s.down_base),
      .down = judge_delta(args, lora, w2, s.activated, s.down_base, s.down),
      .y = judge_combine(args, s.down, s.y)};
}

}  // namespace loratory::reference
