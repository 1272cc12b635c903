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

}  // namespace
}  // namespace loratory::sim
