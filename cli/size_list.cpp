#include "cli/size_list.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/flags.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"
#include "reference/base/wording.hpp"

namespace loratory::cli {
namespace {

constexpr size_t kMostSizes = 4096;

struct SizeRange {
  int32_t first, last, step;
};

SizeRange parse_range(const std::string& flag, std::string_view item, int32_t largest) {
  constexpr const char* kForms = "list sizes, for example 4,8,16 or 4:64:4";
  const auto size = [&](std::string_view text) {
    return parse_number(flag, text, Range<int32_t>{1, largest}, kForms);
  };
  const auto bounds = split(item, ':');
  if (bounds.size() > 3) size(item);  // no number either
  SizeRange range{size(bounds[0]), 0, bounds.size() > 2 ? size(bounds[2]) : 1};
  range.last = bounds.size() > 1 ? size(bounds[1]) : range.first;
  if (range.last < range.first) {
    throw InputError(flag, fmt::format("{} has its last size below its first", shown(item)),
                     "write first:last:step");
  }
  return range;
}

}  // namespace

std::vector<int32_t> parse_sizes(const std::string& flag, const std::string& text,
                                 int32_t largest) {
  std::vector<int32_t> sizes;
  for (const std::string_view item : split(text, ',')) {
    const SizeRange range = parse_range(flag, item, largest);
    if (sizes.size() + size_t((range.last - range.first) / range.step) >= kMostSizes) {
      throw InputError(flag, fmt::format("lists more than {} sizes", kMostSizes),
                       "each is a replay: list fewer, or take wider steps");
    }
    for (int32_t size = range.first; size <= range.last; size += range.step) sizes.push_back(size);
  }
  std::ranges::sort(sizes);
  if (const auto twice = std::ranges::adjacent_find(sizes); twice != sizes.end()) {
    throw InputError(flag, fmt::format("lists {} twice", *twice), "list each size once");
  }
  return sizes;
}

}  // namespace loratory::cli
