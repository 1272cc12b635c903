// Sizing on hand-made workloads: which row is recommended, and what the sweep keeps.
#include "scheduler_sim/sizing/sweep.hpp"

#include <gmock/gmock.h>

#include <algorithm>

#include "scheduler_sim/sizing/recommend.hpp"
#include "tests/scheduler_sim/sizing/small_engine.hpp"

namespace loratory::sim {
namespace {

TEST(AutoSizes, ArePowersOfTwoAndTheNumberItself) {
  EXPECT_EQ(auto_sizes(1), (std::vector<int32_t>{1}));
  EXPECT_EQ(auto_sizes(8), (std::vector<int32_t>{1, 2, 4, 8}));
  EXPECT_EQ(auto_sizes(20), (std::vector<int32_t>{1, 2, 4, 8, 16, 20}));
  EXPECT_EQ(auto_sizes(0), (std::vector<int32_t>{1}));
}

TEST(Sweep, RecommendsTheSmallestThatMeetsTheSlo) {
  SweepOptions options;
  options.slo = {.ttft_ms = 400, .tpot_ms = 20};
  const SizeResult result = sweep({round_robin(8, 400)}, engine(), options);
  ASSERT_GE(result.recommended, 0);
  const ConfigResult& chosen = result.configs[size_t(result.recommended)];
  EXPECT_TRUE(chosen.meets_slo);
  double best = 0;
  for (const ConfigResult& c : result.configs) {
    if (c.meets_slo) best = std::max(best, c.request_goodput);
  }
  EXPECT_GE(chosen.request_goodput, 0.99 * best);
  for (int32_t i = 0; i < result.recommended; ++i) {
    const ConfigResult& smaller = result.configs[size_t(i)];
    EXPECT_TRUE(!smaller.meets_slo || smaller.request_goodput < 0.99 * best);
  }
  EXPECT_FALSE(chosen.requests.empty());
  EXPECT_FALSE(chosen.timeline.empty());
  EXPECT_EQ(result.miss_ratio_curves.size(), 3u);
  EXPECT_FALSE(result.reason.empty());
  EXPECT_FALSE(result.next_limit.empty());
}

TEST(Sweep, HostPlacesDefaultToFourTimesTheSlotsUpToAllAdapters) {
  SweepOptions options;
  options.max_loras = {1, 2, 4};
  const SizeResult result = sweep({round_robin(6, 20)}, engine(), options);
  ASSERT_EQ(result.configs.size(), 3u);
  EXPECT_EQ(result.configs[0].max_cpu_loras, 4);
  EXPECT_EQ(result.configs[1].max_cpu_loras, 6);
  EXPECT_EQ(result.configs[2].max_cpu_loras, 6);
}

TEST(Sweep, OneRowPerPairAndOnlyLegalOnes) {
  SweepOptions options;
  options.max_loras = {2, 4};
  options.max_cpu_loras = {3, 8};
  const SizeResult result = sweep({round_robin(6, 20)}, engine(), options);
  std::vector<std::pair<int32_t, int32_t>> points;
  for (const ConfigResult& c : result.configs) points.emplace_back(c.max_loras, c.max_cpu_loras);
  EXPECT_EQ(points, (std::vector<std::pair<int32_t, int32_t>>{{2, 3}, {2, 8}, {4, 8}}));
}

TEST(Sweep, BandsHoldTheShownRow) {
  SweepOptions options;
  options.max_loras = {1, 2};
  options.slo = {.ttft_ms = 60};
  const SizeResult result =
      sweep({round_robin(2, 60), round_robin(3, 60), round_robin(5, 60)}, engine(), options);
  EXPECT_EQ(result.num_seeds, 3);
  for (size_t i = 0; i < result.configs.size(); ++i) {
    EXPECT_LE(result.goodput_min[i], result.configs[i].request_goodput);
    EXPECT_GE(result.goodput_max[i], result.configs[i].request_goodput);
  }
}

TEST(Sweep, NothingFits) {
  EngineSpec tight = engine();
  tight.gpu.memory_bytes = 1;
  SweepOptions options;
  options.max_loras = {1, 2};
  const SizeResult result = sweep({round_robin(2, 10)}, tight, options);
  EXPECT_EQ(result.recommended, -1);
  EXPECT_FALSE(result.configs[0].feasible);
  EXPECT_EQ(result.reason, "no configuration fits in memory");
}

TEST(Choose, PrefersTheSmallestWithinOnePercent) {
  SizeResult result;
  for (const double goodput : {9.0, 9.95, 10.0}) {
    result.configs.emplace_back();
    result.configs.back().request_goodput = goodput;
  }
  EXPECT_EQ(choose(result, {true, true, true}), 1);
  EXPECT_EQ(choose(result, {true, false, true}), 2);
  EXPECT_EQ(choose(result, {true, false, false}), 0);
  EXPECT_EQ(choose(result, {false, false, false}), -1);
}

// With two slots the first seed has every adapter on the GPU; the second thrashes.
TEST(Sweep, EverySeedMustMeetTheSlo) {
  SweepOptions options;
  options.max_loras = {2};
  options.slo = {.ttft_ms = 400};
  const Trace good = round_robin(2, 60), bad = round_robin(8, 200);
  EXPECT_EQ(sweep({good, good}, engine(), options).recommended, 0);
  EXPECT_EQ(sweep({good, bad}, engine(), options).recommended, -1);
  EXPECT_EQ(sweep({good, good, bad}, engine(), options).recommended, -1);
}

// 1, 2, 4, 8 first, then the middles between the best of them and its neighbours.
TEST(Sweep, AutoLooksAroundTheBest) {
  SweepOptions options;
  options.slo = {.ttft_ms = 400, .tpot_ms = 20};
  const SizeResult result = sweep({round_robin(8, 400)}, engine(), options);
  std::vector<int32_t> sizes;
  for (const ConfigResult& c : result.configs) sizes.push_back(c.max_loras);
  EXPECT_THAT(sizes, testing::ElementsAre(1, 2, 3, 4, 6, 8));
}

TEST(Sweep, OnlyTheChosenRowKeepsItsRequests) {
  SweepOptions options;
  options.max_loras = {2, 4, 8};
  options.slo = {.ttft_ms = 400, .tpot_ms = 20};
  const SizeResult result = sweep({round_robin(8, 400)}, engine(), options);
  for (size_t i = 0; i < result.configs.size(); ++i) {
    const bool is_chosen = int32_t(i) == result.recommended;
    EXPECT_EQ(result.configs[i].requests.empty(), !is_chosen) << i;
    EXPECT_EQ(result.configs[i].timeline.empty(), !is_chosen) << i;
    EXPECT_EQ(result.configs[i].slot_spans.empty(), !is_chosen) << i;
  }
  std::vector<int32_t> sizes = result.miss_ratio_curves[0].sizes;
  EXPECT_THAT(sizes, testing::ElementsAre(1, 2, 4, 8));
}

// Four rows; the second is chosen, so the first and the third are its neighbours.
TEST(Explain, ComparesWithTheNearestSizes) {
  SizeResult result;
  result.slo = {.ttft_ms = 100};
  for (const int32_t size : {1, 4, 8, 32}) {
    ConfigResult c;
    c.max_loras = size, c.max_cpu_loras = 4 * size;
    c.request_goodput = 10;
    c.memory.kv_blocks = 1000 - 10 * size;
    result.configs.push_back(c);
  }
  result.configs[2].request_goodput = 11;
  result.configs[1].timeline = {{.kv_blocks_used = 5}, {.kv_blocks_used = 900}, {}};
  result.recommended = 1;
  explain(result);
  EXPECT_THAT(result.reason, testing::HasSubstr("with 1 slots"));
  result.configs[0].feasible = false;  // nothing to compare with
  explain(result);
  EXPECT_THAT(result.reason, testing::Not(testing::HasSubstr("with 1 slots")));
  EXPECT_THAT(result.next_limit, testing::HasSubstr("8 slots would take 4 %"));
  EXPECT_THAT(result.next_limit, testing::HasSubstr("bring 10.0 % more goodput"));
  EXPECT_THAT(result.next_limit, testing::HasSubstr("94 % of the blocks"));  // 900 of 960
  result.recommended = 3;
  explain(result);
  EXPECT_THAT(result.reason, testing::HasSubstr("with 8 slots"));
}

}  // namespace
}  // namespace loratory::sim
