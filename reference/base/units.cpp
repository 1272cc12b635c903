#include "reference/base/units.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "reference/base/input_error.hpp"

namespace loratory {
namespace {

constexpr double kBytesPerUnit = 1024;
constexpr double kMsPerSecond = 1000;
constexpr double kMsPerMinute = 60'000;

struct Prefix {
  std::string_view text;
  double factor;
};

// Two-letter prefixes first: "Gi" must not be read as "G" and a unit "i".
constexpr std::array<Prefix, 8> kPrefixes{{{"Ki", 0x1p10},
                                           {"Mi", 0x1p20},
                                           {"Gi", 0x1p30},
                                           {"Ti", 0x1p40},
                                           {"k", 1e3},
                                           {"M", 1e6},
                                           {"G", 1e9},
                                           {"T", 1e12}}};

double take_prefix(std::string_view& rest) {
  for (const Prefix& prefix : kPrefixes) {
    if (rest.starts_with(prefix.text)) {
      rest.remove_prefix(prefix.text.size());
      return prefix.factor;
    }
  }
  return 1.0;
}

// Three significant digits, no exponent: what a reader can compare at a glance. Whole numbers stay
// whole: a limit of 50 is not 50.0.
std::string significant(double value) {
  const double size = std::fabs(value);
  if (size >= 99.95 || value == std::round(value)) return format_count(std::llround(value));
  if (size >= 9.995) return fmt::format("{:.1f}", value);
  if (size >= 0.9995) return fmt::format("{:.2f}", value);
  return fmt::format("{:.2g}", value);
}

}  // namespace

double parse_quantity(std::string_view text, std::string_view unit, std::string_view place) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view rest = text.substr(size_t(end - text.data()));
  const double value = number * take_prefix(rest);
  const bool unit_is_right = rest.empty() || rest == unit;
  if (error != std::errc{} || !unit_is_right || !std::isfinite(value) || value <= 0) {
    throw InputError(place, fmt::format("'{}' is not a positive quantity", text),
                     fmt::format("write a number with a prefix and unit, e.g. 80G{}", unit));
  }
  return value;
}

std::string format_count(int64_t value) {
  std::string digits = fmt::format("{}", value);
  const size_t sign = value < 0 ? 1 : 0;
  for (size_t i = digits.size(); i > sign + 3;) digits.insert(i -= 3, 1, ',');
  return digits;
}

std::string count_text(int64_t value, std::string_view noun) {
  return fmt::format("{} {}{}", format_count(value), noun, value == 1 ? "" : "s");
}

std::string format_number(double value) { return std::isfinite(value) ? significant(value) : "-"; }

std::string format_ms(double value_ms) {
  if (!std::isfinite(value_ms)) return "-";
  const double size = std::fabs(value_ms);
  if (size < 999.5) return fmt::format("{} ms", significant(value_ms));
  if (size < 10 * kMsPerMinute) return fmt::format("{} s", significant(value_ms / kMsPerSecond));
  const int64_t seconds = std::llround(value_ms / kMsPerSecond);
  const bool hours = seconds >= 3600;
  const int64_t whole = hours ? seconds / 3600 : seconds / 60;
  const int64_t rest = hours ? seconds % 3600 / 60 : seconds % 60;
  const std::string text = fmt::format("{} {}", whole, hours ? "h" : "min");
  return rest == 0 ? text : fmt::format("{} {} {}", text, rest, hours ? "min" : "s");
}

std::string format_bytes(double value_bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (!std::isfinite(value_bytes)) return "-";
  size_t unit = 0;
  while (std::fabs(value_bytes) >= kBytesPerUnit && unit + 1 < kUnits.size()) {
    value_bytes /= kBytesPerUnit;
    ++unit;
  }
  return fmt::format("{} {}", significant(value_bytes), kUnits[unit]);
}

std::string format_percent(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:.1f} %", 100 * fraction) : "-";
}

}  // namespace loratory
