#pragma once

#include <cstdint>

namespace loratory::sim {

/// A step's nanoseconds as an integer, half up, in [1, 1e15] (11 days: sums cannot overflow).
/// Written so that NaN becomes 1.
inline int64_t round_step_ns(double ns) {
  constexpr double kLongest = 1e15;
  if (!(ns > 1.0)) return 1;
  return int64_t((ns < kLongest ? ns : kLongest) + 0.5);
}

}  // namespace loratory::sim
