#pragma once

#include <string>
#include <string_view>

#include "reference/base/units.hpp"  // format_ms and the like

/// What only reports show, beside base/units.hpp.
namespace loratory::sim::report {

std::string tick_ms(double value_ms);  ///< one number and one unit: "100 ms", "3 h"
/// The least that format_ms() shows and is not below a value > 0: a limit that the value keeps.
std::string limit_ms(double value_ms);
std::string whole_percent(double fraction);        ///< 0.512 -> "51 %"
std::string format_percentile(double percentile);  ///< 99 -> "p99", 99.9 -> "p99.9"
bool is_own_percentile(double percentile);         ///< not 50, 90, 95 or 99, which all outputs have

/// Cuts `text` to `width` bytes or a few less, so that no character is cut; the last two are ".."
/// when something was lost.
std::string clip(std::string_view text, size_t width);

}  // namespace loratory::sim::report
