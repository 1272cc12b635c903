#include "reference/numerics/sum_error.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "reference/base/check.hpp"

namespace loratory::reference {
namespace {

using Columns = Eigen::ArrayXd;

constexpr int64_t kMaxClasses = 64;

// The largest power of two up to half of the terms: sums of one term each say nothing new.
int64_t num_classes(int64_t num_terms) {
  int64_t m = 1;
  while (2 * m <= num_terms / 2 && m < kMaxClasses) m *= 2;
  return m;
}

// The largest mean square of the partial sums of m accumulators with every mth term each, but for
// their spread: a third of the mean square of what they end with. m = classes.cols(), half of it,
// ...
Columns largest_of_classes(Eigen::ArrayXXd& classes) {
  Columns largest = Columns::Zero(classes.rows());
  for (int64_t m = classes.cols(); m > 1; m /= 2) {
    const Columns squares = classes.leftCols(m).square().rowwise().sum();
    largest = largest.max(squares / (3 * double(m)));
    classes.leftCols(m / 2) += classes.middleCols(m / 2, m / 2);
  }
  return largest;
}

std::vector<double> as_vector(const Columns& columns) {
  return {columns.data(), columns.data() + columns.size()};
}

template <typename Real>
SumFacts facts_of(std::span<const double> left, std::span<const Real> right, int64_t width) {
  const auto num_terms = int64_t(left.size());
  LORATORY_ASSERT(int64_t(right.size()) == num_terms * width, "a row of `right` for each term");
  Columns term(width), sum = Columns::Zero(width), squares = sum, signs = sum;
  Columns prefixes = sum, prefix_squares = sum;
  const int64_t m = num_classes(num_terms);
  Eigen::ArrayXXd classes = Eigen::ArrayXXd::Zero(width, m);
  for (int64_t c = 0; c < num_terms; ++c) {
    const Eigen::Map<const Eigen::Array<Real, Eigen::Dynamic, 1>> row(right.data() + c * width,
                                                                      width);
    term = left[size_t(c)] * row.template cast<double>();
    sum += term;
    squares += term.square();
    prefixes += sum;
    prefix_squares += sum.square();
    signs += (term * 1e300).max(-1.0).min(1.0);
    classes.col(c % m) += term;
  }
  const double n = std::max<double>(1, double(num_terms));
  const Columns spread = squares / 6, in_random_order = sum.square() / 3;
  const Columns partial =
      (prefix_squares / n).max(spread + in_random_order.max(largest_of_classes(classes)));
  const Columns drift = (prefixes / n - sum / 2).square().max(squares / 12);
  return {.num_terms = num_terms,
          .sum = as_vector(sum),
          .squares = as_vector(squares),
          .partial = as_vector(2 * partial),
          .drift = as_vector(2 * drift),
          .signs = as_vector(signs)};
}

}  // namespace

Accumulators accumulators_of(const Arithmetic& a) {
  if (a.unit <= 0x1p-24) return {.unit = a.unit};
  return {.unit = std::max(0x1p-23, a.unit / 2), .cut = true};
}

SumFacts sums_of_products(std::span<const double> left, std::span<const float> right,
                          int64_t width) {
  return facts_of(left, right, width);
}

SumFacts sums_of_products(std::span<const double> left, std::span<const double> right,
                          int64_t width) {
  return facts_of(left, right, width);
}

RandomError sum_error(const SumFacts& facts, int64_t w, int64_t num_terms,
                      const Accumulators& accumulators) {
  const auto at = size_t(w);
  const auto n = double(num_terms);
  const double u = accumulators.unit, partial = facts.partial[at];
  if (!accumulators.cut) return {0, u * u * (facts.squares[at] + n * partial)};
  // Every term loses half a cut on the mean, and so does the sum in each step: toward zero.
  const double half = u / 2, steps = std::ceil(n / double(accumulators.terms_per_step));
  return {-half * (std::sqrt(partial) * facts.signs[at] + steps * facts.sum[at] / 2),
          half * half * (partial * (2 * n + steps) + steps * steps * facts.drift[at])};
}

}  // namespace loratory::reference
