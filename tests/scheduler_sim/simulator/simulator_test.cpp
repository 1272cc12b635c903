// The event loop by hand: when steps start and end, and what happens at the same nanosecond.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>

#include "fuzz/support/tier_counts.hpp"
#include "reference/base/input_error.hpp"
#include "tests/scheduler_sim/simulator/tiny_replay.hpp"

namespace loratory::sim {
namespace {

using testing::ElementsAre;

std::vector<std::string> events(const Simulator& simulator) {
  std::vector<std::string> out;
  for (const Decision& d : simulator.log().decisions()) {
    out.push_back(std::to_string(d.time_ns) + " " + name_of(d));
  }
  return out;
}

// 11.6 days a step, and 10,000 of them.
TEST(Simulator, EndsWithAnErrorBeforeTheClockOverflows) {
  const Trace trace = two_adapters({at(0, kBaseModel, 3, 10'000)});
  for (const bool fast : {true, false}) {
    for (const StepsAhead ahead : {StepsAhead::none, StepsAhead::one}) {
      SimulationConfig c = tiny_config(LoadMode::overlap);
      c.scheduler.num_blocks = 3000;
      c.fast = fast;
      c.steps_ahead = ahead;
      const FixedTime times(1'000'000'000'000'000);
      Simulator s(trace, c, times);
      EXPECT_THROW(s.run(), InputError);
    }
  }
}

TEST(Simulator, OverlapLoadsBesideTheSteps) {
  const Trace trace = two_adapters({at(5, 0, 3, 2), at(5, kBaseModel, 3, 1)});
  const FixedTime times(50);
  Simulator s(trace, tiny_config(LoadMode::overlap), times);
  s.run();
  EXPECT_THAT(events(s),
              ElementsAre("5 arrival", "5 load", "5 arrival", "5 admission", "55 first_token",
                          "55 finish", "105 load_done", "105 copy", "115 copy_done",
                          "115 admission", "165 first_token", "215 finish"));
}

TEST(Simulator, BlockingStepWaitsForItsAdapter) {
  const Trace trace = two_adapters({at(5, 0, 3, 1), at(5, kBaseModel, 3, 1)});
  const FixedTime times(50);
  Simulator s(trace, tiny_config(LoadMode::blocking), times);
  s.run();
  EXPECT_THAT(events(s),
              ElementsAre("5 arrival", "5 load", "5 arrival", "5 admission", "5 admission",
                          "105 load_done", "105 copy", "115 copy_done", "165 first_token",
                          "165 finish", "165 first_token", "165 finish"));
  EXPECT_EQ(s.scheduler().residency().num_on_gpu(), 1);
}

// At 55 ns the first step ends, request 1 arrives and request 2 is cancelled: arrival, step, abort,
// and only then the next plan ([5.39]).
TEST(Simulator, EventsOfOneTimeRunInTheirOrder) {
  std::vector<TraceRequest> requests{at(5, kBaseModel, 3, 2), at(5, kBaseModel, 3, 3),
                                     at(55, kBaseModel, 3, 1)};
  requests[1].cancel_ns = 55;
  const Trace trace = two_adapters(requests);
  const FixedTime times(50);
  Simulator s(trace, tiny_config(LoadMode::overlap), times);
  s.run();
  EXPECT_THAT(events(s),
              ElementsAre("5 arrival", "5 arrival", "5 admission", "5 admission", "55 arrival",
                          "55 first_token", "55 first_token", "55 abort", "55 finish",
                          "55 admission", "105 finish", "105 first_token", "105 finish"));
}

// The second request comes while the first step runs and another is planned behind it: it joins the
// third, and steps take the time from the end of the one before.
TEST(Simulator, AnArrivalWaitsForTheStepThatIsPlannedAhead) {
  const Trace trace = two_adapters({at(5, kBaseModel, 3, 4), at(30, kBaseModel, 3, 1)});
  const FixedTime times(50);
  SimulationConfig c = tiny_config(LoadMode::overlap);
  c.steps_ahead = StepsAhead::one;
  Simulator s(trace, c, times);
  s.run();
  EXPECT_THAT(events(s),
              ElementsAre("5 arrival", "5 admission", "30 arrival", "55 first_token",
                          "55 admission", "155 first_token", "155 finish", "205 finish"));
}

TEST(Simulator, PinnedAdapterStaysAndAnUnloadedOneIsRefused) {
  const Trace trace = two_adapters({at(1000, 0, 3, 1), at(2000, 1, 3, 1), at(3000, 0, 3, 1)});
  SimulationConfig c = tiny_config(LoadMode::overlap);
  c.scheduler.residency.max_loras = 2;
  const FixedTime times(50);
  Simulator s(trace, c, times);
  s.schedule({2500, ScheduledOp::Kind::unload, 0});
  s.schedule({0, ScheduledOp::Kind::pin, 0});
  s.run();
  const ConfigResult result = result_of(s);
  EXPECT_EQ(result.requests[0].tier_at_arrival, ArrivalTier::gpu);  // loaded by the pin
  EXPECT_EQ(result.requests[0].first_token_ns, 1050);
  EXPECT_EQ(result.requests[1].tier_at_arrival, ArrivalTier::disk);
  EXPECT_EQ(result.requests[2].outcome, RequestOutcome::rejected);
  EXPECT_EQ(result.completed, 2);
  EXPECT_EQ(result.failed, 1);
}

TEST(Simulator, DroppedTokenOfAnAbortedRequestIsNoGap) {
  std::vector<TraceRequest> requests{at(0, kBaseModel, 3, 9)};
  requests[0].cancel_ns = 25;  // its second step is in flight
  const Trace trace = two_adapters(requests);
  const FixedTime times(20);
  Simulator s(trace, tiny_config(LoadMode::overlap), times);
  s.run();
  const ConfigResult result = result_of(s);
  EXPECT_EQ(result.requests[0].output_tokens, 1U);
  EXPECT_EQ(result.itl.mean_ms, 0);
}

TEST(Simulator, JumpsOverDecodeStepsWithoutATrace) {
  const Trace trace = two_adapters({at(0, kBaseModel, 3, 1000), at(0, kBaseModel, 5, 700)});
  for (const bool fast : {true, false}) {
    SimulationConfig c = tiny_config(LoadMode::overlap);
    c.scheduler.num_blocks = 1000;
    c.fast = fast;
    const FixedTime times(10);
    Simulator s(trace, c, times);
    s.run();
    EXPECT_THAT(events(s),
                ElementsAre("0 arrival", "0 arrival", "0 admission", "0 admission",
                            "10 first_token", "10 first_token", "7000 finish", "10000 finish"));
    const ConfigResult result = result_of(s);
    EXPECT_EQ(result.num_steps, 1000);
    EXPECT_DOUBLE_EQ(result.itl.mean_ms, 10e-6);
    EXPECT_DOUBLE_EQ(result.gpu_busy_fraction, 1);
  }
}

// Blocks of 8 tokens in KV blocks of 4: all ids differ, also those that become equal when they are
// doubled in 64 bits (2^63 and 0), and neighbours, whose parts must not be taken for each other.
TEST(Simulator, CutsTraceBlocksWhateverTheirIds) {
  constexpr uint64_t kHigh = uint64_t{1} << 63;
  Trace trace = two_adapters({});
  for (int64_t i = 0; i < 5; ++i) trace.requests.push_back(at(i * 1'000, kBaseModel, 16, 1));
  add_contents(trace, 8, {{kHigh, 0}, {0, 0}, {kHigh + 1, 0}, {kHigh, kHigh}, {kHigh, 0}});
  const FixedTime ten(10);
  Simulator simulator(trace, tiny_config(LoadMode::overlap), ten);
  simulator.run();
  const ConfigResult result = result_of(simulator);
  std::vector<uint32_t> cached;
  for (const RequestRecord& r : result.requests) cached.push_back(r.cached_tokens);
  EXPECT_THAT(cached, ElementsAre(0, 0, 0, 8, 12));  // the last block is computed again
}

TEST(Simulator, TierAtArrivalCountsACopyAsInHostMemory) {
  const Trace trace = two_adapters({at(0, 0, 3, 1), at(50, 0, 3, 1), at(105, 0, 3, 1),
                                    at(200, 0, 3, 1), at(300, kBaseModel, 3, 1)});
  const FixedTime times(5);
  Simulator s(trace, tiny_config(LoadMode::overlap), times);
  s.run();
  std::vector<ArrivalTier> tiers;
  for (const RequestRecord& r : result_of(s).requests) tiers.push_back(r.tier_at_arrival);
  EXPECT_THAT(tiers, ElementsAre(ArrivalTier::disk, ArrivalTier::disk, ArrivalTier::cpu,
                                 ArrivalTier::gpu, ArrivalTier::base_model));
}

// abort, unload, pin, unpin ([5.39]), in whatever order they were given.
TEST(Simulator, OperationsOfOneTimeRunInTheirOrder) {
  using Kind = ScheduledOp::Kind;
  const Trace trace = two_adapters({at(0, 0, 3, 9)});
  SimulationConfig c = tiny_config(LoadMode::overlap);
  c.scheduler.residency.max_loras = 2;
  const FixedTime times(50);
  for (const bool reversed : {false, true}) {
    std::vector<ScheduledOp> ops{
        {150, Kind::abort, 0}, {150, Kind::unload, 0}, {150, Kind::pin, 1}, {150, Kind::unpin, 1}};
    if (reversed) std::ranges::reverse(ops);
    Simulator s(trace, c, times);
    for (const ScheduledOp& op : ops) s.schedule(op);
    s.run();
    EXPECT_EQ(num_pinned(s.scheduler().residency()), 0);  // the unpin came last
    EXPECT_THAT(events(s),
                ElementsAre("0 arrival", "0 load", "100 load_done", "100 copy", "110 copy_done",
                            "110 admission", "150 abort", "150 load", "160 finish", "160 eviction",
                            "160 unload", "250 load_done"));
  }
}

// Remembers what it was asked.
struct RecordedShapes : StepTimeModel {
  int64_t step_ns(const BatchShape& shape) const override {
    shapes.push_back(shape);
    return 10;
  }
  mutable std::vector<BatchShape> shapes;
};

std::vector<BatchShape> shapes_of(std::vector<TraceRequest> requests, bool fast = false) {
  const Trace trace = two_adapters(std::move(requests));
  SimulationConfig c = tiny_config(LoadMode::overlap);
  c.adapter_ranks = {64, 8};
  c.fast = fast;
  const RecordedShapes model;
  Simulator simulator(trace, c, model);
  simulator.run();
  return model.shapes;
}

// P31 without weights: in a slot that a richer adapter had, an adapter costs what it costs in a
// fresh engine.
TEST(Simulator, ReusedSlotKeepsNothingOfItsLastTenant) {
  const auto fresh = shapes_of({at(0, 1, 6, 3)});
  const auto reused = shapes_of({at(0, 0, 6, 3), at(1'000, 1, 6, 3)});
  ASSERT_EQ(fresh.size(), 3u);
  ASSERT_EQ(reused.size(), 6u);
  EXPECT_EQ(reused[0].max_rank, 64);
  EXPECT_EQ(fresh[0].max_rank, 8);
  for (size_t i = 0; i < fresh.size(); ++i) EXPECT_TRUE(reused[3 + i] == fresh[i]) << i;
}

// Prompts of 6 and 3 tokens: while both decode, the longer one reads 7, 8, ... entries. Steps that
// fast mode skips are asked for once as they are, and the last of them again.
TEST(Simulator, LongestDecodeContextGrowsWithEachStep) {
  const std::vector<TraceRequest> requests{at(0, kBaseModel, 6, 4), at(0, kBaseModel, 3, 6)};
  std::vector<int64_t> longest;
  for (const BatchShape& s : shapes_of(requests)) longest.push_back(s.longest_decode_context);
  EXPECT_THAT(longest, ElementsAre(0, 7, 8, 9, 7, 8));
  for (const BatchShape& skipped : shapes_of(requests, /*fast=*/true)) {
    EXPECT_THAT(shapes_of(requests), ::testing::Contains(skipped));
  }
}

TEST(Simulator, LongestPrefillIsOfOneRow) {
  const std::vector<TraceRequest> requests{at(0, kBaseModel, 6, 4), at(0, kBaseModel, 3, 6)};
  std::vector<int64_t> longest;
  for (const BatchShape& s : shapes_of(requests)) longest.push_back(s.longest_prefill);
  EXPECT_THAT(longest, ElementsAre(6, 0, 0, 0, 0, 0));
}

// Both come, their prompts are done, one of them has ended.
TEST(Simulator, RowsChangeWhenTheyComeDecodeOrEnd) {
  const std::vector<TraceRequest> requests{at(0, kBaseModel, 6, 4), at(0, kBaseModel, 3, 6)};
  std::vector<bool> changed;
  for (const BatchShape& s : shapes_of(requests)) changed.push_back(s.rows_changed);
  EXPECT_THAT(changed, ElementsAre(true, true, false, false, true, false));
}

}  // namespace
}  // namespace loratory::sim
