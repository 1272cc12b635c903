#include "scheduler_sim/measured/metrics_polls.hpp"

#include <gtest/gtest.h>

namespace loratory::sim {
namespace {

// Polls at 100..130 and 230..260.
MetricsPolls two_polls() {
  MetricsPolls polls(100);
  polls.advance_to(240, 30, true);
  return polls;
}

TEST(MetricsPolls, WhatHappensDuringOneIsSeenAtItsEnd) {
  const MetricsPolls polls = two_polls();
  EXPECT_EQ(polls.seen_ns(99), 99);
  EXPECT_EQ(polls.seen_ns(100), 130);
  EXPECT_EQ(polls.seen_ns(129), 130);
  EXPECT_EQ(polls.seen_ns(130), 130);
  EXPECT_EQ(polls.seen_ns(131), 131);
  EXPECT_EQ(polls.seen_ns(240), 260);
}

// A token every 10: six of the 20 fall into polls and leave in two chunks.
TEST(MetricsPolls, TokensOfOnePollLeaveTogether) {
  const MetricsPolls polls = two_polls();
  EXPECT_DOUBLE_EQ(polls.num_gaps_seen(80, 280, 20), 16);
  EXPECT_DOUBLE_EQ(polls.num_gaps_seen(131, 229, 10), 10);
  EXPECT_DOUBLE_EQ(polls.num_gaps_seen(80, 80, 0), 0);
}

// Of three polls the second, at 230..260, merges nothing: three tokens are one, twice.
TEST(MetricsPolls, OrOneByOne) {
  MetricsPolls polls(100);
  polls.advance_to(200, 30, true);
  polls.advance_to(330, 30, false);
  polls.advance_to(400, 30, true);
  EXPECT_DOUBLE_EQ(polls.num_gaps_seen(80, 280, 20), 18);
  EXPECT_DOUBLE_EQ(polls.num_gaps_seen(80, 480, 40), 36);
  EXPECT_DOUBLE_EQ(polls.num_gaps_seen(200, 300, 10), 10);
}

TEST(MetricsPolls, NobodyAsks) {
  MetricsPolls polls(0);
  polls.advance_to(1'000, 30, true);
  EXPECT_EQ(polls.seen_ns(500), 500);
}

}  // namespace
}  // namespace loratory::sim
