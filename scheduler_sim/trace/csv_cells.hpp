#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace loratory::sim {

/// Calls f(text, column, index) for each comma-separated cell and returns how many there are. None
/// of the formats we read quotes its cells, so a quote is a character like any other.
template <typename F>
size_t for_each_cell(std::string_view line, F f) {
  size_t index = 0;
  for (size_t begin = 0; begin <= line.size(); ++index) {
    const size_t end = std::min(line.find(',', begin), line.size());
    f(line.substr(begin, end - begin), uint32_t(begin + 1), index);
    begin = end + 1;
  }
  return index;
}

}  // namespace loratory::sim
