// Fleets in sizing: how many replicas an SLO takes.
#include "scheduler_sim/sizing/fleet_size.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/sizing/headroom.hpp"
#include "tests/scheduler_sim/sizing/small_engine.hpp"

namespace loratory::sim {
namespace {

using testing::ElementsAre;

// 50 requests/s, each in a step of 100 ms with at most one other: a replica serves 20 a second.
EngineSpec two_at_a_time() {
  struct HundredMilliseconds : StepTimeModel {
    int64_t step_ns(const BatchShape&) const override { return 100 * kMillisecond; }
  };
  EngineSpec spec = engine();
  spec.scheduler.max_num_seqs = 2;
  spec.make_step_time = [](EnginePoint) { return std::make_unique<HundredMilliseconds>(); };
  spec.fleet = FleetOptions{};
  return spec;
}

Trace one_token_each() {
  Trace trace = round_robin(1, 500);
  for (TraceRequest& r : trace.requests) r.output_tokens = 1, r.adapter = kBaseModel;
  return trace;
}

TEST(FewestReplicas, DoublesAndBisects) {
  std::vector<int32_t> tried;
  FleetSearch search;
  search.margin = 1;
  search.on_try = [&](int32_t n) { tried.push_back(n); };
  const Slo slo{.ttft_ms = 300};
  EXPECT_EQ(fewest_replicas({one_token_each()}, two_at_a_time(), {1, 1}, slo, search), 3);
  EXPECT_THAT(tried, ElementsAre(1, 2, 4, 3));
}

TEST(FewestReplicas, MarginIsMoreTraffic) {
  FleetSearch search;
  search.margin = 2;
  const Slo slo{.ttft_ms = 300};
  EXPECT_EQ(fewest_replicas({one_token_each()}, two_at_a_time(), {1, 1}, slo, search), 5);
}

TEST(FewestReplicas, NoneIfAStepIsTooLong) {
  FleetSearch search;
  search.max_replicas = 6;
  std::vector<int32_t> tried;
  search.on_try = [&](int32_t n) { tried.push_back(n); };
  const Slo slo{.ttft_ms = 99};
  EXPECT_EQ(fewest_replicas({one_token_each()}, two_at_a_time(), {1, 1}, slo, search), 0);
  EXPECT_THAT(tried, ElementsAre(1, 2, 4, 6));
}

TEST(FleetSize, PointsAreTheSizesOfTheSweep) {
  SweepOptions options;
  options.max_loras = {1, 4};
  EngineSpec spec = engine();
  const auto usual = fleet_points(spec, options, 6);
  ASSERT_EQ(usual.size(), 2u);
  EXPECT_EQ(usual[0].max_cpu_loras, 6);
  EXPECT_EQ(usual[1].max_cpu_loras, 6);
  options.max_cpu_loras = {2, 3};
  const auto given = fleet_points(spec, options, 6);
  ASSERT_EQ(given.size(), 1u);
  EXPECT_EQ(given[0].max_cpu_loras, 3);
  EXPECT_EQ(fleet_points(spec, {}, 6).size(), 4u);  // 1, 2, 4, 6
  spec.memory.host_memory_bytes =
      plan_memory(spec.model, spec.gpu, spec.memory, 1, 3).split.host_bytes;
  options.max_cpu_loras.clear();
  EXPECT_EQ(fleet_points(spec, options, 6)[0].max_cpu_loras, 3);
  EXPECT_EQ(fleet_points(spec, options, 6)[1].max_cpu_loras, 4);  // max_loras
}

// More slots do not help requests of the base model: both sizes take 3 replicas.
TEST(FleetSize, FewestForEveryPoint) {
  SweepOptions options;
  options.slo = {.ttft_ms = 300};
  FleetSearch search;
  search.margin = 1;
  const auto fleets =
      fewest_fleets({one_token_each()}, two_at_a_time(), {{1, 1}, {2, 2}}, options, search);
  ASSERT_EQ(fleets.size(), 2u);
  EXPECT_EQ(fleets[0].fleet.num_replicas, 3);
  EXPECT_EQ(fleets[1].max_loras, 2);
  EXPECT_TRUE(fleets[1].meets_slo);
  options.slo.ttft_ms = 99;
  search.max_replicas = 2;
  EXPECT_TRUE(
      fewest_fleets({one_token_each()}, two_at_a_time(), {{1, 1}}, options, search).empty());
}

// On whatever thread it happens.
TEST(FleetSize, AReplayThatFailsFailsTheSearch) {
  SweepOptions options;
  options.slo = {.ttft_ms = 300};
  options.num_threads = 4;
  FleetSearch search;
  search.on_try = [](int32_t) { throw InputError("the replay", "takes too long", "shorten it"); };
  const std::vector<EnginePoint> points(8, {1, 1});
  EXPECT_THROW(fewest_fleets({one_token_each()}, two_at_a_time(), points, options, search),
               InputError);
}

TEST(FleetSize, CheapestHasTheFewestGpusThenTheLowestTtft) {
  std::vector<ConfigResult> fleets(3);
  fleets[0].fleet.num_gpus = 4;
  fleets[1].fleet.num_gpus = fleets[2].fleet.num_gpus = 2;
  fleets[1].slo_ttft_ms = 20, fleets[2].slo_ttft_ms = 10;
  EXPECT_EQ(cheapest_fleet(fleets), 2);
  EXPECT_EQ(cheapest_fleet({}), -1);
}

// The advice of a sweep where nothing meets the SLO is what `auto` finds for the same row, whether
// the sweep was of one engine or of a fleet that is too small.
TEST(FleetSize, TheAdviceOfASweepIsTheSame) {
  const Trace trace = at_rate(one_token_each(), 1.15);  // 57.5/s; with the margin 63
  SweepOptions options;
  options.max_loras = {1};
  options.slo = {.ttft_ms = 300};
  EngineSpec one = two_at_a_time();
  one.fleet.reset();
  EngineSpec two = two_at_a_time();
  two.fleet->num_replicas = 2;
  const auto fleets = fewest_fleets({trace}, two_at_a_time(), {{1, 1}}, options, {});
  ASSERT_EQ(fleets.size(), 1u);
  EXPECT_EQ(fleets[0].fleet.num_replicas, 4);
  for (const EngineSpec& spec : {one, two}) {
    const SizeResult result = sweep({trace}, spec, options);
    ASSERT_EQ(result.recommended, -1);
    ASSERT_EQ(result.remedies.size(), 1u);
    EXPECT_EQ(result.remedies[0].flags, fmt::format("--replicas {}", fleets[0].fleet.num_replicas));
    EXPECT_EQ(result.remedies[0].result.event_log_hash, fleets[0].event_log_hash);
  }
  options.find_headroom = false;  // then nothing says that less traffic would do
  EXPECT_TRUE(sweep({trace}, one, options).remedies.empty());
  options.find_headroom = true;
  options.slo.ttft_ms = 99;  // less than a step
  EXPECT_TRUE(sweep({trace}, one, options).remedies.empty());
}

TEST(FleetReplay, DecisionsHaveTheTracesNumbers) {
  EngineSpec spec = two_at_a_time();
  spec.fleet->num_replicas = 2;
  const ReplayOutput out = replay(one_token_each(), spec, {1, 1}, Slo{}, ReplayDetail::decisions);
  ASSERT_EQ(out.replica_decisions.size(), 2u);
  EXPECT_EQ(out.replica_decisions[1].front().request, 1u);
  EXPECT_EQ(out.replica_decisions[0].back().request, 498u);
  EXPECT_EQ(out.result.fleet.router, "round-robin");
  EXPECT_EQ(out.result.fleet.num_gpus, 2);
}

}  // namespace
}  // namespace loratory::sim
