// Worked examples of docs/scheduler.md, part "Scheduler": who runs in which step.
#include <gmock/gmock.h>

#include "tests/scheduler_sim/scheduler/engine.hpp"

namespace loratory::sim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

SchedulerConfig eight_tokens(int32_t max_loras) {
  SchedulerConfig c = Engine::config(max_loras);
  c.max_num_batched_tokens = c.max_num_seqs = 8;
  return c;
}

void submit_five(Engine& e) {
  e.preload(3);
  e.submit('a', 1, 6, 2), e.submit('b', 2, 5, 2), e.submit('c', 3, 2, 2);
  e.submit('d', 0, 3, 2), e.submit('e', 1, 1, 2);
}

TEST(Walk, TwoSlots) {  // [7.21]
  Engine e(eight_tokens(2));
  submit_five(e);
  EXPECT_THAT(e.step(), ElementsAre(Pair('a', 6), Pair('b', 2)));
  EXPECT_EQ(e.request('a').num_generated, 1U);
  EXPECT_THAT(e.plan(), ElementsAre(Pair('a', 1), Pair('b', 3), Pair('d', 3), Pair('e', 1)));
  std::vector<Uid> uids;
  for (const StepRow& row : e.rows) {
    uids.push_back(row.adapter == kBaseRef ? kBaseUid : e.scheduler.residency().uid(row.adapter));
    EXPECT_TRUE(row.samples);
  }
  EXPECT_THAT(uids, ElementsAre(1, 2, 0, 1));
  e.commit();
  EXPECT_EQ(e.end_of('a'), FinishReason::length);
  EXPECT_THAT(e.step(), ElementsAre(Pair('b', 1), Pair('d', 1), Pair('e', 1)));
  EXPECT_TRUE(!e.is_live('b') && !e.is_live('d') && !e.is_live('e'));
  EXPECT_THAT(e.step(), ElementsAre(Pair('c', 2)));
  EXPECT_EQ(e.scheduler.residency().num_claimants(), 1);
  EXPECT_THAT(e.step(), ElementsAre(Pair('c', 1)));
  EXPECT_EQ(e.scheduler.num_live(), 0);
}

TEST(Walk, OneSlot) {  // [7.22]
  Engine e(eight_tokens(1));
  submit_five(e);
  EXPECT_THAT(e.step(), ElementsAre(Pair('a', 6), Pair('d', 2)));
  EXPECT_THAT(e.step(), ElementsAre(Pair('a', 1), Pair('d', 1), Pair('e', 1)));
  EXPECT_FALSE(e.is_live('a'));
  EXPECT_THAT(e.step(), ElementsAre(Pair('d', 1), Pair('e', 1)));
  EXPECT_THAT(e.step(), ElementsAre(Pair('b', 5)));
  EXPECT_THAT(e.step(), ElementsAre(Pair('b', 1)));
  EXPECT_THAT(e.step(), ElementsAre(Pair('c', 2)));
  EXPECT_THAT(e.step(), ElementsAre(Pair('c', 1)));
  EXPECT_EQ(e.scheduler.num_live(), 0);
}

Engine::Rows batch_of(const std::vector<int>& adapters) {  // [5.33]
  Engine e(Engine::config(2));
  e.preload(4);
  for (size_t i = 0; i < adapters.size(); ++i) e.submit(char('a' + i), adapters[i], 1, 1);
  return e.step();
}

TEST(Walk, AtMostTwoAdaptersInABatch) {
  EXPECT_THAT(batch_of({1, 2, 3, 4}), ElementsAre(Pair('a', 1), Pair('b', 1)));
  EXPECT_EQ(batch_of({1, 1, 2, 2}).size(), 4U);
  EXPECT_EQ(batch_of({1, 2, 0, 0}).size(), 4U);
}

// vllm#15422: requests that wait for a slot hold up neither the base model nor adapters that have
// one; vllm#53130: nor do they use up max_num_seqs.
TEST(Walk, BlockedRequestsHoldUpNobody) {
  SchedulerConfig c = Engine::config(1);
  c.max_num_seqs = 3;
  Engine e(c);
  e.preload(2);
  e.submit('r', 1, 2, 9);
  e.step();
  for (const char id : {'x', 'y', 'z'}) e.submit(id, 2, 2, 2);
  e.submit('b', 0, 2, 2), e.submit('s', 1, 2, 2);
  EXPECT_THAT(e.step(), ElementsAre(Pair('r', 1), Pair('b', 2), Pair('s', 2)));
}

// P61: an adapter whose request fails for lack of blocks takes no place.
TEST(Walk, FailedAdmissionTakesNoSlot) {
  SchedulerConfig c = Engine::config(1);
  c.num_blocks = 5;  // 16 tokens
  Engine e(c);
  e.preload(2);
  e.submit('r', 0, 8, 4);
  e.step();
  e.submit('a', 1, 12, 1);
  EXPECT_THAT(e.step(), ElementsAre(Pair('r', 1)));
  EXPECT_EQ(e.scheduler.residency().num_claimants(), 0);
  e.scheduler.abort('a', e.now_ns);
  e.submit('b', 2, 4, 1);
  EXPECT_THAT(e.step(), ElementsAre(Pair('r', 1), Pair('b', 4)));
}

TEST(Walk, OnlyTheMissingAdapterIsCopied) {  // [5.25]
  Engine e(Engine::config(2));
  e.preload(3);
  e.submit('a', 1, 1, 1), e.step();
  e.submit('b', 2, 1, 1), e.step();
  EXPECT_THAT(e.slots(), ElementsAre(1, 2));
  e.log.all.clear();
  e.submit('c', 3, 1, 1), e.submit('d', 1, 1, 1);
  EXPECT_EQ(e.step().size(), 2U);
  EXPECT_EQ(e.decisions<decision::Copy>().size(), 1U);
  EXPECT_THAT(e.slots(), ElementsAre(1, 3));
}

TEST(Walk, LowerPriorityNumbersGoFirst) {
  SchedulerConfig c = Engine::config(1);
  c.max_num_seqs = 1;
  Engine e(c);
  e.submit('l', 0, 1, 1, 5), e.submit('h', 0, 1, 1, -5), e.submit('m', 0, 1, 1, 0);
  EXPECT_THAT(e.step(), ElementsAre(Pair('h', 1)));
  EXPECT_THAT(e.step(), ElementsAre(Pair('m', 1)));
  EXPECT_THAT(e.step(), ElementsAre(Pair('l', 1)));
  c.use_priorities = false;
  Engine fcfs(c);
  fcfs.submit('l', 0, 1, 1, 5), fcfs.submit('h', 0, 1, 1, -5);
  EXPECT_THAT(fcfs.step(), ElementsAre(Pair('l', 1)));
}

// One request of adapter 1 arrives each step and would keep adapter 2 out for ever if the limit of
// a drain were the current longest request ([5.36]).
TEST(Walk, SteadyStreamDoesNotStarveAnotherAdapter) {
  SchedulerConfig c = Engine::config(1);
  c.n_starve = 4;
  c.t_starve_ns = kNever;
  Engine e(c);
  e.preload(2);
  e.submit('!', 1, 1, 8), e.step();
  e.submit('?', 2, 1, 1);
  int num_steps = 0;
  for (char id = 'A'; e.is_live('?') && num_steps < 50;
       ++num_steps, id = id == 'z' ? 'A' : id + 1) {
    e.submit(id, 1, 1, 8);
    e.step();
  }
  EXPECT_EQ(e.decisions<decision::Drain>().size(), 1U);
  EXPECT_EQ(e.decisions<decision::Drain>()[0].num_steps_left, 8);  // floor(1.2 * 7)
  // 4 rejections, then 9 walks until the last one admitted under the limit is done.
  EXPECT_LE(num_steps, 4 + 9 + 8);
  EXPECT_EQ(e.end_of('?'), FinishReason::length);
}

// Three of four places are free. Base traffic uses up every walk before the request that reserves
// is reached: one of higher priority must not wait for it.
TEST(Walk, AReservationDoesNotBindHigherPriorities) {  // [7.10]
  SchedulerConfig c = Engine::config(4);
  c.max_num_batched_tokens = c.max_num_seqs = 8;
  c.n_starve = 0;
  Engine e(c);
  e.preload(3);
  e.submit('r', 1, 1, 100, /*priority=*/1), e.step();
  e.submit('l', 2, 1, 1, /*priority=*/2), e.submit('1', 0, 7, 1, /*priority=*/1);
  EXPECT_THAT(e.step(), ElementsAre(Pair('r', 1), Pair('1', 7)));
  EXPECT_GE(e.request('l').reservation, 0);
  e.submit('h', 3, 1, 1, /*priority=*/0), e.submit('2', 0, 7, 1, /*priority=*/1);
  EXPECT_THAT(e.step(), ElementsAre(Pair('r', 1), Pair('h', 1), Pair('2', 6)));
  EXPECT_GE(e.request('l').reservation, 0);
}

// A drain made for a request of lower priority would be in vain: the place it frees goes to those
// who were turned away meanwhile.
TEST(Walk, NoDrainForAReservationOfLowerPriority) {  // [7.10]
  SchedulerConfig c = Engine::config(1);
  c.n_starve = 0;
  Engine e(c);
  e.preload(2);
  e.submit('r', 1, 1, 9, /*priority=*/0), e.step();
  e.submit('l', 2, 1, 1, /*priority=*/1), e.step();
  EXPECT_TRUE(e.decisions<decision::Drain>().empty());
  e.submit('s', 1, 1, 20, /*priority=*/0);
  EXPECT_THAT(e.step(), ElementsAre(Pair('r', 1), Pair('s', 1)));
  e.submit('h', 2, 1, 1, /*priority=*/0), e.step();
  EXPECT_EQ(e.decisions<decision::Drain>().size(), 1U);
}

// h reserves in place of l and its drain is in order: it binds s. Nobody comes or goes on the GPU
// until h is gone, and l, which does not bind s, has the reservation again.
TEST(Walk, ADrainEndsWhenTheReservationFallsBack) {  // [7.10]
  SchedulerConfig c = Engine::config(1);
  c.n_starve = 0;
  Engine e(c);
  e.preload(2);
  e.submit('r', 1, 1, 90, /*priority=*/1), e.step();
  e.submit('l', 2, 1, 1, /*priority=*/1), e.step();
  e.submit('s', 1, 1, 90, /*priority=*/0), e.step(), e.step();
  EXPECT_EQ(e.decisions<decision::DrainEnd>().size(), 1U);
  e.submit('h', 2, 1, 1, /*priority=*/0), e.step();
  EXPECT_EQ(e.decisions<decision::Drain>().size(), 2U);
  EXPECT_EQ(e.decisions<decision::DrainEnd>().size(), 1U);
  e.scheduler.abort('h', e.now_ns), e.step();
  EXPECT_EQ(e.decisions<decision::DrainEnd>().size(), 2U);
}

TEST(Walk, OverlapLeavesARequestBehindUntilItsAdapterIsThere) {  // [5.23]
  Engine e(Engine::config(1, LoadMode::overlap));
  e.submit('a', 1, 2, 2), e.submit('b', 0, 3, 2);
  EXPECT_THAT(e.step(), ElementsAre(Pair('b', 3)));
  EXPECT_TRUE(e.scheduler.residency().promised(e.ref(1)));
  e.finish_load(true);
  EXPECT_THAT(e.step(), ElementsAre(Pair('b', 1)));
  EXPECT_THAT(e.plan(), IsEmpty());  // nothing to run: the copy is in flight
  e.finish_copy();
  EXPECT_THAT(e.step(), ElementsAre(Pair('a', 2)));
  EXPECT_FALSE(e.scheduler.residency().promised(e.ref(1)));
}

TEST(Walk, WithoutChunksAPromptWaitsForItsWholeBudget) {
  SchedulerConfig c = Engine::config(1);
  c.max_num_seqs = 4;
  c.max_num_batched_tokens = c.max_model_len = 10;
  c.chunked_prefill = false;
  Engine e(c);
  e.submit('a', 0, 4, 2), e.submit('b', 0, 7, 1), e.submit('c', 0, 1, 1);
  EXPECT_THAT(e.step(), ElementsAre(Pair('a', 4)));
  EXPECT_THAT(e.step(), ElementsAre(Pair('a', 1), Pair('b', 7), Pair('c', 1)));
}

TEST(Walk, LongPromptsAreCutAtTheThreshold) {
  SchedulerConfig c = Engine::config(1);
  c.long_prefill_threshold = 3;
  Engine e(c);
  e.submit('a', 0, 7, 1), e.submit('b', 0, 2, 1);
  EXPECT_THAT(e.step(), ElementsAre(Pair('a', 3), Pair('b', 2)));
  EXPECT_THAT(e.step(), ElementsAre(Pair('a', 3)));
  EXPECT_THAT(e.step(), ElementsAre(Pair('a', 1)));
}

// One seat. Adapter 1 has a slot, 2 has none; b is older than every request for 1.
SchedulerConfig one_seat(AdmissionOrder order) {
  SchedulerConfig c = Engine::config(2);
  c.max_num_seqs = 1;
  c.n_starve = 2;
  c.t_starve_ns = kNever;
  c.admission_order = order;
  return c;
}

std::string order_of_admission(AdmissionOrder order) {
  Engine e(one_seat(order));
  e.preload(2);
  e.submit('a', 1, 1, 1), e.step();
  e.submit('b', 2, 1, 1);
  for (const char id : {'c', 'd', 'e'}) e.submit(id, 1, 1, 1);
  std::string seats;
  while (e.scheduler.num_live() > 0) seats += e.step().front().first;
  return seats;
}

// In arrival order b is next. Packed, it is overtaken twice and then reserves.
TEST(Walk, PackedAdmissionPutsAdaptersOnTheGpuFirst) {  // [7.23]
  EXPECT_EQ(order_of_admission(AdmissionOrder::arrival), "bcde");
  EXPECT_EQ(order_of_admission(AdmissionOrder::packed), "cdbe");
}

// The base model is packed, lower priorities are not overtaken by packed ones behind them.
TEST(Walk, PackedAdmissionKeepsPriorities) {  // [7.23]
  Engine e(one_seat(AdmissionOrder::packed));
  e.preload(2);
  e.submit('a', 1, 1, 1), e.step();
  e.submit('b', 2, 1, 1, /*priority=*/0), e.submit('c', 1, 1, 1, /*priority=*/1);
  e.submit('z', 0, 1, 1, /*priority=*/0);
  std::string seats;
  while (e.scheduler.num_live() > 0) seats += e.step().front().first;
  EXPECT_EQ(seats, "zbc");
}

// An engine that goes through the queue one by one: what it admits, and what it passes over.
TEST(Walk, CountsWhatItLooksAt) {
  SchedulerConfig c = eight_tokens(1);
  c.count_waiting_seen = true;
  Engine e(c);
  submit_five(e);
  e.plan();  // a and d take all tokens; b and c were passed over on the way to d
  EXPECT_EQ(e.scheduler.last_plan().num_waiting_seen, 4u);
  e.commit();
  e.plan();  // e comes in behind b and c
  EXPECT_EQ(e.scheduler.last_plan().num_waiting_seen, 3u);
  e.commit();
  e.plan();  // nobody does: b and c wait for the slot
  EXPECT_EQ(e.scheduler.last_plan().num_waiting_seen, 2u);
}

TEST(Walk, LooksAtNobodyWithoutASeat) {
  SchedulerConfig c = Engine::config(2);
  c.max_num_seqs = 1;
  c.count_waiting_seen = true;
  Engine e(c);
  e.preload(2);
  e.submit('a', 1, 2, 4), e.submit('b', 2, 2, 4);
  e.plan();
  EXPECT_EQ(e.scheduler.last_plan().num_waiting_seen, 1u);
  e.commit();
  e.plan();
  EXPECT_EQ(e.scheduler.last_plan().num_waiting_seen, 0u);
}

}  // namespace
}  // namespace loratory::sim
