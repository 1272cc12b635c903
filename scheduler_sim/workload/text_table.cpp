#include "scheduler_sim/workload/text_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"

namespace loratory::sim {
namespace {

constexpr std::string_view kSeparators = " \t,\r";

std::vector<TableField> parse_row(std::string_view row, std::string_view file, uint32_t line) {
  std::vector<TableField> fields;
  size_t begin = row.find_first_not_of(kSeparators);
  while (begin != std::string_view::npos) {
    const size_t end = std::min(row.find_first_of(kSeparators, begin), row.size());
    fields.push_back({row.substr(begin, end - begin), file, line, uint32_t(begin + 1)});
    begin = row.find_first_not_of(kSeparators, end);
  }
  return fields;
}

}  // namespace

double parse_number(std::string_view text, std::string_view what, std::string_view place) {
  const auto value = to_number<double>(text);
  if (!value || !std::isfinite(*value) || *value < 0) {
    throw InputError(place, fmt::format("{} '{}' is not a number >= 0", what, text),
                     "write it like 12 or 0.25");
  }
  return *value;
}

std::string TableField::place() const { return fmt::format("{}:{}:{}", file, line, column); }

double TableField::number(std::string_view what) const { return parse_number(text, what, place()); }

uint32_t TableField::integer(std::string_view what, uint32_t low, uint32_t high) const {
  const auto value = to_number<uint32_t>(text);
  if (!value || *value < low || *value > high) {
    throw InputError(place(), fmt::format("{} '{}' is not an integer", what, text),
                     fmt::format("it must lie in {} .. {}", low, high));
  }
  return *value;
}

std::vector<std::vector<TableField>> parse_table(std::string_view text, std::string_view file) {
  std::vector<std::vector<TableField>> rows;
  uint32_t line = 0;
  while (!text.empty()) {
    ++line;
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = text.substr(0, end);
    auto fields = parse_row(row.substr(0, row.find('#')), file, line);
    if (!fields.empty()) rows.push_back(std::move(fields));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return rows;
}

}  // namespace loratory::sim
