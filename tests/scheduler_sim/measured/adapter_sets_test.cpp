#include "scheduler_sim/measured/adapter_sets.hpp"

#include <gtest/gtest.h>

namespace loratory::sim {
namespace {

struct Server {
  AdapterSets sets;
  void arrive(Uid uid, int64_t ns) { sets.on_decision({ns, uid, uid, decision::Arrival{1, 9}}); }
  void first(Uid uid, int64_t ns) { sets.on_decision({ns, uid, uid, decision::FirstToken{}}); }
  void finish(Uid uid, int64_t ns) {
    sets.on_decision({ns, uid, uid, decision::Finish{FinishReason::length, 9}});
  }
};

// After each step: {1 runs}, {1 and 2 run, 3 waits}, {2 runs, 3 waits}.
TEST(AdapterSets, CountsWhatStepsReport) {
  Server s;
  s.arrive(1, 10);
  s.first(1, 20);
  EXPECT_EQ(s.sets.num_seen(), 0);
  s.arrive(2, 21), s.arrive(3, 22);
  EXPECT_EQ(s.sets.num_seen(), 1);
  s.first(2, 30);
  s.finish(1, 40);
  EXPECT_EQ(s.sets.num_seen(), 2);
  s.arrive(9, 41);
  EXPECT_EQ(s.sets.num_seen(), 3);
  EXPECT_EQ(s.sets.num_names(), 1 + 3 + 2);
}

TEST(AdapterSets, AStepReportsOnceAndASetCountsOnce) {
  Server s;
  for (int64_t round = 0; round < 3; ++round) {
    const int64_t ns = 100 * round;
    s.arrive(1, ns), s.arrive(2, ns);
    s.first(1, ns + 10), s.first(2, ns + 10);
    s.finish(1, ns + 20), s.finish(2, ns + 20);
  }
  s.arrive(1, 1000);
  EXPECT_EQ(s.sets.num_seen(), 2);  // both run, and nobody
  EXPECT_EQ(s.sets.num_names(), 2);
}

}  // namespace
}  // namespace loratory::sim
