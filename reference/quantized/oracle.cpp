#include "reference/quantized/oracle.hpp"

#include <cmath>

#include "reference/layout/batch_layout.hpp"

namespace loratory::reference {
namespace {

// A row of 8-bit weights and one of activations, with their scales: [], [rows] or blocks, and [],
// [T, 1] or [T, groups].
struct StageRow {
  ConstTensorView weight, weight_scale;
  int64_t n;
  ConstTensorView activation;
  std::optional<ConstTensorView> activation_scale;
  int64_t t;
};

double weight_factor(const StageRow& row, int64_t c, const BlockSize& block) {
  const ConstTensorView& scale = row.weight_scale;
  if (scale.num_axes() == 2) return scale.get(row.n / block.n, c / block.k);
  return scale.num_axes() == 1 ? scale.get(row.n) : scale.get();
}

double activation_factor(const StageRow& row, int64_t c, const BlockSize& block) {
  if (!row.activation_scale) return 1;
  if (row.activation_scale->num_axes() == 0) return row.activation_scale->get();
  return row.activation_scale->get(row.t, block.k > 0 ? c / block.k : 0);
}

StageFacts stage_facts(const StageRow& row, int64_t num_terms, const BlockSize& block, double s) {
  StageFacts facts{.underflows = 1, .num_terms = num_terms};
  for (int64_t c = 0; c < num_terms; ++c) {
    const double alpha = activation_factor(row, c, block), beta = weight_factor(row, c, block);
    const double product = row.weight.get(row.n, c) * row.activation.get(row.t, c);
    facts.delta += s * (product * alpha * beta);
    facts.magnitude += std::fabs(s * (product * alpha * beta));
    const bool starts_group = block.k > 0 ? c % block.k == 0 : c == 0;
    if (starts_group) facts.underflows += std::fabs(s) * (1 + std::fabs(beta));
    facts.underflows += std::fabs(s * alpha * beta);
  }
  return facts;
}

}  // namespace

StageOracle shrink_oracle(const QuantizedShrinkArgs& args) {
  const int64_t num_tokens = args.x.size(0), width = args.h.size(2);
  StageOracle oracle{width, {}};
  oracle.elements.resize(args.slices.size() * size_t(num_tokens * width));
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const QuantizedShrinkSlice& slice = args.slices[i];
    for (int64_t t = 0; t < num_tokens; ++t) {
      const int32_t slot = args.slots[size_t(t)];
      const int64_t rank = slot == kBaseSlot ? 0 : slice.ranks[size_t(slot)];
      for (int64_t j = 0; j < rank; ++j) {
        oracle.elements[size_t((int64_t(i) * num_tokens + t) * width + j)] =
            stage_facts({slice.a[slot], slice.a_scale[slot], j, args.x, args.x_scale, t},
                        args.x.size(1), args.block, 1);
      }
    }
  }
  return oracle;
}

StageOracle expand_oracle(const QuantizedExpandArgs& args) {
  const int64_t num_tokens = args.y.size(0), width = args.y.size(1);
  StageOracle oracle{width, {}};
  oracle.elements.resize(size_t(num_tokens * width));
  int64_t offset = args.offset_start;
  for (size_t i = 0; i < args.slices.size(); ++i) {
    const QuantizedExpandSlice& slice = args.slices[i];
    const auto index = int64_t(i);
    std::optional<ConstTensorView> h_scale;
    if (args.h_scale) h_scale = (*args.h_scale)[index];
    for (int64_t t = 0; t < num_tokens; ++t) {
      const int32_t slot = args.slots[size_t(t)];
      const int64_t rank = slot == kBaseSlot ? 0 : slice.ranks[size_t(slot)];
      for (int64_t n = 0; rank > 0 && n < slice.b.size(1); ++n) {
        StageFacts facts =
            stage_facts({slice.b[slot], slice.b_scale[slot], n, args.h[index], h_scale, t}, rank,
                        args.block, slice.scalings[size_t(slot)]);
        facts.adds_base = args.add_inputs;
        if (args.add_inputs) facts.base = args.y.get(t, offset + n);
        oracle.elements[size_t(t * width + offset + n)] = facts;
      }
    }
    offset += slice.b.size(1);
  }
  return oracle;
}

double error_bound(const StageFacts& f, const Arithmetic& a) {
  const double u_out = unit_roundoff(a.out), eta_out = underflow_unit(a.out);
  double error = (gamma(double(f.num_terms) + 4, a.unit) + a.operand_rounding) * f.magnitude +
                 0x1p-149 * f.underflows * (a.flushes_subnormals ? 0x1p24 : 1);
  if (a.mode.sum == SumMode::two_round) error = after_rounding(f.delta, error, u_out, eta_out);
  if (f.adds_base) error = after_rounding(f.result(), error, a.unit, 0);
  return kOracleAllowance * after_rounding(f.result(), error, u_out, eta_out);
}

double error_over_bound(double got, const StageFacts& f, const Arithmetic& a) {
  return error_over(got, f.result(), error_bound(f, a), a.out);
}

}  // namespace loratory::reference
