#pragma once

namespace loratory {

/// The least integer q with q·b >= a, for a >= 0 and b > 0. Never overflows.
template <typename T>
constexpr T ceil_div(T a, T b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace loratory
