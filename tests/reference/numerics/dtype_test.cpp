// Number formats: every bit pattern of the small ones, and rounding against brute force.
#include "reference/numerics/dtype.hpp"

#include <gtest/gtest.h>

#include <Eigen/Core>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace loratory::reference {
namespace {

constexpr Dtype kAll[] = {Dtype::f32, Dtype::f16, Dtype::bf16, Dtype::f8_e4m3fn, Dtype::f8_e5m2};
constexpr Dtype kSmall[] = {Dtype::f16, Dtype::bf16, Dtype::f8_e4m3fn, Dtype::f8_e5m2};
constexpr double kInf = std::numeric_limits<double>::infinity();

uint32_t num_codes(Dtype dtype) { return 1U << (8 * size_bytes(dtype)); }

TEST(Dtype, EveryBitPatternRoundTrips) {
  for (const Dtype dtype : kSmall) {
    for (uint32_t bits = 0; bits < num_codes(dtype); ++bits) {
      const double value = decode(dtype, bits);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(decode(dtype, encode(dtype, value)))) << name(dtype) << bits;
      } else {
        ASSERT_EQ(encode(dtype, value), bits) << name(dtype);
      }
    }
  }
}

// [4.3] Between two neighbours: the midpoint goes to the even code, anything nearer to one goes
// there.
TEST(Dtype, EncodeIsNearestEvenBetweenAllNeighbours) {
  for (const Dtype dtype : kSmall) {
    const uint32_t last = encode(dtype, largest_finite(dtype));
    const uint32_t sign = num_codes(dtype) / 2;
    for (uint32_t low = 0; low < last; ++low) {
      const double a = decode(dtype, low), b = decode(dtype, low + 1), middle = (a + b) / 2;
      const uint32_t even = low % 2 == 0 ? low : low + 1;
      ASSERT_LT(a, b);
      ASSERT_EQ(encode(dtype, middle), even) << name(dtype) << ' ' << middle;
      ASSERT_EQ(encode(dtype, -middle), even | sign);
      ASSERT_EQ(encode(dtype, std::nextafter(middle, 0.0)), low) << name(dtype) << ' ' << middle;
      ASSERT_EQ(encode(dtype, std::nextafter(middle, kInf)), low + 1);
    }
  }
}

TEST(Dtype, NearestOfAllCodesByBruteForceInF8) {
  std::mt19937_64 engine(1);
  for (const Dtype dtype : {Dtype::f8_e4m3fn, Dtype::f8_e5m2}) {
    for (int i = 0; i < 5000; ++i) {
      const double span = std::ldexp(largest_finite(dtype), -int(engine() % 24));
      const double value = span * (double(engine() % 2000001) - 1e6) / 1e6;
      double best = kInf;
      for (uint32_t bits = 0; bits < 256; ++bits) {
        const double distance = std::fabs(decode(dtype, bits) - value);
        if (distance < best) best = distance;
      }
      ASSERT_EQ(std::fabs(round_to(dtype, value) - value), best) << name(dtype) << ' ' << value;
    }
  }
}

TEST(Dtype, F32AgreesWithTheMachine) {
  std::mt19937_64 engine(2);
  for (int i = 0; i < 1000000; ++i) {
    const double fraction = 1.0 + double(engine() >> 12) * 0x1p-52;
    const double value = std::ldexp(fraction, int(engine() % 290) - 155);
    ASSERT_EQ(encode(Dtype::f32, value), std::bit_cast<uint32_t>(float(value))) << value;
  }
}

TEST(Dtype, EigenAgrees) {
  std::mt19937_64 engine(3);
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = Eigen::numext::bit_cast<Eigen::half>(uint16_t(bits));
    const auto bfloat = Eigen::numext::bit_cast<Eigen::bfloat16>(uint16_t(bits));
    for (const auto& [ours, theirs] : {std::pair{decode(Dtype::f16, bits), double(half)},
                                       std::pair{decode(Dtype::bf16, bits), double(bfloat)}}) {
      ASSERT_TRUE(ours == theirs || (std::isnan(ours) && std::isnan(theirs))) << bits;
    }
  }
  for (int i = 0; i < 1000000; ++i) {
    const auto value = std::bit_cast<float>(uint32_t(engine()));
    if (std::isnan(value)) continue;
    ASSERT_EQ(encode(Dtype::f16, value), Eigen::numext::bit_cast<uint16_t>(Eigen::half(value)));
    ASSERT_EQ(encode(Dtype::bf16, value),
              Eigen::numext::bit_cast<uint16_t>(Eigen::bfloat16(value)));
  }
}

TEST(Dtype, RoundoffAndUnderflowUnitsAreSharp) {
  for (const Dtype dtype : kAll) {
    const double u = unit_roundoff(dtype), eta = underflow_unit(dtype);
    EXPECT_EQ(round_to(dtype, 1 + u), 1.0) << name(dtype) << ": a tie, to even";
    EXPECT_EQ(round_to(dtype, 1 + u * 1.0001), 1 + 2 * u) << name(dtype);
    EXPECT_EQ(round_to(dtype, eta), 0.0) << name(dtype);
    EXPECT_EQ(round_to(dtype, eta * 1.0001), 2 * eta) << name(dtype);
  }
  EXPECT_EQ(underflow_unit(Dtype::bf16), 0x1p-134);
  EXPECT_EQ(underflow_unit(Dtype::f16), 0x1p-25);
  EXPECT_EQ(underflow_unit(Dtype::f32), 0x1p-150);
}

TEST(Dtype, OverflowGoesToInfinityOrSaturates) {
  for (const Dtype dtype : kAll) {
    const double largest = largest_finite(dtype), past = largest * (1 + 2 * unit_roundoff(dtype));
    EXPECT_EQ(round_to(dtype, -past, Overflow::saturate), -largest) << name(dtype);
    EXPECT_EQ(round_to(dtype, kInf, Overflow::saturate), largest) << name(dtype);
    const double plain = round_to(dtype, past);
    EXPECT_TRUE(dtype == Dtype::f8_e4m3fn ? std::isnan(plain) : plain == kInf) << name(dtype);
    EXPECT_TRUE(std::isnan(round_to(dtype, std::nan(""), Overflow::saturate))) << name(dtype);
  }
}

// [1.42] The same byte means different numbers; the values of the OCP 8-bit formats.
TEST(Dtype, EightBitFormats) {
  EXPECT_EQ(decode(Dtype::f8_e4m3fn, 0x38), 1.0);
  EXPECT_EQ(decode(Dtype::f8_e5m2, 0x38), 0.5);
  EXPECT_EQ(largest_finite(Dtype::f8_e4m3fn), 448.0);
  EXPECT_EQ(largest_finite(Dtype::f8_e5m2), 57344.0);
  EXPECT_TRUE(std::isnan(decode(Dtype::f8_e4m3fn, 0xFF)));
  EXPECT_EQ(decode(Dtype::f8_e5m2, 0xFC), -kInf);
  EXPECT_EQ(encode(Dtype::f8_e4m3fn, 464), 0x7EU) << "a tie between 448 and what would be 480";
  EXPECT_EQ(encode(Dtype::f8_e4m3fn, 465), 0x7FU);
}

// [1.51]: integers, nearest even, saturating whatever the mode; NaN is 0.
TEST(Dtype, I8IsTheIntegers) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const double value = decode(Dtype::i8, bits);
    EXPECT_EQ(value, bits < 128 ? int(bits) : int(bits) - 256);
    EXPECT_EQ(encode(Dtype::i8, value), bits);
  }
  const auto rounded = [](double v) { return round_to(Dtype::i8, v); };
  EXPECT_EQ(rounded(0.5), 0);
  EXPECT_EQ(rounded(1.5), 2);
  EXPECT_EQ(rounded(-2.5), -2);
  EXPECT_EQ(rounded(-2.51), -3);
  EXPECT_EQ(rounded(127.5), 127);
  EXPECT_EQ(rounded(-1e9), -128);
  EXPECT_EQ(rounded(kInf), 127);
  EXPECT_EQ(rounded(std::nan("")), 0);
  EXPECT_EQ(name(Dtype::i8), "i8");
  EXPECT_EQ(size_bytes(Dtype::i8), 1U);
  EXPECT_FALSE(is_f8(Dtype::i8));
  EXPECT_TRUE(is_quantized(Dtype::i8));
  EXPECT_TRUE(is_quantized(Dtype::f8_e5m2));
  EXPECT_FALSE(is_quantized(Dtype::bf16));
}

}  // namespace
}  // namespace loratory::reference
