// The event loop by hand: when steps start and end, and what happens at the same nanosecond.
#include "scheduler_sim/simulator/simulator.hpp"

#include <gmock/gmock.h>

#include <string>

namespace loratory::sim {
namespace {

using testing::ElementsAre;

/// Every step takes as long.
struct FixedTime : StepTimeModel {
  explicit FixedTime(int64_t ns) : ns_(ns) {}
  int64_t step_ns(const BatchShape&) const override { return ns_; }
  int64_t ns_;
};

Trace one_adapter(std::vector<TraceRequest> requests) {
  Trace t;
  t.adapters = {{"a", 8}, {"b", 8}};
  t.requests = std::move(requests);
  return t;
}

TraceRequest at(int64_t arrival_ns, AdapterIndex adapter, uint32_t prompt, uint32_t output) {
  TraceRequest r;
  r.arrival_ns = arrival_ns;
  r.adapter = adapter;
  r.prompt_tokens = prompt;
  r.output_tokens = output;
  return r;
}

/// A load takes 100 ns and a copy 10.
SimulationConfig config(LoadMode mode) {
  SimulationConfig c;
  c.keep_log = true;
  c.scheduler.residency = {.max_loras = 1, .max_cpu_loras = 2};
  c.scheduler.load_mode = mode;
  c.scheduler.block_size = 4;
  c.scheduler.num_blocks = 100;
  c.loads.disk_latency_ns = 100;
  c.loads.h2d_latency_ns = 10;
  c.adapter_bytes = {0, 0};
  c.adapter_ranks = {8, 8};
  return c;
}

std::vector<std::string> events(const Simulator& simulator) {
  std::vector<std::string> out;
  for (const Decision& d : simulator.log().decisions()) {
    out.push_back(std::to_string(d.time_ns) + " " + name_of(d.kind));
  }
  return out;
}

TEST(Simulator, OverlapLoadsBesideTheSteps) {
  const Trace trace = one_adapter({at(5, 0, 3, 2), at(5, kBaseModel, 3, 1)});
  const FixedTime times(50);
  Simulator s(trace, config(LoadMode::overlap), times);
  s.run();
  EXPECT_THAT(events(s),
              ElementsAre("5 arrival", "5 load", "5 arrival", "5 admission", "55 first_token",
                          "55 finish", "105 load_done", "105 copy", "115 copy_done",
                          "115 admission", "165 first_token", "215 finish"));
}

TEST(Simulator, BlockingStepWaitsForItsAdapter) {
  const Trace trace = one_adapter({at(5, 0, 3, 1), at(5, kBaseModel, 3, 1)});
  const FixedTime times(50);
  Simulator s(trace, config(LoadMode::blocking), times);
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
  const Trace trace = one_adapter(requests);
  const FixedTime times(50);
  Simulator s(trace, config(LoadMode::overlap), times);
  s.run();
  EXPECT_THAT(events(s),
              ElementsAre("5 arrival", "5 arrival", "5 admission", "5 admission", "55 arrival",
                          "55 first_token", "55 first_token", "55 abort", "55 finish",
                          "55 admission", "105 finish", "105 first_token", "105 finish"));
}

TEST(Simulator, PinnedAdapterStaysAndAnUnloadedOneIsRefused) {
  const Trace trace = one_adapter({at(1000, 0, 3, 1), at(2000, 1, 3, 1), at(3000, 0, 3, 1)});
  SimulationConfig c = config(LoadMode::overlap);
  c.scheduler.residency.max_loras = 2;
  const FixedTime times(50);
  Simulator s(trace, c, times);
  s.schedule({2500, ScheduledOp::Kind::unload, 0});
  s.schedule({0, ScheduledOp::Kind::pin, 0});
  s.run();
  ConfigResult result;
  s.metrics().fill(result, {}, 4, /*keep_details=*/true);
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
  const Trace trace = one_adapter(requests);
  const FixedTime times(20);
  Simulator s(trace, config(LoadMode::overlap), times);
  s.run();
  ConfigResult result;
  s.metrics().fill(result, {}, 4, true);
  EXPECT_EQ(result.requests[0].output_tokens, 1U);
  EXPECT_EQ(result.itl.mean_ms, 0);
}

TEST(Simulator, JumpsOverDecodeStepsWithoutATrace) {
  const Trace trace = one_adapter({at(0, kBaseModel, 3, 1000), at(0, kBaseModel, 5, 700)});
  for (const bool fast : {true, false}) {
    SimulationConfig c = config(LoadMode::overlap);
    c.scheduler.num_blocks = 1000;
    c.fast = fast;
    const FixedTime times(10);
    Simulator s(trace, c, times);
    s.run();
    EXPECT_THAT(events(s),
                ElementsAre("0 arrival", "0 arrival", "0 admission", "0 admission",
                            "10 first_token", "10 first_token", "7000 finish", "10000 finish"));
    ConfigResult result;
    s.metrics().fill(result, {}, 4, false);
    EXPECT_EQ(result.num_steps, 1000);
    EXPECT_DOUBLE_EQ(result.itl.mean_ms, 10e-6);
    EXPECT_DOUBLE_EQ(result.gpu_busy_fraction, 1);
  }
}

// Blocks of 8 tokens in KV blocks of 4: ids 2^63 and 0 differ, although twice the one is twice the
// other in 64 bits.
TEST(Simulator, CutsTraceBlocksWhateverTheirIds) {
  Trace trace;
  trace.block_tokens = 8;
  trace.block_ids = {uint64_t{1} << 63, 0, uint64_t{1} << 63};
  for (uint64_t i = 0; i < 3; ++i) {
    TraceRequest r = at(int64_t(i) * 1'000, kBaseModel, 8, 1);
    r.content_begin = i;
    r.content_count = 1;
    trace.requests.push_back(r);
  }
  SimulationConfig c = config(LoadMode::overlap);
  c.adapter_bytes.clear();
  c.adapter_ranks.clear();
  const FixedTime ten(10);
  Simulator simulator(trace, c, ten);
  simulator.run();
  ConfigResult result;
  simulator.metrics().fill(result, {}, 4, true);
  EXPECT_EQ(result.requests[1].cached_tokens, 0u);
  EXPECT_EQ(result.requests[2].cached_tokens, 4u);  // the last block is computed again
}

/// Remembers what it was asked.
struct RecordedShapes : StepTimeModel {
  int64_t step_ns(const BatchShape& shape) const override {
    shapes.push_back(shape);
    return 10;
  }
  mutable std::vector<BatchShape> shapes;
};

std::vector<BatchShape> shapes_of(std::vector<TraceRequest> requests) {
  const Trace trace = one_adapter(std::move(requests));
  SimulationConfig c = config(LoadMode::overlap);
  c.adapter_ranks = {64, 8};
  c.fast = false;
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

}  // namespace
}  // namespace loratory::sim
