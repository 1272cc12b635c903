#include "scheduler_sim/report/html/line_chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "reference/base/check.hpp"

namespace loratory::sim::report {
namespace {

constexpr double kLeft = 58;
constexpr double kTop = 34;
constexpr double kBottom = 46;
constexpr double kRightWithLabels = 84;
constexpr double kRight = 18;
constexpr double kCharWidth = 7;  // of a tick label, about
constexpr size_t kMaxMarkers = 40;

struct Range {
  double lo = std::numeric_limits<double>::infinity();
  double hi = -std::numeric_limits<double>::infinity();
  void add(double value) {
    lo = std::min(lo, value);
    hi = std::max(hi, value);
  }
};

bool is_finite(const Point& p) { return std::isfinite(p.x) && std::isfinite(p.y); }

// A metric without a value (no request completed) is a gap, not a line to nowhere.
void drop_gaps(LineChart& chart) {
  for (Line& l : chart.lines) std::erase_if(l.points, std::not_fn(is_finite));
  std::erase_if(chart.lines, [](const Line& l) { return l.points.empty(); });
  std::erase_if(chart.band_lo, std::not_fn(is_finite));
  std::erase_if(chart.band_hi, std::not_fn(is_finite));
}

struct Plot {
  Box box;
  Scale x, y;
  Point at(const Point& p) const { return {x(p.x), y(p.y)}; }
};

Scale scale_for(const Axis& axis, Range range, double from, double to, bool from_zero) {
  if (range.lo > range.hi) range = {axis.log ? 1.0 : 0.0, axis.log ? 10.0 : 1.0};
  if (from_zero && !axis.log) range = {0, round_up(range.hi)};
  if (from_zero && axis.log) range = {range.lo / 1.3, range.hi * 1.3};
  return {axis.lo.value_or(range.lo), axis.hi.value_or(range.hi), from, to, axis.log};
}

Plot layout(const LineChart& chart) {
  Range xs;
  Range ys;
  const auto add = [&](const Point& p) {
    xs.add(p.x);
    ys.add(p.y);
  };
  for (const Line& l : chart.lines) std::for_each(l.points.begin(), l.points.end(), add);
  std::for_each(chart.band_lo.begin(), chart.band_lo.end(), add);
  std::for_each(chart.band_hi.begin(), chart.band_hi.end(), add);
  for (const Rule& rule : chart.y_rules) ys.add(rule.value);
  for (const double x : chart.misfits) xs.add(x);
  const bool labels_right = chart.labels == Labels::at_ends && chart.lines.size() > 1;
  const Box box{kLeft, kTop, kChartWidth - (labels_right ? kRightWithLabels : kRight),
                kChartHeight - kBottom};
  return {box, scale_for(chart.x, xs, box.left, box.right, false),
          scale_for(chart.y, ys, box.bottom, box.top, true)};
}

bool is_choice(const LineChart& chart, double value) {
  return std::any_of(chart.x_rules.begin(), chart.x_rules.end(),
                     [&](const Rule& rule) { return !rule.is_limit && rule.value == value; });
}

// The ticks that have room, the chosen one first of all.
std::vector<double> labelled_ticks(const LineChart& chart, const Plot& plot) {
  std::vector<double> ticks = chart.x.ticks.empty() ? round_ticks(plot.x, 6) : chart.x.ticks;
  std::stable_partition(ticks.begin(), ticks.end(), [&](double v) { return is_choice(chart, v); });
  const auto half_width = [&](double tick) {
    return kCharWidth / 2 * double(chart.x.format(tick).size() + 1);
  };
  std::vector<double> placed;
  for (const double tick : ticks) {
    const bool has_room = std::all_of(placed.begin(), placed.end(), [&](double other) {
      return std::fabs(plot.x(tick) - plot.x(other)) >= half_width(tick) + half_width(other);
    });
    if (has_room) placed.push_back(tick);
  }
  return placed;
}

std::string draw_x_axis(const LineChart& chart, const Plot& plot) {
  std::string svg =
      line({plot.box.left, plot.box.bottom}, {plot.box.right, plot.box.bottom}, "axis");
  for (const double tick : labelled_ticks(chart, plot)) {
    const double x = plot.x(tick);
    svg += line({x, plot.box.bottom}, {x, plot.box.bottom + 4}, "axis");
    svg += text({x, plot.box.bottom + 18}, is_choice(chart, tick) ? "tick mid chosen" : "tick mid",
                chart.x.format(tick));
  }
  return svg +
         text({(plot.box.left + plot.box.right) / 2, kChartHeight - 8}, "name mid", chart.x.title);
}

std::string draw_y_axis(const LineChart& chart, const Plot& plot) {
  std::string svg = text({0, 14}, "name", chart.y.title);
  const auto ticks = chart.y.ticks.empty() ? round_ticks(plot.y, 5) : chart.y.ticks;
  for (const double tick : ticks) {
    const double y = plot.y(tick);
    svg += line({plot.box.left, y}, {plot.box.right, y}, "grid");
    svg += text({plot.box.left - 8, y + 4}, "tick end", chart.y.format(tick));
  }
  return svg;
}

std::string draw_band(const LineChart& chart, const Plot& plot) {
  if (chart.band_lo.size() < 2) return "";
  std::vector<Point> outline;
  for (const Point& p : chart.band_hi) outline.push_back(plot.at(p));
  for (auto p = chart.band_lo.rbegin(); p != chart.band_lo.rend(); ++p)
    outline.push_back(plot.at(*p));
  return polygon(outline, fmt::format("band f{}", chart.band_style));
}

std::string draw_rules(const LineChart& chart, const Plot& plot) {
  std::string svg;
  for (const Rule& rule : chart.y_rules) {
    svg += line({plot.box.left, plot.y(rule.value)}, {plot.box.right, plot.y(rule.value)}, "limit");
  }
  for (const Rule& rule : chart.x_rules) {
    if (!plot.x.contains(rule.value)) continue;
    const double x = plot.x(rule.value);
    svg +=
        line({x, plot.box.top - 4}, {x, plot.box.bottom}, rule.is_limit ? "limit" : "choice-line");
  }
  return svg;
}

// Above the lines, so that no line crosses a word.
std::string draw_rule_names(const LineChart& chart, const Plot& plot) {
  std::string svg;
  for (const Rule& rule : chart.y_rules) {
    svg += text({plot.box.left + 6, plot.y(rule.value) - 5}, "limit-name", rule.label);
  }
  for (const Rule& rule : chart.x_rules) {
    if (!plot.x.contains(rule.value)) continue;
    const double x = plot.x(rule.value);
    const char* side = x < plot.box.left + 40 ? "" : x > plot.box.right - 40 ? "end" : "mid";
    svg += text({x, plot.box.top - 9},
                fmt::format("{} {}", rule.is_limit ? "limit-name" : "choice", side), rule.label);
  }
  return svg;
}

std::string draw_line(const Line& l, const Plot& plot) {
  std::vector<Point> points;
  for (const Point& p : l.points) points.push_back(plot.at(p));
  std::string svg = polyline(points, fmt::format("line s{}", l.style));
  if (l.markers && points.size() <= kMaxMarkers) {
    for (const Point& p : points) svg += marker(p, l.style);
  }
  return svg;
}

std::string draw_end_labels(const LineChart& chart, const Plot& plot) {
  std::vector<double> wanted;
  for (const Line& l : chart.lines) {
    wanted.push_back(plot.y(l.points.back().y) + 4);
  }
  const auto placed = spread(wanted, kLabelGap, plot.box.top, plot.box.bottom);
  std::string svg;
  for (size_t i = 0; i < chart.lines.size(); ++i) {
    const Line& l = chart.lines[i];
    const double x = plot.x(l.points.back().x);
    svg += text({x + 9, placed[i]}, fmt::format("label t{}", l.style), l.label);
  }
  return svg;
}

// For curves whose right ends coincide: a CDF ends at 100 %, a miss ratio at 0.
std::string draw_inner_legend(const LineChart& chart, const Plot& plot) {
  const double height = kLabelGap * double(chart.lines.size() - 1);
  double y =
      chart.labels == Labels::upper_right ? plot.box.top + 16 : plot.box.bottom - 12 - height;
  std::string svg;
  for (const Line& l : chart.lines) {
    svg += line({plot.box.right - 34, y - 4}, {plot.box.right - 6, y - 4},
                fmt::format("line s{}", l.style));
    svg += text({plot.box.right - 40, y}, fmt::format("label end t{}", l.style), l.label);
    y += kLabelGap;
  }
  return svg;
}

std::string draw_notes(const LineChart& chart, const Plot& plot) {
  std::string svg;
  for (const Note& note : chart.notes) {
    const Point at = plot.at(note.at);
    svg += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"8\" class=\"note-ring\"/>\n",
                       coordinate(at.x), coordinate(at.y));
    svg += text({at.x, at.y + 24}, "choice mid", note.label);
  }
  return svg;
}

std::string draw_misfits(const LineChart& chart, const Plot& plot) {
  std::string svg;
  for (const double value : chart.misfits) {
    const double x = plot.x(value);
    const double y = plot.box.bottom;
    svg += line({x - 4, y - 4}, {x + 4, y + 4}, "misfit") +
           line({x - 4, y + 4}, {x + 4, y - 4}, "misfit");
  }
  return svg;
}

std::string draw_hover_areas(const LineChart& chart, const Plot& plot) {
  std::string svg;
  for (size_t i = 0; i < chart.tips.size(); ++i) {
    const double x = plot.x(chart.tips[i].x);
    const double before = i > 0 ? plot.x(chart.tips[i - 1].x) : plot.box.left - (x - plot.box.left);
    const double after = i + 1 < chart.tips.size() ? plot.x(chart.tips[i + 1].x)
                                                   : plot.box.right + (plot.box.right - x);
    svg += hover_area({(before + x) / 2, plot.box.top, (x + after) / 2, plot.box.bottom},
                      chart.tips[i].text);
  }
  return svg;
}

}  // namespace

std::string draw(LineChart chart) {
  LORATORY_ASSERT(chart.x.format != nullptr && chart.y.format != nullptr,
                  "axes format their ticks");
  drop_gaps(chart);
  const Plot plot = layout(chart);
  std::string svg = draw_y_axis(chart, plot) + draw_x_axis(chart, plot) + draw_band(chart, plot) +
                    draw_rules(chart, plot);
  for (const Line& l : chart.lines) svg += draw_line(l, plot);
  if (chart.lines.size() > 1) {
    svg += chart.labels == Labels::at_ends ? draw_end_labels(chart, plot)
                                           : draw_inner_legend(chart, plot);
  }
  return svg + draw_rule_names(chart, plot) + draw_notes(chart, plot) + draw_misfits(chart, plot) +
         draw_hover_areas(chart, plot);
}

}  // namespace loratory::sim::report
