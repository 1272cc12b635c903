#pragma once

#include <cstdint>
#include <span>

#include "reference/numerics/dtype.hpp"
#include "reference/numerics/numeric_mode.hpp"

namespace loratory::reference {

/// One output element of a LoRA operation in float64, and the sums of absolute values that its
/// error depends on. Letters as in docs/error_bounds.md; j runs over the rank, c over K.
struct DeltaFacts {
  double base = 0;      ///< 0 where the old y is not read
  double delta = 0;     ///< d* = s · sum_j B_nj h*_j
  double scaling = 0;   ///< s
  int64_t num_in = 0;   ///< K; 0 where h is given exactly (embedding, expand alone)
  int64_t rank = 0;     ///< r
  double sum_b_h = 0;   ///< sum_j |B_nj|·|h*_j|
  double sum_b_xa = 0;  ///< sum_j |B_nj| · sum_c |x_c A_jc|; K = 0: as sum_b_h
  double sum_b = 0;     ///< sum_j |B_nj|
  double sum_h = 0;     ///< sum_j |h*_j|
  double sum_xa = 0;    ///< sum_j sum_c |x_c A_jc|; K = 0: as sum_h

  double result() const { return base + delta; }
};

/// How the implementation under judgement computes. The accumulators are fp32, in any order of
/// summation.
struct Arithmetic {
  NumericMode mode{};
  Dtype h = Dtype::f32;       ///< of the buffer with store_as_x; else not looked at
  Dtype weight = Dtype::f32;  ///< of B: cast_to_weight, split2, folded_b
  Dtype out = Dtype::f32;     ///< of y
  double unit = 0x1p-24;      ///< of one product or sum: 2^-22 for tensor cores
  /// Relative error of an operand rounded before the product, summed over the operands: 2^-11 for
  /// each fp32 operand rounded to TF32, 2^-10 if truncated.
  double operand_rounding = 0;
  bool flushes_subnormals = false;  ///< results of products and sums, not inputs
  /// How many tp_ranks h is summed over before expand: P in a fully sharded row-parallel layer.
  int64_t num_h_parts = 1;
};

/// Share by which bounds exceed their formula: the oracle's own roundings, of unit 2^-53, stay
/// below it in every bound of fp32.
inline constexpr double kOracleAllowance = 1 + 0x1p-20;

/// One rounding of a number that is off by `error` from `exact`: how far it is off then.
double after_rounding(double exact, double error, double unit, double absolute);

/// n·u / (1 - n·u): the relative error of n roundings of unit u in any order. From n·u = 1 on
/// nothing bounds it: infinity, and so is every bound here that needs it.
double gamma(double num_roundings, double unit);

/// |d - d*| for d before it meets base: E_d of [1.18].
/// Valid if no intermediate overflows.
double delta_error_bound(const DeltaFacts& facts, const Arithmetic& arithmetic);

/// |y - y*| for y = base + d in its dtype, y* = facts.result(). Never 0.
/// Derivation: docs/error_bounds.md. Source: statements [1.18], with four terms mended.
/// Valid if no intermediate overflows.
double error_bound(const DeltaFacts& facts, const Arithmetic& arithmetic);

/// The same for a sum over tp_ranks (all-reduce) of partial results, in any order, rounded to `out`
/// at every sum or at the end: sum_p bound_p + gamma_P(u_o) · sum_p (|partial*_p| + bound_p).
/// `partials` are exact values, `bounds` what error_bound() says of each. One partial: its bound.
double all_reduce_error_bound(std::span<const double> partials, std::span<const double> bounds,
                              Dtype out);

/// What a product or a sum may lose below the normal range, twice: docs/error_bounds.md says why.
double lost_below_normal(const Arithmetic& arithmetic);

/// |h - h*| of one element of shrink, whose dtype is `arithmetic.out`: gamma_K and the rounding of
/// operands, times sum_c |x_c A_jc|, what products and sums lose below the normal range, and one
/// rounding.
double shrink_error_bound(double h_star, double sum_xa, int64_t num_in,
                          const Arithmetic& arithmetic);
/// The same with products and sums of fp32 and no rounding of operands.
double shrink_error_bound(double h_star, double sum_xa, int64_t num_in, Dtype h,
                          double unit = 0x1p-24);

/// |got - exact| / bound: above 1 is a wrong result. An infinity has 0 if a number rounds to it in
/// `out` that is as near to `exact` as the bound leaves it before its last rounding; a finite
/// number has infinity if none of those rounds to one. NaN never passes, nor does anything where
/// `exact` or `bound` is NaN. `bound` is one that ends with after_rounding(), times
/// kOracleAllowance.
double error_over(double got, double exact, double bound, Dtype out);

/// The same for error_bound().
double error_over_bound(double got, const DeltaFacts& facts, const Arithmetic& arithmetic);

}  // namespace loratory::reference
