#include "cli/size_list.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"

namespace loratory::cli {
namespace {

constexpr int32_t kLargest = 4096;

int32_t parse_size(const std::string& flag, std::string_view text) {
  const auto value = to_number<int32_t>(text);
  if (!value || *value < 1 || *value > kLargest) {
    throw InputError(flag, fmt::format("'{}' is not a number from 1 to {}", text, kLargest),
                     "list sizes, for example 4,8,16 or 4:64:4");
  }
  return *value;
}

}  // namespace

std::vector<int32_t> parse_sizes(const std::string& flag, const std::string& text) {
  std::vector<int32_t> sizes;
  for (const std::string_view item : split(text, ',')) {
    const auto bounds = split(item, ':');
    if (bounds.size() > 3) parse_size(flag, item);
    const int32_t first = parse_size(flag, bounds.front());
    const int32_t last = bounds.size() > 1 ? parse_size(flag, bounds[1]) : first;
    const int32_t step = bounds.size() > 2 ? parse_size(flag, bounds[2]) : 1;
    if (last < first) {
      throw InputError(flag, fmt::format("'{}' has its last size below its first", item),
                       "write first:last:step");
    }
    for (int32_t size = first; size <= last; size += step) sizes.push_back(size);
  }
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

}  // namespace loratory::cli
