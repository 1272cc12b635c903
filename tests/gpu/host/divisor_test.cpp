#include "gpu/plan/divisor.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>

namespace loratory::gpu {
namespace {

constexpr int32_t kMostInt = INT32_MAX;

// a is drawn beside a multiple of d, where a factor that is off by one shows.
RC_GTEST_PROP(Divisors, QuotientsAreThoseOfADivision, ()) {
  const int bits = *rc::gen::inRange(1, 32);
  const auto d = int32_t(*rc::gen::inRange<int64_t>(1, int64_t{1} << bits));
  const auto q = *rc::gen::inRange<int64_t>(0, int64_t{kMostInt} / d + 1);
  const auto beside = *rc::gen::inRange<int64_t>(-2, 3);
  const auto a = uint32_t(std::clamp<int64_t>(q * d + beside, 0, kMostInt));
  RC_CLASSIFY(d == 1, "1");
  RC_CLASSIFY((d & (d - 1)) == 0, "a power of two");
  RC_CLASSIFY(a < uint32_t(d), "quotient 0");
  RC_CLASSIFY(a > uint32_t(kMostInt) / 2, "a of 31 bits");
  RC_ASSERT(quotient(a, Divisor(d)) == a / uint32_t(d));
  RC_ASSERT(int32_t{Divisor(d)} == d);
}

TEST(Divisors, TheLargestNumbers) {
  for (const int32_t d : {1, 2, 3, 7, 641, (1 << 30) - 1, 1 << 30, (1 << 30) + 1, kMostInt}) {
    for (const uint32_t a : {0U, 1U, uint32_t(kMostInt) - 1, uint32_t(kMostInt)}) {
      EXPECT_EQ(quotient(a, Divisor(d)), a / uint32_t(d)) << a << " / " << d;
    }
  }
}

}  // namespace
}  // namespace loratory::gpu
