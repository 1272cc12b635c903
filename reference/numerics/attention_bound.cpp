#include "reference/numerics/attention_bound.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "reference/base/check.hpp"
#include "reference/numerics/error_bound.hpp"

namespace loratory::reference {
namespace {

constexpr double kUnit = 0x1p-24;      // of one fp32 operation
constexpr double kFlushed = 0x1p-125;  // what an exponential below the normal range loses, twice

/// Scores in units of log2, and what each may be off by.
struct Scores {
  std::vector<double> exact, error;
  double largest = 0, largest_error = 0;
};

Scores scores_of(std::span<const float> q, std::span<const float> keys, float scale,
                 const AttentionArithmetic& arithmetic) {
  const size_t d = q.size(), n = keys.size() / d;
  const double factor = double{scale} * std::numbers::log2e;
  Scores out{std::vector<double>(n), std::vector<double>(n)};
  for (size_t j = 0; j < n; ++j) {
    double sum = 0, magnitude = 0;
    for (size_t i = 0; i < d; ++i) {
      const double product = double{q[i]} * double{keys[j * d + i]};
      sum += product;
      magnitude += std::abs(product);
    }
    out.exact[j] = factor * sum;
    out.error[j] = factor * gamma(double(d), arithmetic.unit) * magnitude;
  }
  out.largest = *std::ranges::max_element(out.exact);
  out.largest_error = *std::ranges::max_element(out.error);
  return out;
}

/// The logarithm of the factors (1 + error) that a weight passes, without its own rounding.
class WeightError {
 public:
  WeightError(const AttentionArithmetic& arithmetic, int64_t num_keys) {
    const int64_t piece = std::min(num_keys, arithmetic.piece_keys);
    const int64_t pieces = (num_keys + piece - 1) / piece;
    const int64_t tile = std::min(piece, arithmetic.tile_keys);
    const int64_t rescalings = (piece + tile - 1) / tile - 1;
    const auto exponentials = double(1 + rescalings + pieces);
    const auto roundings = double(rescalings + 2 * pieces);
    always_ = exponentials * std::log1p(arithmetic.exp_unit) + roundings * std::log1p(kUnit);
    product_ = std::log1p(gamma(double(piece) + 1, arithmetic.unit)) +
               std::log1p(unit_roundoff(arithmetic.weights));
    sum_ = std::log1p(gamma(double(piece), kUnit));
    num_factors = exponentials + roundings;
  }

  /// In the numerator, and in the sum of weights.
  double in_product(double score_error) const { return std::expm1(score_error + product_); }
  double in_sum(double score_error) const { return std::expm1(score_error + sum_); }
  /// Of key j: its score, the roundings that grow with its distance from the largest, and always_.
  double of_score(const Scores& s, size_t j) const {
    const double distance = s.largest - s.exact[j] + s.largest_error + s.error[j];
    return std::numbers::ln2 * (s.error[j] + 3 * kUnit * distance) + always_;
  }

  double num_factors = 0;

 private:
  double always_ = 0, product_ = 0, sum_ = 0;
};

}  // namespace

AttentionOracle attention_oracle(std::span<const float> q, std::span<const float> keys,
                                 std::span<const float> values, float scale,
                                 const AttentionArithmetic& arithmetic) {
  LORATORY_ASSERT(
      !q.empty() && !keys.empty() && keys.size() == values.size() && keys.size() % q.size() == 0,
      "one key and one value for each position");
  const size_t d = q.size(), n = keys.size() / d;
  const Scores scores = scores_of(q, keys, scale, arithmetic);
  const WeightError error(arithmetic, int64_t(n));
  std::vector<double> sums(d), absolute(d), off(d);
  double sum = 0, sum_off = 0;
  for (size_t j = 0; j < n; ++j) {
    const double weight = std::exp2(scores.exact[j] - scores.largest);
    const double of_score = error.of_score(scores, j);
    const double product_off = weight * error.in_product(of_score);
    sum += weight;
    sum_off += weight * error.in_sum(of_score);
    for (size_t i = 0; i < d; ++i) {
      const double v = values[j * d + i];
      sums[i] += weight * v;
      absolute[i] += std::abs(v);
      off[i] += product_off * std::abs(v);
    }
  }
  // Weights are relative to a shift that may lie largest_error away from the largest score.
  const double lost = std::exp2(2 * scores.largest_error) * error.num_factors * kFlushed;
  const double rounded_away =
      std::exp2(2 * scores.largest_error) * 2 * underflow_unit(arithmetic.weights);
  sum_off = (sum_off + double(n) * lost) / sum;
  AttentionOracle out{std::vector<double>(d), std::vector<double>(d)};
  for (size_t i = 0; i < d; ++i) {
    out.exact[i] = sums[i] / sum;
    const double product_off = (off[i] + absolute[i] * (lost + rounded_away)) / sum;
    const double quotient_off =
        sum_off < 1 ? (product_off + std::abs(out.exact[i]) * sum_off) / (1 - sum_off)
                    : std::numeric_limits<double>::infinity();
    const double divided = after_rounding(out.exact[i], quotient_off, 2.01 * kUnit, 0x1p-148);
    out.bound[i] =
        kOracleAllowance * after_rounding(out.exact[i], divided, unit_roundoff(arithmetic.out),
                                          underflow_unit(arithmetic.out));
  }
  return out;
}

}  // namespace loratory::reference
