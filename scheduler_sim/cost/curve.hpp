#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace loratory::sim {

/// Where a number lies on an ascending axis: between `low` and `low + 1`, `weight` of the way. A
/// number beyond the last place has a weight above 1, so that a line goes on as it was; one before
/// the first place has weight 0.
struct AxisPlace {
  size_t low = 0;
  double weight = 0;
};

/// Requires at least one place. O(log size).
AxisPlace place_on(std::span<const double> axis, double x);

/// A function that is linear between points, constant before the first and, beyond the last, goes
/// on with the last slope, up if at all. O(1) up to 1,024, else O(log points); IEEE + - * / alone.
class Curve {
 public:
  Curve() = default;
  /// Requires as many values as places, at least one.
  Curve(std::vector<double> axis, std::vector<double> values);
  double operator()(double x) const;
  std::span<const double> axis() const { return axis_; }
  std::span<const double> values() const { return values_; }

 private:
  size_t index_of(double x) const;

  std::vector<double> axis_, values_, slopes_;
  std::vector<uint8_t> index_;  // of the point at or before each whole number
};

/// The same of two numbers: linear in each.
class Surface {
 public:
  Surface() = default;
  /// values: columns.size() for each of rows.
  Surface(std::vector<double> rows, std::vector<double> columns, std::vector<double> values);
  double operator()(double row, double column) const;

 private:
  std::vector<double> rows_, columns_, values_;
};

}  // namespace loratory::sim
