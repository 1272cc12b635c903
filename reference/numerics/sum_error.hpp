#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/numerics/error_bound.hpp"

// How far a sum of products in fp32 usually is from the exact one: not at worst, which is
// error_bound.hpp, but as a random number. docs/error_bounds.md derives it ("Errors as random
// numbers"). Source: Higham and Mary 2019; Connolly, Higham and Mary 2021.

namespace loratory::reference {

/// How the accumulators of an implementation round.
struct Accumulators {
  double unit = 0x1p-24;       ///< to nearest: relative; cut: a step loses less of its largest term
  bool cut = false;            ///< toward zero, as tensor cores do
  int64_t terms_per_step = 8;  ///< of a tensor core; a larger one than this makes fewer cuts
};

/// unit <= 2^-24 rounds to nearest. Above, the accumulators cut, and `unit` is twice their cut (as
/// 2^-22 is of the 2^-23 of tensor cores in error_bound.hpp).
Accumulators accumulators_of(const Arithmetic& arithmetic);

/// What the errors of `width` sums depend on. Each has `num_terms` terms t_c.
struct SumFacts {
  int64_t num_terms = 0;
  std::vector<double> sum;      ///< exact but for 2^-53
  std::vector<double> squares;  ///< sum_c t_c²
  std::vector<double> partial;  ///< the mean square of partial sums, doubled
  std::vector<double> drift;    ///< the square of (mean of partial sums - sum/2), doubled
  std::vector<double> signs;    ///< sum_c sign(t_c)
};

/// The sums of left[c]·right[c][w] over c. right is [left.size()][width], row-major.
/// partial is twice the largest of: the mean square of the partial sums in order of c; what it is
/// expected to be in a random order, sum²/3 + squares/6; the same of sums of every mth term, m = 2,
/// 4, ..., 64. drift is likewise the larger one of that in order of c and of squares/12.
/// Cost  O(n·width), about ten times that of the sums alone.
SumFacts sums_of_products(std::span<const double> left, std::span<const float> right,
                          int64_t width);
SumFacts sums_of_products(std::span<const double> left, std::span<const double> right,
                          int64_t width);

/// An error whose mean lies between 0 and this, and a rest that is sub-Gaussian:
/// P(|rest| > z·sqrt(variance)) <= 2·exp(-z²/2).
struct RandomError {
  double mean = 0;
  double variance = 0;
};

/// Of sum w, if num_terms terms are added in any order that does not look at them. Several
/// roundings more (split-K, a second accumulator) are as many terms less.
RandomError sum_error(const SumFacts& facts, int64_t w, int64_t num_terms,
                      const Accumulators& accumulators);

}  // namespace loratory::reference
