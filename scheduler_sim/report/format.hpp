#pragma once

#include <cstdint>
#include <string>

/// Numbers as people read them. Every function is pure and prints the same bytes everywhere; a
/// value that is not finite prints "-".
namespace loratory::sim::report {

std::string format_count(int64_t value);  ///< 1234567 -> "1,234,567"
std::string format_number(double value);  ///< three significant digits: "0.042", "12.3", "1,234"
std::string format_ms(double value_ms);   ///< "0.42 ms", "31.5 ms", "3.21 s", "14 min 12 s"
std::string tick_ms(double value_ms);     ///< one number and one unit: "100 ms", "1000 s", "3 h"
std::string format_bytes(double value_bytes);      ///< "512 B", "14.1 GiB"
std::string format_percent(double fraction);       ///< 0.512 -> "51.2 %"
std::string format_percentile(double percentile);  ///< 99 -> "p99", 99.9 -> "p99.9"

/// Cuts `text` to `width` bytes, the last two ".." when something was lost.
std::string clip(const std::string& text, size_t width);

}  // namespace loratory::sim::report
