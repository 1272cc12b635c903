#include "scheduler_sim/cost/curve.hpp"

#include <algorithm>
#include <utility>

#include "reference/base/check.hpp"

namespace loratory::sim {
namespace {

// A line through falling last points must not reach zero.
double on_line(double low, double high, double weight) {
  const double value = low + weight * (high - low);
  return weight <= 1 ? value : std::max(value, high);
}

}  // namespace

AxisPlace place_on(std::span<const double> axis, double x) {
  if (axis.size() < 2 || x <= axis.front()) return {};
  size_t low = 0, high = axis.size() - 1;
  while (high - low > 1) {
    const size_t middle = (low + high) / 2;
    (axis[middle] <= x ? low : high) = middle;
  }
  return {low, (x - axis[low]) / (axis[low + 1] - axis[low])};
}

Curve::Curve(std::vector<double> axis, std::vector<double> values)
    : axis_(std::move(axis)), values_(std::move(values)) {
  LORATORY_ASSERT(!axis_.empty() && axis_.size() == values_.size(), "a curve has points");
  LORATORY_ASSERT(axis_.size() <= 256, "an index of a byte finds every point");
  LORATORY_ASSERT(std::ranges::all_of(axis_, [](double x) { return x == double(int64_t(x)); }),
                  "the places are whole numbers");
  for (size_t i = 0; i + 1 < axis_.size(); ++i) {
    slopes_.push_back((values_[i + 1] - values_[i]) / (axis_[i + 1] - axis_[i]));
  }
  if (slopes_.empty()) slopes_.push_back(0);
  constexpr int kIndexed = 1024;
  for (int x = 0; x < kIndexed; ++x) index_.push_back(uint8_t(place_on(axis_, x).low));
}

size_t Curve::index_of(double x) const {
  const auto whole = int64_t(x);
  if (whole >= 0 && size_t(whole) < index_.size()) {
    return index_[size_t(whole)];
  }
  return place_on(axis_, x).low;
}

double Curve::operator()(double x) const {
  if (x <= axis_.front()) return values_.front();
  if (x > axis_.back()) {
    return values_.back() + std::max(slopes_.back(), 0.0) * (x - axis_.back());
  }
  const size_t i = index_of(x);
  return i + 1 == axis_.size() ? values_[i] : values_[i] + slopes_[i] * (x - axis_[i]);
}

Surface::Surface(std::vector<double> rows, std::vector<double> columns, std::vector<double> values)
    : rows_(std::move(rows)), columns_(std::move(columns)), values_(std::move(values)) {
  LORATORY_ASSERT(!values_.empty() && values_.size() == rows_.size() * columns_.size(),
                  "a surface has a value for each row and column");
}

double Surface::operator()(double row, double column) const {
  const AxisPlace r = place_on(rows_, row), c = place_on(columns_, column);
  const auto along = [&](size_t i) {
    const double* values = values_.data() + i * columns_.size() + c.low;
    return c.weight == 0 ? values[0] : on_line(values[0], values[1], c.weight);
  };
  return r.weight == 0 ? along(r.low) : on_line(along(r.low), along(r.low + 1), r.weight);
}

}  // namespace loratory::sim
