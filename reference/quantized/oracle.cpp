#include "reference/quantized/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

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

// --- both stages ------------------------------------------------------------------------------

namespace {

/// A quotient in fp32, or a product with a reciprocal that was rounded.
constexpr double kQuotient = 0x1p-22;

// An h of one row, slice and rank: the exact one, and between what those of implementations lie.
struct RangeOfH {
  double exact = 0, low = 0, high = 0;
};

// The h of one slice, [T][R]; 0 where not covered.
struct HOfSlice {
  int64_t width = 0;
  std::vector<RangeOfH> elements;
  std::vector<double> largest_factor;  // of 8-bit h; 1 of wide

  size_t place(int64_t t, int64_t j) const { return size_t(t * width + j); }
};

// Numbers under one factor.
struct Shared {
  Dtype dtype;
  std::vector<size_t> places;

  double factor(double absmax) const {
    return absmax == 0 ? 1 : std::max(absmax / largest_finite(dtype), 0x1p-126);
  }
  double nearest(double quotient) const { return round_to(dtype, quotient, Overflow::saturate); }
};

// Rounding never falls, so the ends of h and of the factor give the ends of what h becomes.
void quantise(const Shared& shared, HOfSlice& h) {
  double exact = 0, low = 0, high = 0;
  for (const size_t at : shared.places) {
    const RangeOfH& v = h.elements[at];
    const double least = v.low > 0 ? v.low : v.high < 0 ? -v.high : 0;
    exact = std::max(exact, std::fabs(v.exact)), low = std::max(low, least);
    high = std::max({high, v.high, -v.low});
  }
  const double factor = shared.factor(exact), factor_low = shared.factor(low) * (1 - kQuotient),
               factor_high = shared.factor(high) * (1 + kQuotient);
  for (const size_t at : shared.places) {
    RangeOfH& v = h.elements[at];
    h.largest_factor[at] = low > 0 ? factor_high : std::max(1.0, factor_high);
    v.exact = shared.nearest(v.exact / factor) * factor;
    if (low == 0) {  // the factor may be any; no number exceeds absmax, or what 2^-126 makes of it
      v.high = (1 + kQuotient) * high + 0x1p-110, v.low = -v.high;
      continue;
    }
    const auto end = [&](double of_h, bool is_high) {
      const bool is_outward = (of_h > 0) == is_high;
      const double quotient = of_h / (is_outward ? factor_low : factor_high);
      const double q = shared.nearest(quotient * (is_outward ? 1 + kQuotient : 1 - kQuotient));
      return q * ((q > 0) == is_high ? factor_high : factor_low);
    };
    v.low = end(v.low, false), v.high = end(v.high, true);
  }
}

std::vector<Shared> shared_factors(const QuantizedLinearArgs& args, const QuantizedSlice& slice,
                                   const HOfSlice& h) {
  const int64_t groups_of_row = args.b_block.k > 0 ? num_groups(h.width, args.b_block.k) : 1;
  const bool by_tensor = args.b_block.k == 0 && args.x_scale->num_axes() == 0;
  const auto num_rows = int64_t(args.slots.size());
  std::vector<Shared> out(by_tensor ? 1 : size_t(num_rows * groups_of_row),
                          Shared{args.x.dtype, {}});
  for (int64_t t = 0; t < num_rows; ++t) {
    const int32_t slot = args.slots[size_t(t)];
    for (int64_t j = 0; slot != kBaseSlot && j < slice.ranks[size_t(slot)]; ++j) {
      const int64_t group =
          by_tensor ? 0 : t * groups_of_row + (args.b_block.k > 0 ? j / args.b_block.k : 0);
      out[size_t(group)].places.push_back(h.place(t, j));
    }
  }
  return out;
}

HOfSlice ranges_of_h(const QuantizedLinearArgs& args, const QuantizedSlice& slice,
                     const Arithmetic& arithmetic) {
  Arithmetic of_shrink = arithmetic;
  of_shrink.mode = {}, of_shrink.out = Dtype::f32;
  const int64_t num_rows = int64_t(args.slots.size()), width = slice.a.size(1);
  HOfSlice out{width, std::vector<RangeOfH>(size_t(num_rows * width)),
               std::vector<double>(size_t(num_rows * width), 1)};
  for (int64_t t = 0; t < num_rows; ++t) {
    const int32_t slot = args.slots[size_t(t)];
    for (int64_t j = 0; slot != kBaseSlot && j < slice.ranks[size_t(slot)]; ++j) {
      const StageFacts facts =
          stage_facts({slice.a[slot], slice.a_scale[slot], j, args.x, args.x_scale, t},
                      args.x.size(1), args.a_block, 1);
      const double bound = error_bound(facts, of_shrink);
      out.elements[out.place(t, j)] = {facts.delta, facts.delta - bound, facts.delta + bound};
    }
  }
  if (!is_quantized(args.x.dtype)) return out;
  for (const Shared& shared : shared_factors(args, slice, out)) quantise(shared, out);
  return out;
}

// Column n of a slice in row t, from an h that is known but for its range.
StageFacts facts_of_column(const QuantizedLinearArgs& args, const QuantizedSlice& slice,
                           const HOfSlice& h, int64_t t, int64_t n) {
  const int32_t slot = args.slots[size_t(t)];
  const int64_t rank = slice.ranks[size_t(slot)];
  const double s = slice.scalings[size_t(slot)];
  const StageRow row{slice.b[slot], slice.b_scale[slot], n, {}, std::nullopt, t};
  StageFacts facts{.underflows = 1, .num_terms = rank, .adds_base = args.add_inputs};
  for (int64_t j = 0; j < rank; ++j) {
    const RangeOfH& v = h.elements[h.place(t, j)];
    const double beta = weight_factor(row, j, args.b_block);
    const double b = s * slice.b[slot].get(n, j) * beta;
    facts.delta += b * v.exact;
    facts.magnitude += std::fabs(b) * std::max(std::fabs(v.low), std::fabs(v.high));
    facts.given += std::fabs(b) * std::max(v.high - v.exact, v.exact - v.low);
    const bool starts_group = args.b_block.k > 0 ? j % args.b_block.k == 0 : j == 0;
    if (starts_group) facts.underflows += std::fabs(s) * (1 + std::fabs(beta));
    facts.underflows += std::fabs(s * beta) * h.largest_factor[h.place(t, j)];
  }
  return facts;
}

}  // namespace

StageOracle linear_oracle(const QuantizedLinearArgs& args, const Arithmetic& arithmetic) {
  const int64_t num_tokens = args.y.size(0), width = args.y.size(1);
  StageOracle oracle{width, {}};
  oracle.elements.resize(size_t(num_tokens * width));
  int64_t offset = args.offset_start;
  for (const QuantizedSlice& slice : args.slices) {
    const HOfSlice h = ranges_of_h(args, slice, arithmetic);
    for (int64_t t = 0; t < num_tokens; ++t) {
      const int32_t slot = args.slots[size_t(t)];
      const bool is_covered = slot != kBaseSlot && slice.ranks[size_t(slot)] > 0;
      for (int64_t n = 0; is_covered && n < slice.b.size(1); ++n) {
        StageFacts facts = facts_of_column(args, slice, h, t, n);
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
  const double gamma_sum = gamma(double(f.num_terms) + 4, a.unit);
  if (std::isinf(gamma_sum)) return gamma_sum;
  double error = (gamma_sum + a.operand_rounding) * f.magnitude + f.given +
                 lost_below_normal(a) * f.underflows;
  if (a.mode.sum == SumMode::two_round) error = after_rounding(f.delta, error, u_out, eta_out);
  if (f.adds_base) error = after_rounding(f.result(), error, a.unit, 0);
  return kOracleAllowance * after_rounding(f.result(), error, u_out, eta_out);
}

double error_over_bound(double got, const StageFacts& f, const Arithmetic& a) {
  return error_over(got, f.result(), error_bound(f, a), a.out);
}

}  // namespace loratory::reference
