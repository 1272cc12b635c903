#include "reference/numerics/error_bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/base/check.hpp"

namespace loratory::reference {
namespace {

// What becomes of h between shrink and expand.
struct HRounding {
  double relative = 0;        // u_h: of what h loses
  double absolute = 0;        // eta_h: below the normal range
  double excess = 0;          // |hi| + |lo| <= |h|·(1 + excess)
  double terms_per_rank = 1;  // r' / r
};

HRounding h_rounding(const Arithmetic& a) {
  switch (a.mode.h) {
    case IntermediateMode::cast_to_weight:
    case IntermediateMode::store_as_x: {
      const bool in_buffer = a.mode.h == IntermediateMode::store_as_x;
      const Dtype kept = in_buffer ? a.h : a.weight;
      if (kept == Dtype::f32) return {};
      if (in_buffer && a.num_h_parts > 1) {  // each part is rounded, then sums of them are
        const auto num_parts = double(a.num_h_parts);
        return {.relative = gamma(num_parts + 1, unit_roundoff(kept)),
                .absolute = num_parts * underflow_unit(kept)};
      }
      return {.relative = unit_roundoff(kept), .absolute = underflow_unit(kept)};
    }
    case IntermediateMode::split2: {
      if (a.weight == Dtype::f32) return {.terms_per_rank = 2};  // hi is h, lo is 0
      const double u = unit_roundoff(a.weight);
      return {.relative = u * u / 2,
              .absolute = underflow_unit(a.weight),
              .excess = 2 * u,
              .terms_per_rank = 2};
    }
    default:
      return {};
  }
}

// Roundings on the way of a term of h: its product, the sums within and over the tp_ranks.
double num_h_roundings(const DeltaFacts& f, const Arithmetic& a) {
  return double(f.num_in) + double(a.num_h_parts - 1);
}

// sum_j |B_nj|·|h_j| of a computed h before it is rounded, over that of h* and of its terms.
// Parts that are rounded one by one may each be as large as their terms.
double computed_h(const Arithmetic& a, const HRounding& h, double of_h, double of_terms,
                  double gamma_h) {
  const bool rounded_parts = a.num_h_parts > 1 && h.relative > 0;
  return rounded_parts ? (1 + gamma_h) * of_terms : of_h + gamma_h * of_terms;
}

// The `error` that after_rounding() made a bound of.
double before_rounding(double exact, double bound, Dtype out) {
  const double u = unit_roundoff(out);
  const double error = bound / kOracleAllowance - u * std::fabs(exact) - underflow_unit(out);
  return std::max(0.0, error) / (1 + u);
}

// Absolute errors where results fall below the normal range.
double underflow_terms(const DeltaFacts& f, const Arithmetic& a, const HRounding& h) {
  const double s = std::fabs(f.scaling), num_terms = double(f.rank) * h.terms_per_rank;
  const bool folded = a.mode.scale == ScaleMode::folded_b;
  const double scale_of_products = folded ? std::max(1.0, s) : s;
  double z =
      lost_below_normal(a) * (1 + scale_of_products * num_terms + s * double(f.num_in) * f.sum_b);
  z += 2 * h.absolute * s * f.sum_b;
  if (folded) {
    const double gamma_h = gamma(num_h_roundings(f, a), a.unit);
    z += 2 * underflow_unit(a.weight) * computed_h(a, h, f.sum_h, f.sum_xa, gamma_h);
  }
  return z;
}

}  // namespace

double lost_below_normal(const Arithmetic& a) { return a.flushes_subnormals ? 0x1p-125 : 0x1p-149; }

double after_rounding(double exact, double error, double unit, double absolute) {
  return error + unit * (std::fabs(exact) + error) + absolute;
}

double gamma(double num_roundings, double unit) {
  if (!(num_roundings * unit < 1)) return std::numeric_limits<double>::infinity();
  return num_roundings * unit / (1 - num_roundings * unit);
}

double delta_error_bound(const DeltaFacts& f, const Arithmetic& a) {
  const HRounding h = h_rounding(a);
  const double s = std::fabs(f.scaling), m = s * f.sum_b_xa;
  const double num_terms = double(f.rank) * h.terms_per_rank;
  const double gamma_all = gamma(num_h_roundings(f, a) + num_terms + 2, a.unit);
  if (std::isinf(gamma_all)) return gamma_all;  // of the largest n here
  const double gamma_expand = gamma(num_terms + 2, a.unit);

  const double gamma_h = gamma(num_h_roundings(f, a), a.unit);
  const double met_by_b = computed_h(a, h, s * f.sum_b_h, m, gamma_h);
  const double c = met_by_b * (h.relative * (1 + gamma_expand) + h.excess * gamma_expand);
  const bool folded = a.mode.scale == ScaleMode::folded_b;
  const double u_w = folded ? unit_roundoff(a.weight) : 0;
  const double fold = u_w * (1 + gamma_all) * (1 + h.relative) * m;
  return gamma_all * m + a.operand_rounding * m + c + fold + underflow_terms(f, a, h);
}

double error_bound(const DeltaFacts& f, const Arithmetic& a) {
  const double u_out = unit_roundoff(a.out), eta_out = underflow_unit(a.out);
  double error = delta_error_bound(f, a);
  if (a.mode.sum == SumMode::two_round) {
    const bool as_weight = a.mode.h == IntermediateMode::cast_to_weight;
    const Dtype kept = as_weight ? a.weight : a.out;
    error = after_rounding(f.delta, error, unit_roundoff(kept), underflow_unit(kept));
  }
  error = after_rounding(f.result(), error, a.unit, 0);
  return kOracleAllowance * after_rounding(f.result(), error, u_out, eta_out);
}

double all_reduce_error_bound(std::span<const double> partials, std::span<const double> bounds,
                              Dtype out) {
  LORATORY_ASSERT(partials.size() == bounds.size(), "a bound for each partial result");
  double error = 0, magnitude = 0;
  for (size_t p = 0; p < partials.size(); ++p) {
    error += bounds[p];
    magnitude += std::fabs(partials[p]) + bounds[p];
  }
  if (partials.size() == 1) return error;
  const double u = gamma(double(partials.size()), unit_roundoff(out));
  return kOracleAllowance * (error + u * magnitude);
}

double shrink_error_bound(double h_star, double sum_xa, int64_t num_in, const Arithmetic& a) {
  const double gamma_h = gamma(double(num_in), a.unit);
  if (std::isinf(gamma_h)) return gamma_h;
  const double vanished = lost_below_normal(a) * double(num_in);
  const double error = (gamma_h + a.operand_rounding) * sum_xa + vanished;
  return kOracleAllowance *
         after_rounding(h_star, error, unit_roundoff(a.out), underflow_unit(a.out));
}

double shrink_error_bound(double h_star, double sum_xa, int64_t num_in, Dtype h, double unit) {
  return shrink_error_bound(h_star, sum_xa, num_in, {.out = h, .unit = unit});
}

double error_over(double got, double exact, double bound, Dtype out) {
  // A comparison with NaN is false: what cannot be judged must not pass for what is right.
  if (std::isnan(exact) || std::isnan(bound)) return std::numeric_limits<double>::infinity();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (std::isnan(got)) return kInfinity;
  const double error = std::isfinite(bound) ? before_rounding(exact, bound, out) : 0;
  const double least = round_to(out, exact - error), most = round_to(out, exact + error);
  if (std::isinf(got)) return got == least || got == most ? 0 : kInfinity;
  if (std::isinf(least) && least == most) return kInfinity;
  return std::fabs(got - exact) / bound;
}

double error_over_bound(double got, const DeltaFacts& f, const Arithmetic& a) {
  return error_over(got, f.result(), error_bound(f, a), a.out);
}

}  // namespace loratory::reference
