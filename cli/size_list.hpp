#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace loratory::cli {

/// "4,8,16" and ranges "4:64:4" (first:last:step), ascending without duplicates, each 1..4096.
/// Throws InputError at `flag`.
std::vector<int32_t> parse_sizes(const std::string& flag, const std::string& text);

}  // namespace loratory::cli
