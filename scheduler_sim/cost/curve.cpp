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
}

double Curve::operator()(double x) const {
  const AxisPlace place = place_on(axis_, x);
  if (place.weight == 0) return values_[place.low];
  return on_line(values_[place.low], values_[place.low + 1], place.weight);
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
