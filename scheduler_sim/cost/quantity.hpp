#pragma once

#include <string_view>

namespace loratory::sim {

/// Reads a number with an optional prefix and unit: "80GiB", "3.35TB/s", "989T", "1.5e12".
/// Prefixes: k M G T (powers of 1000), Ki Mi Gi Ti (powers of 1024). `unit` ("B", "B/s", "FLOP/s")
/// may be left out of the text. The result is finite and > 0.
/// Throws InputError at `place` otherwise.
double parse_quantity(std::string_view text, std::string_view unit, std::string_view place);

}  // namespace loratory::sim
