// What the metrics count, on replays small enough to follow by hand (docs/results.md).
#include "scheduler_sim/metrics/collector.hpp"

#include <gmock/gmock.h>

#include <array>

#include "tests/scheduler_sim/simulator/tiny_replay.hpp"

namespace loratory::sim {
namespace {

using testing::ElementsAre;

ConfigResult replay(const Trace& trace, const SimulationConfig& config, const StepTimeModel& times,
                    const Slo& slo = {}) {
  Simulator simulator(trace, config, times);
  simulator.run();
  return result_of(simulator, slo);
}

// A microsecond for every KV entry that a decoding row reads.
struct ContextTime : StepTimeModel {
  int64_t step_ns(const BatchShape& s) const override {
    return std::max<int64_t>(1, 1000 * s.decode_context_tokens);
  }
};

// The gaps of one request grow by 1 us from token to token: 100 of them, c, c+1, ..., c+99.
TEST(Metrics, EachPercentileOfTheGapsIsItsOwn) {
  const Trace trace = two_adapters({at(0, kBaseModel, 1, 101)});
  for (const bool fast : {true, false}) {
    SimulationConfig c = tiny_config(LoadMode::overlap);
    c.fast = fast;
    const ConfigResult r = replay(trace, c, ContextTime());
    const RequestRecord& request = r.requests[0];
    const double mean = double(request.finish_ns - request.first_token_ns) / 100 * 1e-6;
    const double shortest = mean - 49.5e-3, half_bucket = 0.15 / 2048;
    EXPECT_DOUBLE_EQ(r.itl.mean_ms, mean);
    EXPECT_NEAR(r.itl.p50_ms, shortest + 49e-3, half_bucket);
    EXPECT_NEAR(r.itl.p90_ms, shortest + 89e-3, half_bucket);
    EXPECT_NEAR(r.itl.p99_ms, shortest + 98e-3, half_bucket);
  }
}

// One slot: a is on disk, then on the GPU; b on disk, and a had to make way for it.
TEST(Metrics, CpuHitsAreCountedOfThoseNotOnTheGpu) {
  const Trace trace = two_adapters({at(0, 0, 3, 1), at(1000, 0, 3, 1), at(2000, 1, 3, 1),
                                    at(3000, 0, 3, 1), at(4000, kBaseModel, 3, 1)});
  const ConfigResult r = replay(trace, tiny_config(LoadMode::overlap), FixedTime(50));
  EXPECT_DOUBLE_EQ(r.adapter_gpu_hit_ratio, 1.0 / 4);
  EXPECT_DOUBLE_EQ(r.adapter_cpu_hit_ratio, 1.0 / 3);
  EXPECT_EQ(r.adapter_loads, 2);
  EXPECT_EQ(r.adapter_copies, 3);
}

TEST(Metrics, TransfersAreCountedInBytes) {
  const Trace trace = two_adapters({at(0, 0, 3, 1), at(10'000, 1, 3, 1), at(20'000, 0, 3, 1)});
  SimulationConfig c = tiny_config(LoadMode::overlap);
  c.adapter_bytes = {1000, 300};
  const ConfigResult r = replay(trace, c, FixedTime(50));
  EXPECT_EQ(r.adapter_load_bytes, 1300);
  EXPECT_EQ(r.adapter_copy_bytes, 2300);
}

// Both are admitted when they arrive, at 7 ns. The pool holds 16 tokens: the second loses its
// blocks when each has 9, and comes back when the first is done, to find its first block again.
TEST(Metrics, QueueTimeEndsAtTheFirstAdmission) {
  const Trace trace = two_adapters({at(7, kBaseModel, 7, 6), at(7, kBaseModel, 7, 6)});
  SimulationConfig c = tiny_config(LoadMode::overlap);
  c.scheduler.num_blocks = 5;
  const ConfigResult r = replay(trace, c, FixedTime(50));
  ASSERT_EQ(r.num_preemptions, 1);
  EXPECT_EQ(r.requests[1].num_preemptions, 1);
  EXPECT_EQ(r.requests[1].first_scheduled_ns, 7);
  EXPECT_EQ(r.requests[1].cached_tokens, 0U);
  EXPECT_EQ(r.queue.p99_ms, 0);
  EXPECT_EQ(r.prefix_hit_ratio_tokens, 0);
}

// The gap of the preempted one spans the steps that it missed: tokens at 57, 107, then 357 ff.
TEST(Metrics, AGapSpansThePreemption) {
  const Trace trace = two_adapters({at(7, kBaseModel, 7, 6), at(7, kBaseModel, 7, 6)});
  SimulationConfig c = tiny_config(LoadMode::overlap);
  c.scheduler.num_blocks = 5;
  const ConfigResult r = replay(trace, c, FixedTime(50));
  // Five gaps each, of 50 ns but for one of 250 (within half a bucket: 250 is exact).
  EXPECT_EQ(r.requests[0].finish_ns, 307);
  EXPECT_EQ(r.requests[1].finish_ns, 507);
  EXPECT_DOUBLE_EQ(r.itl.mean_ms, (9 * 50 + 250) / 10.0 * 1e-6);
}

// The third waits from 100 ns on, and is cancelled at 130. At 107 the second is preempted: no
// request arrives or finishes while both wait.
TEST(Metrics, TheLongestQueueIsSeenBetweenArrivalsAndEnds) {
  Trace trace =
      two_adapters({at(7, kBaseModel, 7, 6), at(8, kBaseModel, 7, 6), at(100, kBaseModel, 7, 1)});
  trace.requests[2].cancel_ns = 130;
  for (const bool fast : {true, false}) {
    SimulationConfig c = tiny_config(LoadMode::overlap);
    c.scheduler.num_blocks = 5;
    c.fast = fast;
    const ConfigResult r = replay(trace, c, FixedTime(50));
    ASSERT_EQ(r.num_preemptions, 1);
    EXPECT_EQ(r.max_waiting, 2);
    EXPECT_EQ(r.timeline.back().num_waiting, 0);
  }
}

// Two requests for one prompt of 8 tokens, the second of which finds 4; the third is cancelled
// while its adapter is on its way.
TEST(Metrics, PrefixHitsAreThoseOfRequestsThatRan) {
  Trace trace =
      two_adapters({at(0, kBaseModel, 8, 1), at(100, kBaseModel, 8, 1), at(200, 0, 8, 1)});
  trace.requests[2].cancel_ns = 250;
  add_contents(trace, 4, {{1, 2}, {1, 2}, {1, 2}});
  const ConfigResult r = replay(trace, tiny_config(LoadMode::overlap), FixedTime(50));
  ASSERT_EQ(r.cancelled, 1);
  EXPECT_DOUBLE_EQ(r.prefix_hit_ratio_tokens, 4.0 / 16);
  EXPECT_DOUBLE_EQ(r.prefix_hit_ratio_blocks, 1.0 / 4);
}

// A step takes 1 ms. Request 0: TTFT 1, TPOT 1 ms. Request 1 waits for the one seat: TTFT 3.
// Request 2 waits for it too and has one token, so no TPOT. Request 3 is cancelled while it waits.
TEST(Metrics, GoodputCountsWhatMeetsEveryLimit) {
  constexpr int64_t kMs = 1'000'000;
  Trace trace = two_adapters({at(0, kBaseModel, 3, 2), at(0, kBaseModel, 3, 2),
                              at(3 * kMs, kBaseModel, 3, 1), at(3 * kMs, kBaseModel, 3, 1)});
  trace.requests[3].cancel_ns = 3 * kMs + 1;
  SimulationConfig c = tiny_config(LoadMode::overlap);
  c.scheduler.max_num_seqs = 1;
  const FixedTime times(kMs);
  const ConfigResult r = replay(trace, c, times, {.ttft_ms = 2.5});
  std::vector<double> ttft;
  for (const RequestRecord& x : r.requests) {
    ttft.push_back(x.first_token_ns < 0 ? -1 : double(x.first_token_ns - x.arrival_ns) * 1e-6);
  }
  EXPECT_THAT(ttft, ElementsAre(1, 3, 2, -1));
  EXPECT_EQ(r.completed, 3);
  EXPECT_DOUBLE_EQ(r.duration_s, 5e-3);
  EXPECT_DOUBLE_EQ(r.request_throughput, 3 / 5e-3);
  EXPECT_DOUBLE_EQ(r.request_goodput, 2 / 5e-3);
  EXPECT_DOUBLE_EQ(r.slo_attainment, 2.0 / 4);
  EXPECT_DOUBLE_EQ(r.output_throughput, 5 / 5e-3);
  EXPECT_DOUBLE_EQ(r.total_token_throughput, (9 + 5) / 5e-3);
  EXPECT_DOUBLE_EQ(r.slo_ttft_ms, 2.98);  // p99 of 1, 2, 3
  EXPECT_DOUBLE_EQ(r.tpot.p50_ms, 1);
  EXPECT_EQ(replay(trace, c, times, {.tpot_ms = 0.9}).slo_attainment, 1.0 / 4);
  EXPECT_EQ(replay(trace, c, times, {.ttft_ms = 3, .tpot_ms = 1}).slo_attainment, 3.0 / 4);
  EXPECT_EQ(r.max_waiting, 2);
  EXPECT_DOUBLE_EQ(r.mean_batch_seqs, 1);
  EXPECT_DOUBLE_EQ(r.gpu_busy_fraction, 1);
}

// Blocks of 4. The last token of each needs none: 3 blocks and 2 are held at once, and nothing
// after the last request.
TEST(Metrics, TheMostBlocksAreThoseOfTheRunningRequests) {
  const Trace trace = two_adapters({at(0, kBaseModel, 8, 2), at(0, kBaseModel, 8, 1)});
  for (const bool fast : {true, false}) {
    SimulationConfig c = tiny_config(LoadMode::overlap);
    c.fast = fast;
    EXPECT_EQ(replay(trace, c, FixedTime(50)).max_kv_blocks, 4);
    const Trace alone = two_adapters({at(0, kBaseModel, 8, 100)});
    EXPECT_EQ(replay(alone, c, FixedTime(50)).max_kv_blocks, 27);  // 107 tokens
  }
}

// The last arrival is at 6000 ns, so a sample every 10 ns at most; a step takes 100 us.
TEST(Metrics, TimelineKeepsToItsGrid) {
  std::vector<TraceRequest> requests;
  for (const int64_t ns : {0, 9, 11, 20, 6000}) requests.push_back(at(ns, kBaseModel, 3, 1));
  const Trace trace = two_adapters(requests);
  const ConfigResult r = replay(trace, tiny_config(LoadMode::overlap), FixedTime(100'000));
  std::vector<std::array<int64_t, 4>> samples;
  for (const TimelineSample& s : r.timeline) {
    samples.push_back({s.time_ns, s.num_running, s.num_waiting, s.kv_blocks_used});
  }
  using Sample = std::array<int64_t, 4>;
  EXPECT_THAT(samples, ElementsAre(Sample{0, 0, 1, 0}, Sample{11, 1, 2, 1}, Sample{20, 1, 3, 1},
                                   Sample{6000, 1, 4, 1}, Sample{100'000, 0, 4, 0},
                                   Sample{200'000, 0, 0, 0}));
}

// One slot: a has it until b's copy begins, b to the end.
TEST(Metrics, SlotSpansCoverTheRun) {
  const Trace trace = two_adapters({at(0, 0, 3, 1), at(1000, 1, 3, 1)});
  const ConfigResult r = replay(trace, tiny_config(LoadMode::overlap), FixedTime(50));
  ASSERT_EQ(r.slot_spans.size(), 2U);
  EXPECT_EQ(r.slot_spans[0].adapter, 0U);
  EXPECT_EQ(r.slot_spans[0].begin_ns, 110);
  EXPECT_EQ(r.slot_spans[0].end_ns, 1100);
  EXPECT_EQ(r.slot_spans[1].adapter, 1U);
  EXPECT_EQ(r.slot_spans[1].begin_ns, 1110);
  EXPECT_EQ(r.slot_spans[1].end_ns, 1160);
}

TEST(Metrics, DrainsAreCounted) {
  const Trace trace = two_adapters({at(0, 0, 3, 9), at(120, 1, 3, 1)});
  SimulationConfig c = tiny_config(LoadMode::overlap);
  c.scheduler.n_starve = 0;
  EXPECT_EQ(replay(trace, c, FixedTime(50)).num_drains, 1);
}

// The simulator's loads never fail; a scheduler whose do tells the same collector.
TEST(Metrics, ARequestWithoutItsAdapterHasFailed) {
  const Trace trace = two_adapters({at(0, 0, 3, 1)});
  MetricsCollector metrics(trace);
  Scheduler scheduler(tiny_config(LoadMode::overlap).scheduler, &metrics);
  RequestSpec spec;
  spec.adapter = scheduler.register_adapter("a", 8, 1, false, 0).uid;
  spec.num_prompt_tokens = 3, spec.max_new_tokens = 1;
  ASSERT_EQ(scheduler.submit(spec, 0), SubmitStatus::ok);
  scheduler.load_done(spec.adapter, /*ok=*/false, 10);
  scheduler.load_done(spec.adapter, /*ok=*/false, 20);
  ConfigResult result;
  metrics.fill(result, {}, 4, /*keep_details=*/true);
  EXPECT_EQ(result.failed, 1);
  EXPECT_EQ(result.completed, 0);
  EXPECT_EQ(result.requests[0].outcome, RequestOutcome::failed);
}

}  // namespace
}  // namespace loratory::sim
