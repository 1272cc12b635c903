#include "scheduler_sim/report/html/scatter.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/base/check.hpp"
#include "scheduler_sim/report/html/scale.hpp"
#include "scheduler_sim/report/html/svg.hpp"

namespace loratory::sim::report {
namespace {

constexpr Box kScatterPlot{64, 30, kChartWidth - 14, kScatterHeight - 46};
constexpr double kMargin = 1.15, kTolerance = 1.1;
constexpr double kHoverRadius = 5;
constexpr int kTicks = 4;  // twice as many have room for their names

struct Scales {
  Scale x, y;
  Point at(const Point& p) const { return {x(p.x), y(p.y)}; }
};

Scales scales_of(const Scatter& scatter) {
  double lo = scatter.points.front().at.x, hi = lo;
  for (const ScatterPoint& p : scatter.points) {
    lo = std::min({lo, p.at.x, p.at.y});
    hi = std::max({hi, p.at.x, p.at.y});
  }
  lo /= kMargin;
  hi *= kMargin;
  return {Scale(lo, hi, kScatterPlot.left, kScatterPlot.right, true),
          Scale(lo, hi, kScatterPlot.bottom, kScatterPlot.top, true)};
}

std::string draw_axes(const Scatter& scatter, const Scales& scales) {
  std::string svg = text({0, 14}, "name", fmt::format("predicted, {}", scatter.unit));
  for (const double tick : round_ticks(scales.y, kTicks)) {
    const double x = scales.x(tick), y = scales.y(tick);
    svg += line({kScatterPlot.left, y}, {kScatterPlot.right, y}, "grid");
    svg += line({x, kScatterPlot.top}, {x, kScatterPlot.bottom}, "grid");
    svg += text({kScatterPlot.left - 8, y + 4}, "tick end", scatter.format(tick));
    svg += text({x, kScatterPlot.bottom + 18}, "tick mid", scatter.format(tick));
  }
  svg += line({kScatterPlot.left, kScatterPlot.bottom}, {kScatterPlot.right, kScatterPlot.bottom},
              "axis");
  return svg + text({(kScatterPlot.left + kScatterPlot.right) / 2, kScatterHeight - 8}, "name mid",
                    fmt::format("measured, {}", scatter.unit));
}

// y = factor * x from edge to edge.
std::string draw_diagonal(const Scales& scales, double factor, std::string_view classes) {
  const double lo = scales.x.lo(), hi = scales.x.hi();
  const double from = std::max(lo, lo / factor), to = std::min(hi, hi / factor);
  return line(scales.at({from, from * factor}), scales.at({to, to * factor}), classes);
}

std::string draw_names(const Scatter& scatter) {
  std::string svg;
  double y = kScatterPlot.top + 14;
  for (size_t i = 0; i < scatter.names.size(); ++i, y += 16) {
    svg += marker({kScatterPlot.left + 12, y - 4}, int(i) + 1);
    svg += text({kScatterPlot.left + 22, y}, fmt::format("label t{}", i + 1), scatter.names[i]);
  }
  return svg;
}

}  // namespace

std::string draw(const Scatter& scatter) {
  LORATORY_ASSERT(!scatter.points.empty() && scatter.format != nullptr, "something to draw");
  const Scales scales = scales_of(scatter);
  std::string svg = draw_axes(scatter, scales) + draw_diagonal(scales, 1, "axis") +
                    draw_diagonal(scales, kTolerance, "grid") +
                    draw_diagonal(scales, 1 / kTolerance, "grid");
  for (const ScatterPoint& p : scatter.points) svg += marker(scales.at(p.at), p.style);
  svg += draw_names(scatter);
  for (const ScatterPoint& p : scatter.points) {
    const Point at = scales.at(p.at);
    svg += hover_area(
        {at.x - kHoverRadius, at.y - kHoverRadius, at.x + kHoverRadius, at.y + kHoverRadius},
        p.tip);
  }
  return svg;
}

}  // namespace loratory::sim::report
