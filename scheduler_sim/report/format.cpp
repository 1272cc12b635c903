#include "scheduler_sim/report/format.hpp"

#include <fmt/format.h>

#include <cmath>

#include "reference/base/escape.hpp"

namespace loratory::sim::report {

std::string tick_ms(double value_ms) {
  if (value_ms < 1000) return fmt::format("{} ms", format_number(value_ms));
  const double seconds = value_ms / 1000;
  return seconds < 10'000 ? fmt::format("{:g} s", seconds)
                          : fmt::format("{:.3g} h", seconds / 3600);
}

std::string limit_ms(double value_ms) {
  if (value_ms < 100) {  // by the digits that format_ms() shows: divided, they are what one reads
    double parts = value_ms < 10 ? 100 : 10;
    while (value_ms * parts < 10) parts *= 10;
    double count = std::floor(value_ms * parts);
    while (count / parts < value_ms) ++count;
    return format_ms(count / parts);
  }
  const double part = value_ms < 1000        ? 1
                      : value_ms < 10'000    ? 10
                      : value_ms < 100'000   ? 100
                      : value_ms < 3'600'000 ? 1000
                                             : 60'000;
  return format_ms(std::ceil(value_ms / part) * part);
}

std::string whole_percent(double fraction) { return fmt::format("{:.0f} %", 100 * fraction); }

std::string format_percentile(double percentile) { return fmt::format("p{}", percentile); }

bool is_own_percentile(double percentile) {
  return percentile != 50 && percentile != 90 && percentile != 95 && percentile != 99;
}

std::string clip(std::string_view text, size_t width) {
  if (text.size() <= width) return std::string(text);
  return width < 2 ? std::string(cut(text, width)) : fmt::format("{}..", cut(text, width - 2));
}

}  // namespace loratory::sim::report
