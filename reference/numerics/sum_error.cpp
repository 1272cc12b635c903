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

// The largest sum of squares of the sums of every mth term, m = classes.cols(), half of it, ... 2.
Columns largest_of_classes(Eigen::ArrayXXd& classes) {
  Columns largest = Columns::Zero(classes.rows());
  for (int64_t m = classes.cols(); m > 1; m /= 2) {
    largest = largest.max(classes.leftCols(m).square().rowwise().sum());
    classes.leftCols(m / 2) += classes.middleCols(m / 2, m / 2);
  }
  return largest;
}

std::vector<double> as_vector(const Columns& columns) {
  return {columns.data(), columns.data() + columns.size()};
}

}  // namespace

Accumulators accumulators_of(const Arithmetic& a) {
  if (a.unit <= 0x1p-24) return {.unit = a.unit};
  return {.unit = std::max(0x1p-23, a.unit / 2), .cut = true};
}

SumFacts sums_of_products(std::span<const double> left, std::span<const float> right,
                          int64_t width) {
  const auto num_terms = int64_t(left.size());
  LORATORY_ASSERT(int64_t(right.size()) == num_terms * width, "a row of `right` for each term");
  Columns term(width), sum = Columns::Zero(width), squares = sum, highest = sum, signs = sum,
                       most_signs = sum;
  const int64_t m = num_classes(num_terms);
  Eigen::ArrayXXd classes = Eigen::ArrayXXd::Zero(width, m);
  for (int64_t c = 0; c < num_terms; ++c) {
    const Eigen::Map<const Eigen::ArrayXf> row(right.data() + c * width, width);
    term = left[size_t(c)] * row.cast<double>();
    sum += term;
    squares += term.square();
    highest = highest.max(sum.abs());
    signs += (term * 1e300).max(-1.0).min(1.0);
    most_signs = most_signs.max(signs.abs());
    classes.col(c % m) += term;
  }
  const Columns partial = highest.square().max(squares).max(largest_of_classes(classes));
  return {.num_terms = num_terms,
          .sum = as_vector(sum),
          .squares = as_vector(squares),
          .partial = as_vector(2 * partial),
          .signs = as_vector(most_signs)};
}

RandomError sum_error(const SumFacts& facts, int64_t w, int64_t num_terms,
                      const Accumulators& accumulators) {
  const auto at = size_t(w);
  const auto n = double(num_terms);
  const double u = accumulators.unit, partial = facts.partial[at];
  if (!accumulators.cut) return {0, u * u * (facts.squares[at] + n * partial)};
  const double cuts = 2 * std::ceil(n / double(accumulators.terms_per_step));
  const double half = u / 2;
  // n cut terms and as many signs of theirs are random; the cuts of the sum itself have its sign.
  return {half * std::sqrt(partial) * (facts.signs[at] + cuts),
          half * half * partial * (2 * n + cuts)};
}

}  // namespace loratory::reference
