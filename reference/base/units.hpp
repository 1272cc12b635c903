#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// Quantities as people write and read them. Every function is pure and gives the same bytes
/// everywhere.
namespace loratory {

inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kGiB = int64_t{1} << 30;
inline constexpr int64_t kNsPerUs = 1'000, kNsPerMs = 1'000'000, kNsPerSecond = 1'000'000'000;

/// Reads a number with an optional prefix and unit: "80GiB", "3.35TB/s", "989T", "1.5e12".
/// Prefixes: k M G T (powers of 1000), Ki Mi Gi Ti (powers of 1024). `unit` ("B", "B/s", "FLOP/s")
/// may be left out of the text. The result is finite and > 0.
/// Throws InputError at `place` otherwise.
double parse_quantity(std::string_view text, std::string_view unit, std::string_view place);

// A value that is not finite is shown as "-".
std::string format_count(int64_t value);  ///< 1234567 -> "1,234,567"
/// "1 slot", "2 slots", "1,234 slots".
std::string count_text(int64_t value, std::string_view noun);
std::string format_number(double value);       ///< three significant digits: "0.042", "1,234"
std::string format_ms(double value_ms);        ///< "0.42 ms", "31.5 ms", "3.21 s", "14 min 12 s"
std::string format_bytes(double value_bytes);  ///< "512 B", "14.1 GiB"
std::string format_percent(double fraction);   ///< 0.512 -> "51.2 %"

}  // namespace loratory
