#pragma once

#include <optional>
#include <string>
#include <vector>

#include "scheduler_sim/report/html/markup.hpp"
#include "scheduler_sim/report/html/scale.hpp"
#include "scheduler_sim/report/html/svg.hpp"

namespace loratory::sim::report {

using NumberFormat = std::string (*)(double);

struct Axis {
  std::string title;              ///< with the unit
  NumberFormat format = nullptr;  ///< of tick labels
  bool log = false;
  std::optional<double> lo{}, hi{};  ///< else from the data, a linear y from 0
  std::vector<double> ticks{};       ///< else round numbers
};

struct Line {
  std::string label;          ///< written at its right end
  int style = 1;              ///< colour, dashes and marker
  std::vector<Point> points;  ///< by ascending x
  bool markers = true;
};

struct Rule {
  double value = 0;
  std::string label;
  bool is_limit = false;  ///< drawn as a limit, not as the choice
};

/// A ring around a point, with a word under it.
struct Note {
  Point at;
  std::string label;
};

struct Tip {
  double x = 0;
  std::string text;
};

enum class Labels { at_ends, lower_right, upper_right };

/// Lines over a common x, with what helps to read them.
struct LineChart {
  Axis x, y;
  std::vector<Line> lines;
  std::vector<Point> band_lo, band_hi;  ///< a shaded range, drawn below the lines
  int band_style = 1;                   ///< the colour of the line it belongs to
  std::vector<Rule> x_rules;            ///< vertical: "recommended"
  std::vector<Rule> y_rules;            ///< horizontal: a limit
  std::vector<Note> notes;
  std::vector<double> misfits;      ///< x of configurations that do not fit: a cross on the axis
  std::vector<Tip> tips;            ///< by ascending x
  Labels labels = Labels::at_ends;  ///< a corner where the ends of the lines coincide
};

inline constexpr double kChartWidth = 480;
inline constexpr double kChartHeight = 300;
inline constexpr double kLabelGap = 15;  ///< from one label to the next below it

/// SVG markup of kChartWidth x kChartHeight. Points that are not finite are left out.
std::string draw(LineChart chart);

}  // namespace loratory::sim::report
