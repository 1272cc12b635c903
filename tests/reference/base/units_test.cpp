#include "reference/base/units.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace loratory {
namespace {

TEST(Units, NumbersForPeople) {
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(-123), "-123");
  EXPECT_EQ(format_number(0.0421), "0.042");
  EXPECT_EQ(format_number(12.34), "12.3");
  EXPECT_EQ(format_number(1234.4), "1,234");
  EXPECT_EQ(format_number(NAN), "-");
  EXPECT_EQ(format_ms(31.52), "31.5 ms");
  EXPECT_EQ(format_ms(3210), "3.21 s");
  EXPECT_EQ(format_ms(999.7), "1.00 s");
  EXPECT_EQ(format_ms(3'600'000), "1 h");
  EXPECT_EQ(format_ms(750'000), "12 min 30 s");
  EXPECT_EQ(format_bytes(1023), "1,023 B");
  EXPECT_EQ(format_bytes(15.14 * double(kGiB)), "15.1 GiB");
}

}  // namespace
}  // namespace loratory
