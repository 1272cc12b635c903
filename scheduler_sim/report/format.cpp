#include "scheduler_sim/report/format.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace loratory::sim::report {
namespace {

constexpr double kBytesPerUnit = 1024;
constexpr double kMsPerSecond = 1000;
constexpr double kMsPerMinute = 60'000;

/// Three significant digits, no exponent: what a reader can compare at a glance. Whole numbers stay
/// whole: a limit of 50 is not 50.0.
std::string significant(double value) {
  const double size = std::fabs(value);
  if (size >= 99.95 || value == std::round(value)) return format_count(std::llround(value));
  if (size >= 9.995) return fmt::format("{:.1f}", value);
  if (size >= 0.9995) return fmt::format("{:.2f}", value);
  return fmt::format("{:.2g}", value);
}

}  // namespace

std::string format_count(int64_t value) {
  std::string digits = fmt::format("{}", value);
  const size_t sign = value < 0 ? 1 : 0;
  for (size_t i = digits.size(); i > sign + 3;) digits.insert(i -= 3, 1, ',');
  return digits;
}

std::string format_number(double value) { return std::isfinite(value) ? significant(value) : "-"; }

std::string format_ms(double value_ms) {
  if (!std::isfinite(value_ms)) return "-";
  const double size = std::fabs(value_ms);
  if (size < 999.5) return significant(value_ms) + " ms";
  if (size < 10 * kMsPerMinute) return significant(value_ms / kMsPerSecond) + " s";
  const int64_t seconds = std::llround(value_ms / kMsPerSecond);
  const bool hours = seconds >= 3600;
  const int64_t whole = hours ? seconds / 3600 : seconds / 60;
  const int64_t rest = hours ? seconds % 3600 / 60 : seconds % 60;
  std::string text = fmt::format("{} {}", whole, hours ? "h" : "min");
  if (rest > 0) text += fmt::format(" {} {}", rest, hours ? "min" : "s");
  return text;
}

std::string tick_ms(double value_ms) {
  if (value_ms < 1000) return significant(value_ms) + " ms";
  const double seconds = value_ms / kMsPerSecond;
  return seconds < 10'000 ? fmt::format("{:g} s", seconds)
                          : fmt::format("{:.3g} h", seconds / 3600);
}

std::string format_bytes(double value_bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (!std::isfinite(value_bytes)) return "-";
  size_t unit = 0;
  while (std::fabs(value_bytes) >= kBytesPerUnit && unit + 1 < kUnits.size()) {
    value_bytes /= kBytesPerUnit;
    ++unit;
  }
  return significant(value_bytes) + " " + kUnits[unit];
}

std::string format_percent(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:.1f} %", 100 * fraction) : "-";
}

std::string format_percentile(double percentile) { return fmt::format("p{}", percentile); }

std::string clip(const std::string& text, size_t width) {
  if (text.size() <= width) return text;
  return width < 2 ? text.substr(0, width) : text.substr(0, width - 2) + "..";
}

}  // namespace loratory::sim::report
