// What mutants of the scheduler got away with.
#include <gtest/gtest.h>

#include <vector>

#include "tests/scheduler_sim/scheduler/engine.hpp"

namespace loratory::sim {
namespace {

// Steps in closed form: that they change nothing is a property.
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

RequestSpec with_tokens(char id, const std::vector<int32_t>& prompt) {
  RequestSpec spec;
  spec.id = uint64_t(id);
  spec.num_prompt_tokens = uint32_t(prompt.size());
  spec.max_new_tokens = 10;
  spec.tokens = prompt;
  return spec;
}

// [6.8] Not only when the request ends.
TEST(Commit, PublishesABlockThatADecodeFills) {
  Engine e(Engine::config(2));  // blocks of 4
  e.submit(with_tokens('a', {1, 2, 3}));
  e.plan(), e.commit({4});
  e.plan(), e.commit({5});
  e.submit(with_tokens('b', {1, 2, 3, 4, 9}));
  EXPECT_EQ(e.plan(), (Engine::Rows{{'a', 1}, {'b', 1}}));
}

TEST(SchedulerConfig, OneBlockBesideTheNullBlockIsEnough) {
  SchedulerConfig c = Engine::config(2);
  c.num_blocks = 2;
  EXPECT_EQ(c.problem(), "");
  c.num_blocks = 1;
  EXPECT_NE(c.problem(), "");
}

}  // namespace
}  // namespace loratory::sim
