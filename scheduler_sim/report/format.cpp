#include "scheduler_sim/report/format.hpp"

#include <fmt/format.h>

#include "reference/base/escape.hpp"

namespace loratory::sim::report {

std::string tick_ms(double value_ms) {
  if (value_ms < 1000) return fmt::format("{} ms", format_number(value_ms));
  const double seconds = value_ms / 1000;
  return seconds < 10'000 ? fmt::format("{:g} s", seconds)
                          : fmt::format("{:.3g} h", seconds / 3600);
}

std::string format_percentile(double percentile) { return fmt::format("p{}", percentile); }

bool is_own_percentile(double percentile) {
  return percentile != 50 && percentile != 90 && percentile != 95 && percentile != 99;
}

std::string clip(std::string_view text, size_t width) {
  if (text.size() <= width) return std::string(text);
  return width < 2 ? std::string(cut(text, width)) : fmt::format("{}..", cut(text, width - 2));
}

}  // namespace loratory::sim::report
