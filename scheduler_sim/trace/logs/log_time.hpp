#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace loratory::sim {

inline constexpr int64_t kNsPerDay = int64_t{86'400} * 1'000'000'000;

/// When a line of an engine's log was written. Python's loggers leave the year out.
struct LogTime {
  bool has_year = false;
  int64_t unix_ns = 0;         ///< with a year
  int32_t month = 0, day = 0;  ///< without one
  int64_t time_of_day_ns = 0;  ///< without one
};

/// The time in the text before a message: a full timestamp that begins the line (as `kubectl logs
/// --timestamps` puts it there), or the last "YYYY-MM-DD HH:MM:SS[.,fff]" or "MM-DD HH:MM:SS".
std::optional<LogTime> log_time(std::string_view prefix);

/// Nanoseconds since the 1st of January of a year; of a leap year if `is_leap`.
int64_t ns_of_year(const LogTime& time, bool is_leap);

}  // namespace loratory::sim
