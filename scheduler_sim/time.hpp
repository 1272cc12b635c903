#pragma once

#include <cstdint>
#include <limits>

namespace loratory::sim {

/// Times are nanoseconds since the start of a run, in 64 bits. This one never comes: nothing is
/// under way, or a limit is off.
inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/// The times of a trace are below 100 years, so that sums of a few of them fit 64 bits.
inline constexpr int64_t kMaxTimeNs = int64_t{100} * 365 * 86'400 * 1'000'000'000;

/// The end of a run: twice as late as a request can arrive. What begins before it ends within 64
/// bits.
inline constexpr int64_t kLastNs = 2 * kMaxTimeNs;

/// a + b of times >= 0; kNever if there is no such time.
constexpr int64_t later(int64_t a, int64_t b) { return b > kNever - a ? kNever : a + b; }

}  // namespace loratory::sim
