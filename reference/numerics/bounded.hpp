#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "reference/numerics/dtype.hpp"

namespace loratory::reference {

struct Traced;

/// A number in float64, and how far from it any implementation of the same formula can be that
/// computes in float32, to first order: whatever its order of summation, with or without fused
/// multiply-add, its elementary functions within 4 ulp. Infinite where nothing can be said.
struct Bounded {
  double value = 0;
  double error = 0;
};

/// What one float32 operation can lose below the normal range.
inline constexpr double kTracedUnderflow = 0x1p-149;

/// What a computation did: for each number the numbers it came from, the derivatives with respect
/// to these, and the error that its own operation can add (its local error). To first order the
/// error of a result is at most the sum over all numbers of |d result / d number| · local error;
/// one walk backwards gives all derivatives.
///
/// Unlike intervals this keeps what rounding errors have in common: a bound carried forward
/// through a model grows by the row sums of |W| in every layer, until nothing is known.
/// Derivation: docs/error_bounds.md, "A whole model".   Cost: memory O(operations).
class Tape {
 public:
  struct Edge {
    int32_t from;
    double derivative;
  };

  /// Of an implementation whose numbers in memory are `stored`. In 16 bits it computes on tensor
  /// cores and with approximate functions: docs/error_bounds.md, "A whole model in 16 bits".
  explicit Tape(Dtype stored = Dtype::f32)
      : unit_((stored == Dtype::f32 ? 0x1p-24 : 0x1p-21) * (1 + 0x1p-20)) {}

  /// What an operation loses, float64's own roundings included.
  double unit() const { return unit_; }

  /// A number that follows from the edges added since the last call.
  int32_t add(double local_error);
  /// Nothing if `from` is exact (-1).
  void add_edge(int32_t from, double derivative) {
    if (from >= 0) edges_.push_back({from, derivative});
  }
  /// Errors of `numbers`, in order; 0 for -1. Cost O(operations) for each 16 of them.
  std::vector<double> errors(std::span<const int32_t> numbers) const;

  /// `mean` is that of the squares of all `numbers`, at most plus a constant. `root` is made from
  /// its root.
  void add_norm(std::span<const Traced> numbers, const Traced& mean, const Traced& root);
  /// Adds to the error of each such mean what the first order leaves out, the mean of the squared
  /// errors of its numbers. Where the mean is then off by more than `share` of itself the first
  /// order says nothing about its root, and the root's error becomes unknown. Once, before the
  /// errors of what follows from norms. Cost as errors() of all numbers that a norm divides.
  void finish_norms(double share);

  /// The tape that Traced numbers of this thread write to.
  static Tape& current();

  /// Makes a tape current for its lifetime.
  class Scope {
   public:
    explicit Scope(Tape& tape);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Tape* before_;
  };

 private:
  struct Norm {
    std::vector<int32_t> numbers;
    int32_t mean;
    double mean_value;
    int32_t root;
  };

  struct Walk;
  void errors_of_some(std::span<const int32_t> numbers, Walk& walk, std::span<double> out) const;
  std::span<const Norm> independent_norms(size_t first) const;
  void finish(const Norm& norm, std::span<const double> errors, double share);

  double unit_;
  std::vector<Norm> norms_;  // ascending by mean
  std::vector<Edge> edges_;
  std::vector<size_t> ends_;  // of the edges of each number
  std::vector<double> local_errors_;
};

/// Of the current tape.
inline double traced_unit() { return Tape::current().unit(); }
/// 4 ulp of an elementary function.
inline double traced_libm() { return 8 * traced_unit(); }
/// n·u / (1 - n·u): n roundings in any order.
inline double traced_gamma(int64_t num_roundings) {
  const double nu = double(num_roundings) * traced_unit();
  return nu / (1 - nu);
}

/// A float64 that leaves a trace on the current tape. Its operations are those of float64.
struct Traced {
  double value = 0;
  int32_t node = -1;  ///< -1: every implementation has exactly this number

  Traced() = default;
  explicit Traced(double exact) : value(exact) {}
  Traced(double v, int32_t n) : value(v), node(n) {}

  bool is_exactly(double v) const { return node < 0 && value == v; }
};

/// f(a) with its derivative.
inline Traced traced(double value, double local_error, const Traced& a, double da) {
  Tape& tape = Tape::current();
  tape.add_edge(a.node, da);
  return {value, tape.add(local_error + kTracedUnderflow)};
}
inline Traced traced(double value, double local_error, const Traced& a, double da, const Traced& b,
                     double db) {
  Tape::current().add_edge(a.node, da);
  return traced(value, local_error, b, db);
}

inline Traced operator-(const Traced& a) {
  if (a.node < 0) return Traced(-a.value);
  Tape::current().add_edge(a.node, -1);
  return {-a.value, Tape::current().add(0)};
}
inline Traced operator+(const Traced& a, const Traced& b) {
  const double value = a.value + b.value;
  return traced(value, traced_unit() * std::abs(value), a, 1, b, 1);
}
inline Traced operator-(const Traced& a, const Traced& b) {
  const double value = a.value - b.value;
  return traced(value, traced_unit() * std::abs(value), a, 1, b, -1);
}
inline Traced operator*(const Traced& a, const Traced& b) {
  if (a.is_exactly(1)) return b;
  if (b.is_exactly(1)) return a;
  const double value = a.value * b.value;
  return traced(value, traced_unit() * std::abs(value), a, b.value, b, a.value);
}
inline Traced operator/(const Traced& a, const Traced& b) {
  if (b.is_exactly(1)) return a;
  const double value = a.value / b.value;
  return traced(value, traced_unit() * std::abs(value), a, 1 / b.value, b, -value / b.value);
}
inline bool operator>(const Traced& a, const Traced& b) { return a.value > b.value; }
inline bool operator<(const Traced& a, const Traced& b) { return a.value < b.value; }

/// The error of an angle's cosine does not shrink with it: near 0 the argument was reduced.
inline Traced cos(const Traced& a) {
  return traced(std::cos(a.value), traced_libm(), a, -std::sin(a.value));
}
inline Traced sin(const Traced& a) {
  return traced(std::sin(a.value), traced_libm(), a, std::cos(a.value));
}
/// base > 0. base^0 is 1 everywhere.
inline Traced pow(const Traced& base, const Traced& exponent) {
  if (exponent.value == 0) return Traced(1);
  const double value = std::pow(base.value, exponent.value);
  return traced(value, traced_libm() * value, base, exponent.value * value / base.value, exponent,
                value * std::log(base.value));
}

/// 1 / sqrt(a), at once or in two steps.
inline Traced inverse_sqrt(const Traced& a) {
  const double value = 1 / std::sqrt(a.value);
  return traced(value, traced_libm() * value, a, -0.5 * value / a.value);
}

/// sum += a·b, one of `num_terms` such terms of a sum in any order.
inline void add_product(Traced& sum, const Traced& a, const Traced& b, int64_t num_terms) {
  const double term = a.value * b.value;
  Tape::current().add_edge(sum.node, 1);
  sum = traced(sum.value + term, traced_gamma(num_terms + 2) * std::abs(term), a, b.value, b,
               a.value);
}

}  // namespace loratory::reference
