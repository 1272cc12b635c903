#include "reference/model/traced_kernels.hpp"

#include <algorithm>
#include <limits>

namespace loratory::reference {

template <>
Traced inverse_root(std::span<const Traced> x, const Traced& mean) {
  const Traced root = inverse_sqrt(mean);
  Tape::current().add_norm(x, mean, root);
  return root;
}

Vector<Traced> product(const Matrix<float>& w, const Vector<Traced>& x) {
  const double gamma = traced_gamma(w.cols() + 2);
  Vector<double> value = Vector<double>::Zero(w.rows()), terms = value;
  for (Eigen::Index k = 0; k < w.cols(); ++k) {
    const Vector<double> column = w.col(k).cast<double>() * x(k).value;
    value += column;
    terms += column.cwiseAbs();
  }
  Tape& tape = Tape::current();
  Vector<Traced> out(w.rows());
  for (Eigen::Index n = 0; n < out.size(); ++n) {
    for (Eigen::Index k = 0; k < w.cols(); ++k) tape.add_edge(x(k).node, double(w(n, k)));
    const double underflow = double(w.cols()) * kTracedUnderflow;
    out(n) = {value(n), tape.add(gamma * terms(n) + underflow)};
  }
  return out;
}

Traced add_bias(const Traced& y, float bias, int64_t num_terms) {
  const double value = y.value + double(bias);
  const double as_first_term = traced_gamma(num_terms) * std::abs(double(bias));
  return traced(value, traced_unit() * std::abs(value) + as_first_term, y, 1);
}

void softmax(std::span<Traced> values) {
  double largest = values[0].value, sum = 0;
  for (const Traced& v : values) largest = std::max(largest, v.value);
  std::vector<Traced> scores;  // less the largest, which is common to all and cancels
  std::vector<double> p;
  for (const Traced& v : values) {
    const double below = v.value - largest;
    scores.push_back(traced(below, traced_unit() * std::abs(below), v, 1));
    p.push_back(std::exp(below));
    sum += p.back();
  }
  for (double& v : p) v /= sum;
  const double gamma = traced_gamma(int64_t(values.size()) + 24);
  Tape& tape = Tape::current();
  for (size_t i = 0; i < p.size(); ++i) {
    for (size_t j = 0; j < p.size(); ++j) {
      tape.add_edge(scores[j].node, p[i] * ((i == j ? 1 : 0) - p[j]));
    }
    values[i] = {p[i], tape.add(gamma * p[i] + double(p.size() + 1) * 0x1p-125)};
  }
}

Traced stored(Dtype dtype, const Traced& v) {
  const bool is_kept = v.node < 0 && round_to(dtype, v.value) == v.value;
  if (dtype == Dtype::f32 || is_kept) return v;
  return traced(v.value, unit_roundoff(dtype) * std::abs(v.value) + underflow_unit(dtype), v, 1);
}

Traced stored_in_two(Dtype dtype, const Traced& v) {
  if (dtype == Dtype::f32) return v;
  const double u = unit_roundoff(dtype);
  return traced(v.value, u * u / 2 * std::abs(v.value) + underflow_unit(dtype), v, 1);
}

Traced sigmoid(const Traced& x) {
  const double value = 1 / (1 + std::exp(-x.value));
  return traced(value, 11 * traced_unit() * value + 0x1p-120, x, value * (1 - value));
}

Traced silu(const Traced& x) {
  const double e = std::exp(-x.value), value = x.value / (1 + e), sigmoid = 1 / (1 + e);
  const double slope = sigmoid * (1 + x.value * (1 - sigmoid));
  return traced(value, 12 * traced_unit() * std::abs(value) + 0x1p-120, x, slope);
}

Traced clamp_to_unit(const Traced& v) {
  if (v.value >= 0 && v.value <= 1) return v;
  return Traced(v.value < 0 ? 0 : 1);
}

namespace {

// Does every implementation choose the same experts?
bool choice_is_sure(const Vector<Traced>& p, const std::vector<int32_t>& chosen) {
  std::vector<int32_t> nodes;
  for (const Traced& v : p) nodes.push_back(v.node);
  const std::vector<double> errors = Tape::current().errors(nodes);
  double lowest = std::numeric_limits<double>::infinity();
  for (const int32_t e : chosen) lowest = std::min(lowest, p(e).value - errors[size_t(e)]);
  for (int32_t e = 0; e < int32_t(p.size()); ++e) {
    if (std::find(chosen.begin(), chosen.end(), e) != chosen.end()) continue;
    if (!(p(e).value + errors[size_t(e)] < lowest)) return false;
  }
  return true;
}

}  // namespace

Routing<Traced> route(const Vector<Traced>& logits, int64_t k, bool norm_topk_prob) {
  Vector<Traced> p = logits;
  softmax(std::span<Traced>(p.data(), size_t(p.size())));
  Routing<Traced> out{largest_indices(p, k), {}};
  Traced sum;
  for (const int32_t e : out.experts) add_product(sum, Traced(1), p(e), k);
  const bool is_sure = choice_is_sure(p, out.experts);
  for (const int32_t e : out.experts) {
    const Traced weight = norm_topk_prob ? p(e) / sum : p(e);
    const double open = is_sure ? 0 : std::numeric_limits<double>::infinity();
    out.weights.push_back(traced(weight.value, open, weight, 1));
  }
  return out;
}

}  // namespace loratory::reference
