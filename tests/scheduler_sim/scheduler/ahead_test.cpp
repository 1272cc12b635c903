// [7.17] A step is planned while the one before it is in flight.
#include <gmock/gmock.h>

#include "tests/scheduler_sim/scheduler/engine.hpp"

namespace loratory::sim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

RequestSpec tokens_with_stop(char id, const std::vector<int32_t>& prompt, uint32_t max_new,
                             const std::vector<int32_t>& stop) {
  RequestSpec spec;
  spec.id = uint64_t(id);
  spec.num_prompt_tokens = uint32_t(prompt.size());
  spec.max_new_tokens = max_new;
  spec.tokens = prompt;
  spec.stop_tokens = stop;
  return spec;
}

TEST(StepAhead, LeavesOutWhoseOnlyTokenIsInFlight) {
  Engine e(Engine::config(2));
  e.submit('a', 0, 3, 1), e.submit('b', 0, 3, 2);
  EXPECT_THAT(e.plan(), ElementsAre(Pair('a', 3), Pair('b', 3)));
  EXPECT_THAT(e.plan(), ElementsAre(Pair('b', 1)));
}

TEST(StepAhead, GoesOnWhereTheStepInFlightWillBe) {
  SchedulerConfig c = Engine::config(2);
  c.max_num_batched_tokens = c.max_num_seqs = 8;
  Engine e(c);
  e.submit('a', 0, 3, 4), e.submit('b', 0, 9, 4);
  EXPECT_FALSE(e.scheduler.can_plan_ahead());
  EXPECT_THAT(e.plan(), ElementsAre(Pair('a', 3), Pair('b', 5)));
  EXPECT_TRUE(e.scheduler.can_plan_ahead());
  EXPECT_THAT(e.plan(), ElementsAre(Pair('a', 1), Pair('b', 4)));
  EXPECT_FALSE(e.scheduler.can_plan_ahead());  // two are in flight
  EXPECT_EQ(e.rows[0].num_computed, 3U);
  EXPECT_TRUE(e.rows[0].is_decode && e.rows[0].samples);
  EXPECT_EQ(e.rows[1].num_computed, 5U);
  EXPECT_TRUE(!e.rows[1].is_decode && e.rows[1].samples);
  e.commit();
  EXPECT_EQ(e.request('a').num_generated, 1U);
  EXPECT_EQ(e.request('b').num_computed, 5U);
  EXPECT_THAT(e.plan(), ElementsAre(Pair('a', 1), Pair('b', 1)));
  EXPECT_EQ(e.rows[1].num_computed, 9U);
}

// What ends by length is known before the token is.
TEST(StepAhead, ALastStepHasNoSuccessor) {
  Engine e(Engine::config(2));
  e.submit('a', 0, 3, 2), e.submit('b', 0, 3, 0), e.submit('c', 0, 3, 3);
  EXPECT_THAT(e.plan(), ElementsAre(Pair('a', 3), Pair('b', 3), Pair('c', 3)));
  EXPECT_THAT(e.plan(), ElementsAre(Pair('a', 1), Pair('c', 1)));
  e.commit();
  EXPECT_EQ(e.end_of('b'), FinishReason::length);
  EXPECT_THAT(e.plan(), ElementsAre(Pair('c', 1)));
  e.commit(), e.commit();
  EXPECT_FALSE(e.is_live('a') || e.is_live('c'));
  EXPECT_EQ(e.scheduler.blocks().num_referenced(), 0U);
}

// The row of a step ahead has nothing to say, but its blocks and its slot stay until it has ended.
TEST(StepAhead, AStopTokenIsFoundOneStepLate) {
  SchedulerConfig c = Engine::config(1, LoadMode::overlap);
  Engine e(c);
  const std::vector<int32_t> prompt = {1, 2, 3}, stop = {9};
  RequestSpec spec = tokens_with_stop('a', prompt, 8, stop);
  spec.adapter = 1;
  EXPECT_EQ(e.submit(spec), SubmitStatus::ok);
  e.plan(), e.finish_transfers();
  EXPECT_THAT(e.plan(), ElementsAre(Pair('a', 3)));
  EXPECT_THAT(e.plan(), ElementsAre(Pair('a', 1)));
  e.commit({9});
  EXPECT_EQ(e.end_of('a'), FinishReason::stop);
  EXPECT_FALSE(e.is_live('a'));
  EXPECT_EQ(e.scheduler.num_live(), 0);
  EXPECT_EQ(e.scheduler.last_plan().num_discarded, 1U);
  EXPECT_TRUE(e.scheduler.is_discarded(e.scheduler.last_plan().rows[0]));
  EXPECT_EQ(e.scheduler.blocks().num_referenced(), 1U);
  EXPECT_TRUE(e.scheduler.residency().claims_place(e.ref(1)));

  e.submit(spec);          // its id is free
  e.submit('b', 2, 3, 1);  // waits for the slot
  EXPECT_THAT(e.plan(), ElementsAre(Pair('a', 3)));
  EXPECT_EQ(e.scheduler.blocks().num_referenced(), 2U);
  e.commit({4});
  EXPECT_EQ(e.scheduler.blocks().num_referenced(), 1U);
  EXPECT_EQ(e.request('a').num_generated, 0U);  // the token was not for this one
}

TEST(StepAhead, AnAbortEndsAtTheOlderCommit) {
  Engine e(Engine::config(2));
  e.submit('a', 0, 3, 8), e.submit('b', 0, 3, 8);
  e.plan(), e.plan();
  e.scheduler.abort('a', e.now_ns);
  EXPECT_TRUE(e.is_live('a'));
  e.commit();
  EXPECT_EQ(e.end_of('a'), FinishReason::abort);
  EXPECT_THAT(e.plan(), ElementsAre(Pair('b', 1)));
  EXPECT_EQ(e.scheduler.running().size(), 1U);
  e.scheduler.abort('b', e.now_ns);
  e.commit(), e.commit();
  EXPECT_EQ(e.scheduler.num_live(), 0);
  EXPECT_EQ(e.scheduler.blocks().num_referenced(), 0U);
}

// It is known to end with the step in flight, so the one ahead has no row for it.
TEST(StepAhead, LeavesOutWhomAnAbortEnds) {
  Engine e(Engine::config(2));
  e.submit('a', 0, 3, 8), e.submit('b', 0, 3, 8);
  e.plan();
  e.scheduler.abort('a', e.now_ns);
  EXPECT_TRUE(e.scheduler.can_plan_ahead());
  EXPECT_THAT(e.plan(), ElementsAre(Pair('b', 1)));
  e.commit();
  EXPECT_EQ(e.end_of('a'), FinishReason::abort);
  EXPECT_EQ(e.request('b').num_generated, 1U);
}

// Blocks of 4. Steps of 6 tokens: 4 are a's, so 2 are b's, which has room for them; a needs the
// last block.
TEST(StepAhead, CountsTheBlocksOfTheTokensThatFit) {
  for (const uint32_t num_blocks : {4, 3}) {
    SchedulerConfig c = Engine::config(1);
    c.max_num_batched_tokens = c.max_num_seqs = 6;
    c.long_prefill_threshold = 4;
    c.num_blocks = num_blocks;
    Engine e(c);
    e.submit('a', 0, 8, 0), e.submit('b', 0, 6, 0);
    EXPECT_THAT(e.plan(), ElementsAre(Pair('a', 4), Pair('b', 2)));
    EXPECT_EQ(e.scheduler.can_plan_ahead(), num_blocks == 4);
    if (num_blocks == 3) continue;
    EXPECT_THAT(e.plan(), ElementsAre(Pair('a', 4), Pair('b', 2)));
  }
}

TEST(StepAhead, IsNoStretch) {
  Engine e(Engine::config(2));
  e.submit('a', 0, 3, 20);
  e.step(), e.step();
  EXPECT_EQ(e.scheduler.stretch().num_steps, 17);
  e.plan(), e.plan();
  EXPECT_EQ(e.scheduler.stretch().num_steps, 0);
  e.commit(), e.commit();
  EXPECT_EQ(e.scheduler.stretch().num_steps, 0);
  e.step();
  EXPECT_EQ(e.scheduler.stretch().num_steps, 14);
}

// 5 blocks of 4 for two requests that come to 12 tokens each.
TEST(StepAhead, NobodyIsPreemptedUnderAStep) {
  SchedulerConfig c = Engine::config(2);
  c.num_blocks = 6;
  Engine e(c);
  e.submit('a', 0, 4, 8), e.submit('b', 0, 4, 8);
  int num_refused = 0;
  while (e.scheduler.num_live() > 0) {
    if (!e.plan().empty() && e.scheduler.can_plan_ahead()) {
      if (!e.plan().empty()) e.commit();
    } else {
      ++num_refused;
    }
    e.commit();
  }
  EXPECT_GT(num_refused, 0);
  EXPECT_EQ(e.decisions<decision::Preemption>().size(), 1U);
  EXPECT_EQ(e.scheduler.blocks().num_referenced(), 0U);
}

// A block is published by the step that fills it, though the next one has a block more.
TEST(StepAhead, PublishesWhatItFills) {
  Engine e(Engine::config(2));
  const std::vector<int32_t> prompt = {1, 2, 3};
  e.submit(tokens_with_stop('a', prompt, 6, {}));
  e.plan(), e.plan();
  e.commit({7});  // positions 0 to 2
  e.plan();       // position 4
  e.commit({8});  // position 3
  const std::vector<int32_t> longer = {1, 2, 3, 7, 8};
  e.submit(tokens_with_stop('b', longer, 1, {}));
  e.plan();
  EXPECT_EQ(e.decisions<decision::Admission>().back().num_cached_tokens, 4U);
}

}  // namespace
}  // namespace loratory::sim
