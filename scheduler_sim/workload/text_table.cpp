#include "scheduler_sim/workload/text_table.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>

#include "reference/base/input_error.hpp"

namespace loratory::sim {
namespace {

constexpr std::string_view kSeparators = " \t,\r";

std::vector<TableField> parse_row(std::string_view row, std::string_view file, uint32_t line) {
  std::vector<TableField> fields;
  size_t begin = row.find_first_not_of(kSeparators);
  while (begin != std::string_view::npos) {
    const size_t end = std::min(row.find_first_of(kSeparators, begin), row.size());
    fields.push_back(
        {row.substr(begin, end - begin), file, line, static_cast<uint32_t>(begin + 1)});
    begin = row.find_first_not_of(kSeparators, end);
  }
  return fields;
}

}  // namespace

double parse_number(std::string_view text, std::string_view what, std::string_view place) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  if (!whole || !std::isfinite(value) || value < 0) {
    throw InputError(place, fmt::format("{} '{}' is not a number >= 0", what, text),
                     "write it like 12 or 0.25");
  }
  return value;
}

std::string TableField::place() const { return fmt::format("{}:{}:{}", file, line, column); }

double TableField::number(std::string_view what) const { return parse_number(text, what, place()); }

uint32_t TableField::integer(std::string_view what, uint32_t low, uint32_t high) const {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  if (!whole || value < low || value > high) {
    throw InputError(place(), fmt::format("{} '{}' is not an integer", what, text),
                     fmt::format("it must lie in {} .. {}", low, high));
  }
  return value;
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

std::string read_text_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in.is_open() || in.bad()) {
    throw InputError(path, "the file cannot be read", "check the path and its permissions");
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace loratory::sim
