#pragma once

#include <string>
#include <vector>

namespace loratory::sim::report {

/// Maps values to coordinates, linearly or by logarithm.
class Scale {
 public:
  /// A logarithmic scale needs 0 < lo; lo < hi is made true by widening.
  Scale(double lo, double hi, double from, double to, bool log);

  double operator()(double value) const;  ///< clamped to the ends
  bool contains(double value) const { return value >= lo_ && value <= hi_; }
  double lo() const { return lo_; }
  double hi() const { return hi_; }
  bool log() const { return log_; }

 private:
  double lo_, hi_, from_, to_;
  bool log_;
};

/// Round numbers in [lo, hi], about `count` of them: 1, 2 or 5 times a power of ten; decades (and
/// 1, 2, 5 within them when there is room) on a logarithmic scale of a decade or more.
std::vector<double> round_ticks(const Scale& scale, int count);

/// The first tick at or above `value` on a scale from 0 with about five ticks; 1 for value <= 0.
double round_up(double value);

}  // namespace loratory::sim::report
