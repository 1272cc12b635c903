// Steps in closed form: when the scheduler offers them. That they change nothing is a property.
#include <gtest/gtest.h>

#include "tests/scheduler_sim/scheduler/engine.hpp"

namespace loratory::sim {
namespace {

TEST(Stretch, IsOfferedBehindADecodeThatNothingDisturbs) {
  Engine e(Engine::config(2));
  e.submit('a', 0, 3, 10);
  e.step();
  EXPECT_EQ(e.scheduler.stretch().num_steps, 0);  // the step was a prefill
  e.plan();
  EXPECT_EQ(e.scheduler.stretch().num_steps, 0);  // it is in flight
  e.commit();
  EXPECT_EQ(e.request('a').num_generated, 2U);
  EXPECT_EQ(e.scheduler.stretch().num_steps, 7);  // all of its tokens but the last
  e.submit('b', 0, 3, 10);
  EXPECT_EQ(e.scheduler.stretch().num_steps, 0);
  e.step();
  e.step();
  EXPECT_EQ(e.scheduler.stretch().num_steps, 5);  // a has 4 tokens
}

}  // namespace
}  // namespace loratory::sim
