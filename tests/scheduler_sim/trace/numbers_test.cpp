#include "scheduler_sim/trace/numbers.hpp"

#include <gtest/gtest.h>

#include <string>

namespace loratory::sim {
namespace {

int64_t scaled(std::string_view text, int scale) {
  int64_t value = -12345;
  EXPECT_EQ(parse_scaled(text, scale, value), Parse::good) << text;
  return value;
}

Parse result(std::string_view text) {
  int64_t value = 0;
  return parse_scaled(text, 9, value);
}

TEST(ParseScaled, IsExactAndRoundsHalfAwayFromZero) {
  EXPECT_EQ(scaled("0", 9), 0);
  EXPECT_EQ(scaled("-0", 9), 0);
  EXPECT_EQ(scaled("1.5", 9), 1'500'000'000);
  EXPECT_EQ(scaled("0.1", 9), 100'000'000);
  EXPECT_EQ(scaled("5.8926549999999995", 9), 5'892'655'000);
  EXPECT_EQ(scaled("0.0000000004999999999999999999999", 9), 0);
  EXPECT_EQ(scaled("0.0000000005", 9), 1);
  EXPECT_EQ(scaled("-0.0000000005", 9), -1);
  EXPECT_EQ(scaled("9.9999999995", 9), 10'000'000'000);
  EXPECT_EQ(scaled("1e3", 9), 1'000'000'000'000);
  EXPECT_EQ(scaled("12.5E-1", 9), 1'250'000'000);
  EXPECT_EQ(scaled("1e-9999", 9), 0);
  EXPECT_EQ(scaled("0e99999999999999999999", 9), 0);
  EXPECT_EQ(scaled("9223372036.854775807", 9), INT64_MAX);
}

TEST(ParseScaled, RefusesWhatJsonDoes) {
  for (const char* text : {"", "-", "+1", "01", ".5", "1.", "1e", "1e+", "NaN", "inf", "0x10", "1 ",
                           " 1", "1,5", "--1", "1.5.5", "1e5.5"}) {
    EXPECT_EQ(result(text), Parse::not_a_number) << text;
  }
  EXPECT_EQ(result("9223372036.854775808"), Parse::out_of_range);
  EXPECT_EQ(result("9223372036.8547758075"), Parse::out_of_range);
  EXPECT_EQ(result("1e9999999999"), Parse::out_of_range);
  EXPECT_EQ(result(std::string(1000, '9')), Parse::out_of_range);
}

TEST(ParseInteger, TakesDigitsOnly) {
  int64_t value = 0;
  EXPECT_EQ(parse_integer("-42", value), Parse::good);
  EXPECT_EQ(value, -42);
  EXPECT_EQ(parse_integer("9223372036854775808", value), Parse::out_of_range);
  for (const char* text : {"", "1.0", "1e3", "+1", " 1", "1 ", "007", "-", "0x1"}) {
    EXPECT_EQ(parse_integer(text, value), Parse::not_a_number) << text;
  }
}

int64_t timestamp(std::string_view text) {
  int64_t value = -1;
  EXPECT_EQ(parse_timestamp(text, value), Parse::good) << text;
  return value;
}

TEST(ParseTimestamp, KnowsDaysFractionsAndZones) {
  EXPECT_EQ(timestamp("1970-01-01 00:00:00"), 0);
  EXPECT_EQ(timestamp("2023-11-16 18:15:46.6805900"), 1'700'158'546'680'590'000);  // date -d
  EXPECT_EQ(timestamp("2024-02-29T23:59:59.5Z"), 1'709'251'199'500'000'000);
  EXPECT_EQ(timestamp("2024-05-10 02:00:00+02:00"), timestamp("2024-05-10 00:00:00"));
  EXPECT_EQ(timestamp("2024-05-09 18:30:00-05:30"), timestamp("2024-05-10 00:00:00"));
}

TEST(ParseTimestamp, RefusesTheRest) {
  int64_t value = 0;
  for (const char* text :
       {"", "2023-11-16", "2023-11-16 18:15", "2023/11/16 18:15:46", "2023-11-16 18:15:46.",
        "2023-11-16 18:15:46.1234567890", "2023-11-16 18:15:46 UTC", "2023-11-16 18:15:46+0200",
        "2023-11-16x18:15:46", "2o23-11-16 18:15:46", "2023-11-16 18:15:4x"}) {
    EXPECT_EQ(parse_timestamp(text, value), Parse::not_a_number) << text;
  }
  for (const char* text :
       {"2023-02-29 00:00:00", "2023-13-01 00:00:00", "2023-11-16 24:00:00", "2023-11-16 18:60:00",
        "1969-12-31 23:59:59", "2200-01-01 00:00:00", "2023-11-16 18:15:46+15:00"}) {
    EXPECT_EQ(parse_timestamp(text, value), Parse::out_of_range) << text;
  }
}

}  // namespace
}  // namespace loratory::sim
