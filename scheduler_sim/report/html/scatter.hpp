#pragma once

#include <string>
#include <vector>

#include "scheduler_sim/report/html/line_chart.hpp"

namespace loratory::sim::report {

struct ScatterPoint {
  Point at;  ///< both > 0
  int style = 1;
  std::string tip;
};

/// Predictions over measurements, both on one logarithmic scale: on the diagonal they agree.
struct Scatter {
  std::string unit;  ///< "tok/s"
  NumberFormat format = nullptr;
  std::vector<ScatterPoint> points;
  std::vector<std::string> names;  ///< of styles 1, 2, ...
};

inline constexpr double kScatterHeight = 420;

/// SVG markup of kChartWidth x kScatterHeight, with lines at +10 and -10 %. Not without points.
std::string draw(const Scatter& scatter);

}  // namespace loratory::sim::report
