#include "gpu/engine/paced_copy.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace loratory::gpu {
namespace {

constexpr int64_t kRest = PacedCopy::kRestNs;

TEST(PacedCopy, RestsBetweenPartsWhileStepsRun) {
  PacedCopy copy(25, 10);
  const auto first = copy.take(1000, true);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->begin, 0);
  EXPECT_EQ(first->end, 10);
  EXPECT_FALSE(copy.take(1000 + 10 * kRest, true));  // the first is still under way
  copy.end_part(2000);
  EXPECT_FALSE(copy.take(2000 + kRest - 1, true));
  const auto second = copy.take(2000 + kRest, true);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->begin, 10);
  EXPECT_EQ(second->end, 20);
}

TEST(PacedCopy, TakesTheRestAtOnceWithoutSteps) {
  PacedCopy alone(25, 10);
  EXPECT_EQ(alone.take(0, false)->end, 25);
  PacedCopy copy(25, 10);
  copy.take(0, true);
  EXPECT_FALSE(copy.take(1, false));
  copy.end_part(2);
  const auto rest = copy.take(3, false);  // the step has ended: no more rest
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->begin, 10);
  EXPECT_EQ(rest->end, 25);
  EXPECT_FALSE(copy.has_ended());
  copy.end_part(4);
  EXPECT_TRUE(copy.has_ended());
}

// Whenever steps run and parts end: parts follow each other without a gap, none is taken while
// another is under way, and the last one ends the copy.
RC_GTEST_PROP(PacedCopyProperty, PartsAreTheWholeInOrder, ()) {
  const auto bytes = *rc::gen::inRange<int64_t>(1, 1000);
  const auto part = *rc::gen::inRange<int64_t>(1, 300);
  PacedCopy copy(bytes, part);
  int64_t now = 0, copied = 0;
  int num_parts = 0;
  while (!copy.has_ended()) {
    now += *rc::gen::inRange<int64_t>(0, 2 * kRest);
    const bool was_under_way = copy.is_under_way();
    const bool steps_run = *rc::gen::arbitrary<bool>();
    if (const auto taken = copy.take(now, steps_run)) {
      RC_ASSERT(!was_under_way);
      RC_ASSERT(taken->begin == copied && taken->end > copied && taken->end <= bytes);
      RC_ASSERT(!steps_run || taken->end - taken->begin <= part);
      copied = taken->end;
      ++num_parts;
    } else if (was_under_way && *rc::gen::arbitrary<bool>()) {
      copy.end_part(now);
    }
  }
  RC_ASSERT(copied == bytes);
  RC_CLASSIFY(num_parts == 1, "one part");
  RC_CLASSIFY(num_parts > 3, "more than three parts");
}

}  // namespace
}  // namespace loratory::gpu
