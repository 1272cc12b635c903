#pragma once

#include <bit>
#include <cstdint>

#include "gpu/plan/host_device.hpp"

namespace loratory::gpu {

/// A divisor d >= 1 that the host knows. Kernels divide by it in three instructions; the compiler's
/// division of two unknown numbers takes about 20, one after the other.
///
/// With 2^s >= d, the factor ceil(2^(31+s) / d) is (2^(31+s) + e) / d, e < d. So a · factor /
/// 2^(31+s) is a/d and a · e / 2^(31+s) / d more, which is less than 1/d for a below 2^31: it does
/// not reach the next integer. (Granlund, Montgomery: Division by Invariant Integers using
/// Multiplication, 1994.)
class Divisor {
 public:
  // NOLINTNEXTLINE(*-explicit-*): it is a number
  LORATORY_HOST_DEVICE constexpr Divisor(int32_t value = 1)
      : value_(value),
        shift_(std::bit_width(uint32_t(value) - 1)),
        factor_(
            uint32_t(((uint64_t{1} << (31 + shift_)) + uint32_t(value) - 1) / uint32_t(value))) {}

  // NOLINTNEXTLINE(*-explicit-*)
  LORATORY_HOST_DEVICE constexpr operator int32_t() const { return value_; }

  /// a / d, of a below 2^31.
  LORATORY_HOST_DEVICE constexpr friend uint32_t quotient(uint32_t a, const Divisor& d) {
    return uint32_t(uint64_t{a << 1} * d.factor_ >> 32) >> d.shift_;
  }

 private:
  int32_t value_;
  int32_t shift_;
  uint32_t factor_;
};

}  // namespace loratory::gpu
