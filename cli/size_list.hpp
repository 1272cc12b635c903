#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace loratory::cli {

inline constexpr int32_t kLargestSize = 4096;           ///< of max_loras
inline constexpr int32_t kLargestCpuSize = 10'000'000;  ///< of max_cpu_loras

/// "4,8,16" and ranges "4:64:4" (first:last:step), ascending, each from 1 to `largest` and no more
/// than 4,096 of them. Throws InputError at `flag`, also for a size that is listed twice.
std::vector<int32_t> parse_sizes(const std::string& flag, const std::string& text, int32_t largest);

}  // namespace loratory::cli
