#include "cli/size_list.hpp"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "reference/base/input_error.hpp"

namespace loratory::cli {
namespace {

constexpr int32_t kLargest = 4096;

int32_t parse_size(const std::string& flag, const std::string& text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kLargest) {
    throw InputError(flag, "'" + text + "' is not a number from 1 to 4096",
                     "list sizes, for example 4,8,16 or 4:64:4");
  }
  return value;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text + separator);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

}  // namespace

std::vector<int32_t> parse_sizes(const std::string& flag, const std::string& text) {
  std::vector<int32_t> sizes;
  for (const std::string& item : split(text, ',')) {
    const std::vector<std::string> bounds = split(item, ':');
    if (bounds.size() > 3) parse_size(flag, item);
    const int32_t first = parse_size(flag, bounds.front());
    const int32_t last = bounds.size() > 1 ? parse_size(flag, bounds[1]) : first;
    const int32_t step = bounds.size() > 2 ? parse_size(flag, bounds[2]) : 1;
    if (last < first) {
      throw InputError(flag, "'" + item + "' runs backwards", "write first:last:step");
    }
    for (int32_t size = first; size <= last; size += step) sizes.push_back(size);
  }
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

}  // namespace loratory::cli
