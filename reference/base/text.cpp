#include "reference/base/text.hpp"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <ranges>

namespace loratory {

std::vector<std::string_view> split(std::string_view text, char separator) {
  if (text.empty()) return {text};  // std::views::split gives no part at all
  std::vector<std::string_view> parts;
  for (const auto part : std::views::split(text, separator)) {
    parts.emplace_back(part.begin(), part.end());
  }
  return parts;
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](char x, char y) { return std::tolower(uint8_t(x)) == std::tolower(uint8_t(y)); });
}

}  // namespace loratory
