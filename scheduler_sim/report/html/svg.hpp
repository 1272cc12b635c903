#pragma once

#include <string>
#include <string_view>
#include <vector>

/// The few drawing primitives that the charts are made of. Colours and widths are CSS classes, so
/// that one drawing serves the light and the dark page.
namespace loratory::sim::report {

struct Point {
  double x = 0;
  double y = 0;
};

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;
  double width() const { return right - left; }
  double height() const { return bottom - top; }
};

/// One decimal, no trailing ".0": a tenth of a pixel is finer than any screen.
std::string coordinate(double value);

std::string text(Point at, std::string_view classes, std::string_view words);  ///< escapes `words`
std::string line(Point from, Point to, std::string_view classes);
std::string rect(const Box& box, std::string_view classes);
std::string polyline(const std::vector<Point>& points, std::string_view classes);
std::string polygon(const std::vector<Point>& points, std::string_view classes);

/// Circle, square, triangle, diamond for styles 1..4 (then again), so that lines differ without
/// colour.
std::string marker(Point at, int style);

/// An invisible area that shows `tip` under the pointer.
std::string hover_area(const Box& box, std::string_view tip);

/// Moves labels apart vertically: returned y's keep the order of `wanted`, are `gap` apart at least
/// and stay inside [top, bottom] when that is possible.
std::vector<double> spread(const std::vector<double>& wanted, double gap, double top,
                           double bottom);

}  // namespace loratory::sim::report
