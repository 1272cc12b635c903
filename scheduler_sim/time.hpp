#pragma once

#include <cstdint>
#include <limits>

namespace loratory::sim {

/// Times are nanoseconds since the start of a run, in 64 bits. This one never comes: nothing is
/// under way, or a limit is off.
inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace loratory::sim
