// ActivationOrder::one_by_one: what it costs to bring one adapter into full slots.
#include "scheduler_sim/scheduler/activation.hpp"

#include <gmock/gmock.h>

#include "tests/scheduler_sim/scheduler/engine.hpp"

namespace loratory::sim {
namespace {

using testing::IsEmpty;

// Adapters 1 .. n in the order of the engine's set.
std::vector<Uid> in_set_order(int num_adapters) {
  std::vector<Uid> uids;
  for (int i = 1; i <= num_adapters; ++i) uids.push_back(Uid(i));
  std::ranges::sort(uids, {}, Activation::place_in_set);
  return uids;
}

// Four slots and five adapters: `first` of them run, then `leaving` ends and `coming` comes.
// Returns how many adapters of the step are copied again.
size_t copies_again(Uid leaving, Uid coming, ActivationOrder order) {
  SchedulerConfig config = Engine::config(4);
  config.activation = order;
  Engine e(config, 5);
  e.preload(5);
  for (Uid uid = 1; uid <= 5; ++uid) {
    if (uid != coming) e.submit(char('a' + uid), int(uid), 2, uid == leaving ? 2 : 6);
  }
  e.step();
  e.step();  // the last one of `leaving`
  e.submit('z', int(coming), 2, 2);
  e.plan();
  const size_t again = e.scheduler.last_plan().copied_again.size();
  e.commit();
  return again;
}

TEST(Activation, WhoComesBehindTheOneThatLeftPushesNobodyOut) {
  const std::vector<Uid> order = in_set_order(5);
  EXPECT_EQ(copies_again(order[0], order[4], ActivationOrder::one_by_one), 0u);
  EXPECT_EQ(copies_again(order[1], order[3], ActivationOrder::one_by_one), 0u);
}

// The least recent one is then the next of the set, which is needed and pushes out the next one.
TEST(Activation, WhoComesBeforeItPushesOutAllBetween) {
  const std::vector<Uid> order = in_set_order(5);
  EXPECT_EQ(copies_again(order[4], order[0], ActivationOrder::one_by_one), 3u);
  EXPECT_EQ(copies_again(order[3], order[1], ActivationOrder::one_by_one), 1u);
}

TEST(Activation, WhatTheStepNeedsStaysOtherwise) {
  const std::vector<Uid> order = in_set_order(5);
  EXPECT_EQ(copies_again(order[4], order[0], ActivationOrder::needed), 0u);
}

// The first of the set comes into three slots, and the second one has to stay. It is pushed out and
// copied again if it is the one that ran longest ago.
TEST(Activation, TheLeastRecentGoesFirst) {
  const std::vector<Uid> order = in_set_order(4);
  for (const bool runs_again : {false, true}) {
    SchedulerConfig config = Engine::config(3);
    config.activation = ActivationOrder::one_by_one;
    Engine e(config, 4);
    e.preload(4);
    const auto run_alone = [&](Uid uid) {
      e.submit('x', int(uid), 2, 1);
      e.step();
    };
    for (const size_t i : {1, 2, 3}) run_alone(order[i]);
    if (runs_again) run_alone(order[1]);
    e.submit('a', int(order[0]), 2, 2), e.submit('b', int(order[1]), 2, 2);
    e.plan();
    EXPECT_EQ(e.scheduler.last_plan().copied_again.size(), runs_again ? 0u : 1u);
    e.commit();
    e.plan();
    EXPECT_THAT(e.scheduler.last_plan().copied_again, IsEmpty());  // all are there now
    e.commit();
  }
}

// A pinned adapter is on the GPU before it ran in any step.
TEST(Activation, WhoNeverRanWasLeastRecent) {
  SchedulerConfig config = Engine::config(3);
  config.activation = ActivationOrder::one_by_one;
  Engine e(config, 6);
  EXPECT_EQ(e.scheduler.pin(6, e.now_ns), PinStatus::ok);
  e.scheduler.load_done(6, true, e.now_ns);
  e.scheduler.copy_done(6, e.now_ns);
  e.submit('a', 1, 2, 2), e.submit('b', 6, 2, 2);
  e.plan();
  EXPECT_THAT(e.scheduler.last_plan().copied_again, IsEmpty());
  EXPECT_EQ(e.scheduler.last_plan().wait_for, (std::vector<AdapterRef>{e.ref(1)}));
}

// The first two numbers of SplitMix64 from seed 0: its finaliser of 1 and 2 increments.
TEST(Activation, PlacesAreThoseOfSplitMix64) {
  EXPECT_EQ(Activation::place_in_set(0x9e3779b97f4a7c15u), 0xe220a8397b1dcdafu);
  EXPECT_EQ(Activation::place_in_set(0x3c6ef372fe94f82au), 0x6e789e6aa1b965f4u);
}

}  // namespace
}  // namespace loratory::sim
