#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "reference/numerics/dtype.hpp"
#include "reference/numerics/matrix.hpp"

// What a forward pass is made of besides products with weights and RoPE. Every sum is ascending,
// every operation rounded to Real once; Bounded has overloads of its own where going through its
// operators would say less (numerics/bounded.hpp).

namespace loratory::reference {

/// A number of the formula that is not a float: an implementation may round it to one.
template <typename Real>
Real constant(double value) {
  return Real(value);
}

/// out[n] = sum_k w(n, k)·x(k), k ascending from +0.
template <typename Real>
Vector<Real> product(const Matrix<float>& w, const Vector<Real>& x) {
  Vector<Real> out = Vector<Real>::Zero(w.rows());
  for (Eigen::Index k = 0; k < w.cols(); ++k) out += w.col(k).template cast<Real>() * x(k);
  return out;
}

/// sum += a·b, one of `num_terms` such terms.
template <typename Real>
void add_product(Real& sum, const Real& a, const Real& b, [[maybe_unused]] int64_t num_terms) {
  sum = sum + a * b;
}

/// y + bias, where y is a sum of `num_terms` products.
template <typename Real>
Real add_bias(const Real& y, float bias, [[maybe_unused]] int64_t num_terms) {
  return y + Real(bias);
}

/// sum_i a[i]·b[i], i ascending from +0.
template <typename Real>
Real inner_product(std::span<const Real> a, std::span<const Real> b) {
  Real sum(0);
  for (size_t i = 0; i < a.size(); ++i) add_product(sum, a[i], b[i], int64_t(a.size()));
  return sum;
}

/// `v` as it lies in memory between two kernels; f32: as it is.
template <typename Real>
Real stored(Dtype dtype, const Real& v) {
  return dtype == Dtype::f32 ? v : Real(round_to(dtype, double(v)));
}

/// `v` as hi + lo, two numbers of `dtype` (numeric_mode.hpp, split2); f32: as it is.
template <typename Real>
Real stored_in_two(Dtype dtype, const Real& v) {
  if (dtype == Dtype::f32) return v;
  const double hi = round_to(dtype, double(v));
  return Real(hi + round_to(dtype, double(v) - hi));
}

/// Did nothing happen between `a` and `b`?
template <typename Real>
bool is_same(const Real& a, const Real& b) {
  return a == b;
}

/// e^(v_i - max) / sum_j e^(v_j - max) in place. At least one value.
template <typename Real>
void softmax(std::span<Real> values) {
  Real largest = values[0];
  for (const Real v : values) largest = v > largest ? v : largest;
  Real sum(0);
  for (Real& v : values) {
    v = std::exp(v - largest);
    sum += v;
  }
  for (Real& v : values) v /= sum;
}

/// 1 / sqrt(mean), the mean of the squares of `x` and a constant.
template <typename Real>
Real inverse_root([[maybe_unused]] std::span<const Real> x, const Real& mean) {
  return Real(1) / std::sqrt(mean);
}

/// 1 / sqrt(mean of x² + eps)
template <typename Real>
Real inverse_rms(std::span<const Real> x, double eps) {
  const Real mean = inner_product(x, x) / Real(double(x.size()));
  return inverse_root(x, Real(mean + constant<Real>(eps)));
}

/// x_i · inverse_rms(x) · weight_i in place.
/// Source: Zhang and Sennrich 2019; transformers, LlamaRMSNorm.
template <typename Real>
void rms_norm(std::span<Real> x, const Vector<float>& weight, double eps) {
  const Real scale = inverse_rms(std::span<const Real>(x), eps);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = Real(weight(Eigen::Index(i))) * (x[i] * scale);
  }
}

/// 1 / (1 + e^-x)
template <typename Real>
Real sigmoid(Real x) {
  return Real(1) / (Real(1) + std::exp(-x));
}

/// x / (1 + e^-x)
template <typename Real>
Real silu(Real x) {
  return x / (Real(1) + std::exp(-x));
}

}  // namespace loratory::reference
