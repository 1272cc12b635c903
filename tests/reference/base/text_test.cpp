#include "reference/base/text.hpp"

#include <gmock/gmock.h>

#include <cstdint>

#include "reference/base/integers.hpp"

namespace loratory {
namespace {

using testing::ElementsAre;

TEST(Text, SplitGivesAtLeastOnePart) {
  EXPECT_THAT(split("", ','), ElementsAre(""));
  EXPECT_THAT(split("a", ','), ElementsAre("a"));
  EXPECT_THAT(split(",a,,b,", ','), ElementsAre("", "a", "", "b", ""));
}

TEST(Text, ComparesWithoutCase) {
  EXPECT_TRUE(equal_ignoring_case("Llama-3.1-8B", "llama-3.1-8b"));
  EXPECT_FALSE(equal_ignoring_case("ab", "abc"));
}

TEST(Text, NumbersAreTheWholeText) {
  EXPECT_EQ(to_number<int32_t>("-12"), -12);
  EXPECT_EQ(to_number<double>("2.5e-1"), 0.25);
  for (const char* bad : {"", " 1", "1 ", "+1", "1.0", "0x1", "2147483648"}) {
    EXPECT_EQ(to_number<int32_t>(bad), std::nullopt) << bad;
  }
}

TEST(Integers, CeilDivDoesNotOverflow) {
  EXPECT_EQ(ceil_div(0, 3), 0);
  EXPECT_EQ(ceil_div(6, 3), 2);
  EXPECT_EQ(ceil_div(7, 3), 3);
  EXPECT_EQ(ceil_div(UINT32_MAX, 2u), 1u << 31);
}

}  // namespace
}  // namespace loratory
