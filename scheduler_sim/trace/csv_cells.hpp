#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "scheduler_sim/trace/bad_row.hpp"

namespace loratory::sim {

/// Where the closing quote of the cell whose opening quote is at `open` stands: "" within it is a
/// quote. Throws BadRow when there is none.
inline size_t closing_quote(std::string_view line, size_t open) {
  size_t at = line.find('"', open + 1);
  while (at != std::string_view::npos && at + 1 < line.size() && line[at + 1] == '"') {
    at = line.find('"', at + 2);
  }
  if (at == std::string_view::npos) bad_row(open + 1, "a quote that is not closed", "close it");
  return at;
}

/// Calls f(text, column, index) for each cell of a record (RFC 4180, any separator) and returns how
/// many there are. A cell that begins with a quote is given without its quotes; a "" in it stays.
template <typename F>
size_t for_each_cell(std::string_view line, char separator, F f) {
  size_t index = 0;
  for (size_t begin = 0; begin <= line.size(); ++index) {
    const bool is_quoted = begin < line.size() && line[begin] == '"';
    const size_t close = is_quoted ? closing_quote(line, begin) : begin;
    const size_t end = std::min(line.find(separator, close), line.size());
    if (is_quoted && end != close + 1) {
      bad_row(close + 2, "text after a closing quote", "quote the whole cell");
    }
    f(is_quoted ? line.substr(begin + 1, close - begin - 1) : line.substr(begin, end - begin),
      uint32_t(begin + 1), index);
    begin = end + 1;
  }
  return index;
}

/// A cell that stood in quotes, with each "" in it as one quote.
inline std::string unquoted(std::string_view cell) {
  std::string text(cell);
  for (size_t at = text.find("\"\""); at != std::string::npos; at = text.find("\"\"", at + 1)) {
    text.erase(at, 1);
  }
  return text;
}

/// The separator of a table with this header: the most frequent of , ; and tab. Spreadsheets write
/// ; where the comma is the decimal point.
inline char csv_separator(std::string_view header) {
  char best = ',';
  for (const char c : {';', '\t'}) {
    if (std::ranges::count(header, c) > std::ranges::count(header, best)) best = c;
  }
  return best;
}

}  // namespace loratory::sim
