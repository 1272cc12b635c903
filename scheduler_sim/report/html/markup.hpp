#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reference/base/escape.hpp"  // html_text, html_name

namespace loratory::sim::report {

/// From the doctype to </head>, with the style.
std::string page_head(std::string_view title);

/// A plain table: cells are text, escaped when written.
struct DataTable {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};

std::string markup(const DataTable& table);

/// What surrounds every chart: a heading, a line under it, the drawing with its text alternative
/// and the numbers in a table.
struct Figure {
  std::string id{};  ///< unique in the page
  std::string title{};
  std::string subtitle{};     ///< what to look for, e.g. "lower is better"
  std::string description{};  ///< <desc>: what a reader who cannot see the drawing needs
  bool wide = false;          ///< spans the page and scrolls inside itself on a narrow screen
  double width = 480;
  double height = 300;
  std::string drawing{};  ///< SVG markup
  std::string legend{};   ///< HTML markup, may be empty
  DataTable table{};
};

std::string markup(const Figure& figure);

}  // namespace loratory::sim::report
