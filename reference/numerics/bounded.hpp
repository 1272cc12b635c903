#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace loratory::reference {

/// A number in float64, and a bound on how far from it any float32 implementation of the same
/// formula can be: whatever its order of summation, with or without fused multiply-add, its
/// elementary functions within 4 ulp. Computing with Bounded instead of float carries the bound
/// through a formula.
///
/// `error` infinite: nothing is known. Valid while no float32 intermediate overflows, and not for
/// hardware that flushes subnormals or for TF32.
/// Derivation: docs/error_bounds.md, "A whole model".
struct Bounded {
  double value = 0;
  double error = 0;

  Bounded() = default;
  /// A number that every implementation has exactly: a weight, an integer.
  explicit Bounded(double exact) : value(exact) {}
  Bounded(double v, double e) : value(v), error(std::isnan(e) ? kUnknown : e) {}

  bool is_exactly(double v) const { return value == v && error == 0; }
  /// The largest absolute value that an implementation can have.
  double largest() const { return std::abs(value) + error; }

  static constexpr double kUnknown = std::numeric_limits<double>::infinity();
};

/// One rounding to float32, and float64's own: 2^-24·(1 + 2^-20).
inline constexpr double kBoundedUnit = 0x1p-24 * (1 + 0x1p-20);
/// What one float32 operation can lose below the normal range.
inline constexpr double kBoundedUnderflow = 0x1p-149;
/// 4 ulp of an elementary function.
inline constexpr double kBoundedLibm = 8 * kBoundedUnit;

/// n roundings in any order.
inline double bounded_gamma(int64_t num_roundings) {
  const double nu = double(num_roundings) * kBoundedUnit;
  return nu < 0.5 ? nu / (1 - nu) : Bounded::kUnknown;
}

/// `value`, off by `error` before it is rounded once.
inline Bounded rounded(double value, double error, double unit = kBoundedUnit) {
  return {value, error + unit * (std::abs(value) + error) + kBoundedUnderflow};
}

/// By how much a product of the two can be off before it is rounded.
inline double product_error(const Bounded& a, const Bounded& b) {
  return (a.error == 0 ? 0 : a.error * b.largest()) +
         (b.error == 0 ? 0 : std::abs(a.value) * b.error);
}

inline Bounded operator-(const Bounded& a) { return {-a.value, a.error}; }
inline Bounded operator+(const Bounded& a, const Bounded& b) {
  return rounded(a.value + b.value, a.error + b.error);
}
inline Bounded operator-(const Bounded& a, const Bounded& b) { return a + -b; }
inline Bounded operator*(const Bounded& a, const Bounded& b) {
  if (a.is_exactly(1)) return b;
  if (b.is_exactly(1)) return a;
  return rounded(a.value * b.value, product_error(a, b));
}
inline Bounded operator/(const Bounded& a, const Bounded& b) {
  if (b.is_exactly(1)) return a;
  const double value = a.value / b.value, smallest = std::abs(b.value) - b.error;
  if (!(smallest > 0)) return {value, Bounded::kUnknown};
  return rounded(value, (a.error + std::abs(value) * b.error) / smallest);
}

/// Of the values. What follows from a comparison must be right for both outcomes if the errors
/// allow both.
inline bool operator>(const Bounded& a, const Bounded& b) { return a.value > b.value; }
inline bool operator<(const Bounded& a, const Bounded& b) { return a.value < b.value; }

/// sum += a·b, one of `num_terms` such terms of a sum in any order.
inline void add_product(Bounded& sum, const Bounded& a, const Bounded& b, int64_t num_terms) {
  const double terms = a.largest() * b.largest();
  sum = {
      sum.value + a.value * b.value,
      sum.error + product_error(a, b) + bounded_gamma(num_terms + 2) * terms + kBoundedUnderflow};
}

/// max(|f(a - e) - f(a)|, |f(a + e) - f(a)|): how far a monotone f can be off.
template <typename Function>
double monotone_error(const Bounded& a, Function f) {
  const double value = f(a.value);
  return std::fmax(std::abs(f(a.value - a.error) - value), std::abs(f(a.value + a.error) - value));
}

inline Bounded exp(const Bounded& a) {
  const auto f = [](double v) { return std::exp(v); };
  const Bounded e = rounded(f(a.value), monotone_error(a, f), kBoundedLibm);
  return {e.value, e.error + 0x1p-126};  // subnormal results may be 0
}

/// Angles: the functions change no faster than their argument, by at most 2.
inline Bounded cos(const Bounded& a) {
  return {std::cos(a.value), std::fmin(a.error, 2) + kBoundedLibm};
}
inline Bounded sin(const Bounded& a) {
  return {std::sin(a.value), std::fmin(a.error, 2) + kBoundedLibm};
}

/// base > 0. base^0 is 1 everywhere.
inline Bounded pow(const Bounded& base, const Bounded& exponent) {
  if (exponent.value == 0 && exponent.error <= kBoundedUnderflow) return Bounded(1);
  const double value = std::pow(base.value, exponent.value);
  const Bounded log_base(std::log(base.value), base.error / (base.value - base.error));
  const double log_error = product_error(log_base, exponent);
  return rounded(value, value * std::expm1(log_error), kBoundedLibm);
}

/// 1 / sqrt(a), at once or in two steps; a > 0.
inline Bounded inverse_sqrt(const Bounded& a) {
  const auto f = [](double v) { return v > 0 ? 1 / std::sqrt(v) : Bounded::kUnknown; };
  return rounded(f(a.value), monotone_error(a, f), kBoundedLibm);
}

}  // namespace loratory::reference
