#include "scheduler_sim/trace/logs/log_time.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "reference/base/text.hpp"
#include "scheduler_sim/trace/numbers.hpp"

namespace loratory::sim {
namespace {

bool is_at(std::string_view text, size_t at, std::string_view pattern) {
  if (at + pattern.size() > text.size()) return false;
  return std::equal(pattern.begin(), pattern.end(), text.begin() + std::ptrdiff_t(at),
                    [](char wanted, char c) { return wanted == '0' ? is_digit(c) : wanted == c; });
}

// "2025-06-15 12:34:56,789" as parse_timestamp knows it.
std::optional<LogTime> full_time(std::string_view text) {
  std::string stamp(text);
  std::ranges::replace(stamp, ',', '.');
  LogTime time;
  time.has_year = true;
  if (parse_timestamp(stamp, time.unix_ns) != Parse::good) return std::nullopt;
  return time;
}

// As much of `text` as belongs to a timestamp that begins it.
std::string_view stamp_at(std::string_view text) {
  constexpr size_t kSeconds = std::string_view("YYYY-MM-DD HH:MM:SS").size();
  size_t size = kSeconds;
  const bool has_fraction = size < text.size() && (text[size] == '.' || text[size] == ',');
  if (has_fraction) ++size;
  while (has_fraction && size < text.size() && is_digit(text[size])) ++size;
  if (size < text.size() && text[size] == 'Z') ++size;
  if (is_at(text, size, "+00:00") || is_at(text, size, "-00:00")) size += 6;
  return text.substr(0, size);
}

std::optional<LogTime> short_time(std::string_view text) {
  // 2000 has every day that a year can have.
  const auto time = full_time(fmt::format("2000-{}", text));
  if (!time) return std::nullopt;
  const auto number = [&](size_t at) { return 10 * (text[at] - '0') + (text[at + 1] - '0'); };
  LogTime result;
  result.month = number(0);
  result.day = number(3);
  result.time_of_day_ns = time->unix_ns % kNsPerDay;
  return result;
}

}  // namespace

std::optional<LogTime> log_time(std::string_view prefix) {
  if (is_at(prefix, 0, "0000-00-00T00:00:00")) return full_time(stamp_at(prefix));
  for (size_t at = prefix.size(); at-- > 0;) {
    if (is_at(prefix, at, "0000-00-00 00:00:00")) return full_time(stamp_at(prefix.substr(at)));
    const bool has_year_before = at >= 5 && is_at(prefix, at - 5, "0000-");
    if (!has_year_before && is_at(prefix, at, "00-00 00:00:00")) {
      return short_time(prefix.substr(at, std::string_view("MM-DD HH:MM:SS").size()));
    }
  }
  return std::nullopt;
}

int64_t ns_of_year(const LogTime& time, bool is_leap) {
  constexpr int32_t kDaysBefore[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
  const int32_t leap_day = is_leap && time.month > 2 ? 1 : 0;
  return kNsPerDay * (kDaysBefore[time.month - 1] + leap_day + time.day - 1) + time.time_of_day_ns;
}

}  // namespace loratory::sim
