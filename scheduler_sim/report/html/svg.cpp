#include "scheduler_sim/report/html/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "reference/base/check.hpp"
#include "scheduler_sim/report/html/markup.hpp"

namespace loratory::sim::report {
namespace {

std::string coordinates(const std::vector<Point>& points) {
  std::string list;
  for (const Point& p : points) list += coordinate(p.x) + "," + coordinate(p.y) + " ";
  if (!list.empty()) list.pop_back();
  return list;
}

}  // namespace

std::string coordinate(double value) {
  LORATORY_ASSERT(std::isfinite(value), "charts leave out what is not finite");
  const int64_t tenths = std::llround(value * 10);
  if (tenths % 10 == 0) return fmt::format("{}", tenths / 10);
  return fmt::format("{}{}.{}", tenths < 0 ? "-" : "", std::abs(tenths) / 10,
                     std::abs(tenths) % 10);
}

std::string text(Point at, std::string_view classes, std::string_view words) {
  return fmt::format("<text x=\"{}\" y=\"{}\" class=\"{}\">{}</text>\n", coordinate(at.x),
                     coordinate(at.y), classes, html_text(words));
}

std::string line(Point from, Point to, std::string_view classes) {
  return fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{}\"/>\n",
                     coordinate(from.x), coordinate(from.y), coordinate(to.x), coordinate(to.y),
                     classes);
}

std::string rect(const Box& box, std::string_view classes) {
  return fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"{}\"/>\n",
                     coordinate(box.left), coordinate(box.top), coordinate(box.width()),
                     coordinate(box.height()), classes);
}

std::string polyline(const std::vector<Point>& points, std::string_view classes) {
  return fmt::format("<polyline points=\"{}\" class=\"{}\"/>\n", coordinates(points), classes);
}

std::string polygon(const std::vector<Point>& points, std::string_view classes) {
  return fmt::format("<polygon points=\"{}\" class=\"{}\"/>\n", coordinates(points), classes);
}

std::string marker(Point at, int style) {
  const std::string classes = fmt::format("mark f{}", style);
  const auto shape = [&](std::initializer_list<Point> offsets) {
    std::vector<Point> points;
    for (const Point& p : offsets) points.push_back({at.x + p.x, at.y + p.y});
    return polygon(points, classes);
  };
  switch ((style - 1) % 4) {
    case 0:
      return fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"3.6\" class=\"{}\"/>\n", coordinate(at.x),
                         coordinate(at.y), classes);
    case 1:
      return shape({{-3.3, -3.3}, {3.3, -3.3}, {3.3, 3.3}, {-3.3, 3.3}});
    case 2:
      return shape({{0, -4.2}, {4.2, 3.2}, {-4.2, 3.2}});
    default:
      return shape({{0, -4.6}, {4.6, 0}, {0, 4.6}, {-4.6, 0}});
  }
}

std::string hover_area(const Box& box, std::string_view tip) {
  return fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"hover\" data-tip=\"{}\"/>\n",
      coordinate(box.left), coordinate(box.top), coordinate(box.width()), coordinate(box.height()),
      html_text(tip));
}

std::vector<double> spread(const std::vector<double>& wanted, double gap, double top,
                           double bottom) {
  std::vector<size_t> order(wanted.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return wanted[a] < wanted[b]; });
  std::vector<double> placed = wanted;
  double floor = top;
  for (const size_t i : order) floor = (placed[i] = std::max(placed[i], floor)) + gap;
  double ceiling = bottom;
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    ceiling = (placed[*i] = std::min(placed[*i], ceiling)) - gap;
  }
  return placed;
}

}  // namespace loratory::sim::report
