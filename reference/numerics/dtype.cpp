#include "reference/numerics/dtype.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "reference/base/check.hpp"

namespace loratory::reference {
namespace {

// Codes are the bits without the sign: they count the non-negative numbers from 0 upwards.
struct Format {
  std::string_view name;
  size_t size_bytes;
  int mantissa_bits;
  int min_exponent;  // of the smallest normal number
  uint32_t max_finite_code;
  uint32_t overflow_code;
  uint32_t nan_code;

  uint32_t sign_bit() const { return 1U << (8 * size_bytes - 1); }
};

const Format& format(Dtype dtype) {
  static constexpr Format kFormats[] = {
      {"f32", 4, 23, -126, 0x7F7F'FFFF, 0x7F80'0000, 0x7FC0'0000},
      {"f16", 2, 10, -14, 0x7BFF, 0x7C00, 0x7E00},
      {"bf16", 2, 7, -126, 0x7F7F, 0x7F80, 0x7FC0},
      {"f8_e4m3fn", 1, 3, -6, 0x7E, 0x7F, 0x7F},
      {"f8_e5m2", 1, 2, -14, 0x7B, 0x7C, 0x7F},
      {"i8", 1, 0, 0, 0, 0, 0},  // only name and size: no floating point
  };
  LORATORY_ASSERT(size_t(dtype) < std::size(kFormats), "a dtype is one of the enumerators");
  return kFormats[size_t(dtype)];
}

double decode_code(const Format& f, uint32_t code) {
  if (code > f.max_finite_code) {
    const bool infinite = code == f.overflow_code && f.overflow_code != f.nan_code;
    return infinite ? std::numeric_limits<double>::infinity()
                    : std::numeric_limits<double>::quiet_NaN();
  }
  const uint32_t implicit_one = 1U << f.mantissa_bits;
  const uint32_t biased_exponent = code >> f.mantissa_bits;
  const uint32_t mantissa = code & (implicit_one - 1);
  const int quantum_exponent = f.min_exponent - f.mantissa_bits;
  if (biased_exponent == 0) return std::ldexp(mantissa, quantum_exponent);
  return std::ldexp(implicit_one + mantissa, quantum_exponent + int(biased_exponent) - 1);
}

uint32_t encode_magnitude(const Format& f, double magnitude, Overflow overflow) {
  const uint32_t past_the_end =
      overflow == Overflow::saturate ? f.max_finite_code : f.overflow_code;
  if (magnitude >= std::ldexp(1.0, 129)) return past_the_end;
  const int exponent =
      magnitude == 0 ? f.min_exponent : std::max(std::ilogb(magnitude), f.min_exponent);
  // How many steps of the grid at this exponent: exact in double, then to the nearest even.
  const double steps = std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent));
  // Codes count upwards: each binade above the lowest holds 2^mantissa_bits of them, and a
  // rounding up to the next power of two carries into the exponent by itself.
  const auto code = (uint64_t(exponent - f.min_exponent) << f.mantissa_bits) + uint64_t(steps);
  return code > f.max_finite_code ? past_the_end : uint32_t(code);
}

uint32_t encode_i8(double value) {
  if (std::isnan(value)) return 0;
  const double nearest = std::nearbyint(std::clamp(value, -128.0, 127.0));
  return uint8_t(int8_t(nearest));
}

}  // namespace

std::string_view name(Dtype dtype) { return format(dtype).name; }

size_t size_bytes(Dtype dtype) { return format(dtype).size_bytes; }

bool is_f8(Dtype dtype) { return dtype == Dtype::f8_e4m3fn || dtype == Dtype::f8_e5m2; }

bool is_quantized(Dtype dtype) { return is_f8(dtype) || dtype == Dtype::i8; }

double unit_roundoff(Dtype dtype) {
  if (dtype == Dtype::i8) return 0;
  return std::ldexp(1.0, -format(dtype).mantissa_bits - 1);
}

double underflow_unit(Dtype dtype) {
  if (dtype == Dtype::i8) return 0.5;
  const Format& f = format(dtype);
  return std::ldexp(1.0, f.min_exponent - f.mantissa_bits - 1);
}

double largest_finite(Dtype dtype) {
  if (dtype == Dtype::i8) return 127;
  return decode_code(format(dtype), format(dtype).max_finite_code);
}

double decode(Dtype dtype, uint32_t bits) {
  if (dtype == Dtype::f32) return std::bit_cast<float>(bits);
  if (dtype == Dtype::i8) return int8_t(bits);
  const Format& f = format(dtype);
  const double magnitude = decode_code(f, bits & (f.sign_bit() - 1));
  return (bits & f.sign_bit()) != 0 ? -magnitude : magnitude;
}

uint32_t encode(Dtype dtype, double value, Overflow overflow) {
  if (dtype == Dtype::i8) return encode_i8(value);
  const Format& f = format(dtype);
  const uint32_t sign = std::signbit(value) ? f.sign_bit() : 0;
  if (std::isnan(value)) return sign | f.nan_code;
  if (dtype == Dtype::f32 && overflow == Overflow::infinity) {
    return std::bit_cast<uint32_t>(float(value));
  }
  return sign | encode_magnitude(f, std::fabs(value), overflow);
}

double round_to(Dtype dtype, double value, Overflow overflow) {
  return decode(dtype, encode(dtype, value, overflow));
}

}  // namespace loratory::reference
