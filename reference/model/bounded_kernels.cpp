#include "reference/model/bounded_kernels.hpp"

#include <algorithm>

namespace loratory::reference {

Vector<Bounded> product(const Matrix<float>& w, const Vector<Bounded>& x) {
  const double gamma = bounded_gamma(w.cols() + 2);
  Vector<double> value = Vector<double>::Zero(w.rows()), error = value;
  for (Eigen::Index k = 0; k < w.cols(); ++k) {
    const Vector<double> column = w.col(k).cast<double>();
    value += column * x(k).value;
    error += column.cwiseAbs() * (x(k).error + gamma * x(k).largest());
  }
  Vector<Bounded> out(w.rows());
  for (Eigen::Index n = 0; n < out.size(); ++n) {
    out(n) = {value(n), error(n) + double(w.cols()) * kBoundedUnderflow};
  }
  return out;
}

Bounded add_bias(const Bounded& y, float bias, int64_t num_terms) {
  const Bounded sum = y + Bounded(double(bias));
  return {sum.value, sum.error + bounded_gamma(num_terms) * std::abs(double(bias))};
}

namespace {

/// How much an implementation's score can differ from `score` up to a shift common to all.
double score_error(const Bounded& score, double largest, double largest_error) {
  const double distance = std::abs(score.value - largest) + score.error + largest_error;
  return score.error + kBoundedUnit * distance;
}

}  // namespace

void softmax(std::span<Bounded> values) {
  double largest = values[0].value, largest_error = 0;
  for (const Bounded& v : values) {
    largest = std::max(largest, v.value);
    largest_error = std::max(largest_error, v.error);
  }
  double sum = 0;
  for (const Bounded& v : values) sum += std::exp(v.value - largest);
  std::vector<double> p, above, below;  // probabilities; times e^d and e^-d
  double sum_above = 0, sum_below = 0;
  for (const Bounded& v : values) {
    const double d = score_error(v, largest, largest_error);
    p.push_back(std::exp(v.value - largest) / sum);
    above.push_back(p.back() * std::exp(d));
    below.push_back(p.back() * std::exp(-d));
    sum_above += above.back();
    sum_below += below.back();
  }
  const double gamma = bounded_gamma(int64_t(values.size()) + 24);
  for (size_t i = 0; i < values.size(); ++i) {
    const double others_below = std::max(0.0, sum_below - below[i]);
    const double others_above = std::max(0.0, sum_above - above[i]);
    const double high = std::isinf(above[i]) ? 1 : above[i] / (above[i] + others_below);
    const double low = below[i] / (below[i] + others_above);
    const double moved =
        std::isnan(high - low) ? Bounded::kUnknown : std::max(high - p[i], p[i] - low);
    values[i] = {p[i], moved + gamma * (p[i] + moved) + double(values.size() + 1) * 0x1p-125};
  }
}

Bounded silu(const Bounded& x) {
  const double sigmoid = 1 / (1 + std::exp(-x.value));
  const double value = x.value / (1 + std::exp(-x.value));
  const double slope = std::abs(sigmoid * (1 + x.value * (1 - sigmoid)));
  const double steepest = std::min(1.1, slope + 0.5 * x.error);
  const double moved = x.error == 0 ? 0 : steepest * x.error;
  return {value, moved + 12 * kBoundedUnit * (std::abs(value) + moved) + 0x1p-120};
}

Bounded clamp_to_unit(const Bounded& v) {
  const double value = std::min(std::max(v.value, 0.0), 1.0);
  const bool is_sure = v.value - v.error >= 1 || v.value + v.error <= 0;
  return {value, is_sure ? 0 : std::min(v.error, 1.0)};
}

namespace {

/// Does every implementation choose the same experts?
bool choice_is_sure(const Vector<Bounded>& p, const std::vector<int32_t>& chosen) {
  double lowest = Bounded::kUnknown;
  for (const int32_t e : chosen) lowest = std::min(lowest, p(e).value - p(e).error);
  for (int32_t e = 0; e < int32_t(p.size()); ++e) {
    if (std::find(chosen.begin(), chosen.end(), e) != chosen.end()) continue;
    if (!(p(e).value + p(e).error < lowest)) return false;
  }
  return true;
}

}  // namespace

Routing<Bounded> route(const Vector<Bounded>& logits, int64_t k, bool norm_topk_prob) {
  Vector<Bounded> p = logits;
  softmax(std::span<Bounded>(p.data(), size_t(p.size())));
  Routing<Bounded> out{largest_indices(p, k), {}};
  Bounded sum;
  for (const int32_t e : out.experts) add_product(sum, Bounded(1), p(e), k);
  const bool is_sure = choice_is_sure(p, out.experts);
  for (const int32_t e : out.experts) {
    out.weights.push_back(norm_topk_prob ? p(e) / sum : p(e));
    if (!is_sure) out.weights.back().error = Bounded::kUnknown;
  }
  return out;
}

}  // namespace loratory::reference
