#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace loratory::sim {

enum class Parse : uint8_t { good, not_a_number, out_of_range };

/// value = text * 10^scale, exactly, then rounded half away from zero: "1.5" with scale 9 is
/// 1,500,000,000 (seconds to nanoseconds), on every machine. The grammar is JSON's: no "+1",
/// "01", ".5", "1.", NaN or Inf. kOutOfRange beyond int64.
Parse parse_scaled(std::string_view text, int scale, int64_t& value);

/// A whole number in decimal digits with an optional minus.
Parse parse_integer(std::string_view text, int64_t& value);

/// A finite double in JSON's grammar.
Parse parse_double(std::string_view text, double& value);

/// "YYYY-MM-DD HH:MM:SS[.fffffffff][Z|+hh[:mm]|-hh[:mm]]" (or T between date and time) as
/// nanoseconds since 1970-01-01 UTC; no zone means UTC. Years 1970 to 2199.
Parse parse_timestamp(std::string_view text, int64_t& unix_ns);

/// The limit that a timestamp breaks for which parse_timestamp says out_of_range: "days of 2024-02
/// go from 01 to 29".
std::string timestamp_limit(std::string_view text);

/// A number whose digits stand in groups, "1.000,5" or "1,000,000", without the marks between them
/// and with a decimal point: "1000.5". Empty for any other text.
std::string without_grouping(std::string_view text);

}  // namespace loratory::sim
