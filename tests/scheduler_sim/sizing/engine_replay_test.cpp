// One replay of an engine: what it is made of, and the words for how it went.
#include "scheduler_sim/sizing/engine_replay.hpp"

#include <gmock/gmock.h>

#include <algorithm>

#include "scheduler_sim/sizing/blame.hpp"
#include "tests/scheduler_sim/sizing/small_engine.hpp"

namespace loratory::sim {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;

// 7 blocks of 16 tokens beside the null block. The last token needs no KV.
TEST(EngineReplay, KvBlocksAreThoseThatRequestsCanHave) {
  EngineSpec seven = engine();
  seven.forced_kv_blocks = 7;
  Trace trace = round_robin(1, 1);
  trace.requests[0].prompt_tokens = 7 * 16;
  trace.requests[0].output_tokens = 1;
  const ConfigResult served = replay(trace, seven, {1, 1}, {}).result;
  EXPECT_EQ(served.completed, 1);
  EXPECT_EQ(served.memory.kv_blocks, 7);
  EXPECT_EQ(served.memory.kv_bytes, 7 * served.memory.block_bytes);
  trace.requests[0].output_tokens = 2;
  const ConfigResult refused = replay(trace, seven, {1, 1}, {}).result;
  EXPECT_EQ(refused.failed, 1);
  EXPECT_FALSE(refused.meets_slo);
}

TEST(EngineReplay, RanksOfTheTraceGoBeforeTheDefault) {
  EngineSpec spec = engine();
  spec.default_rank = 32;
  Trace trace = round_robin(1, 1);
  const auto bytes_of_rank = [&](uint32_t rank) {
    trace.adapters[0].rank = rank;
    return replay(trace, spec, {1, 1}, {}).result.adapter_load_bytes;
  };
  EXPECT_EQ(bytes_of_rank(8), adapter_bytes(spec.model, spec.memory.targets, 8));
  EXPECT_EQ(bytes_of_rank(0), adapter_bytes(spec.model, spec.memory.targets, 32));
}

// Adapters 0 and 1 in turn. Pinned, 0 is on the GPU for all its requests but the first.
TEST(EngineReplay, PinnedAdaptersStayOnTheGpu) {
  EngineSpec spec = engine();
  const Trace trace = round_robin(4, 80);
  const auto hits_of_zero = [&] {
    int64_t hits = 0;
    for (const RequestRecord& r :
         replay(trace, spec, {2, 4}, {}, ReplayDetail::details).result.requests) {
      hits += r.adapter == 0 && r.tier_at_arrival == ArrivalTier::gpu;
    }
    return hits;
  };
  EXPECT_LT(hits_of_zero(), 15);
  spec.pins = {"0"};
  EXPECT_GE(hits_of_zero(), 15);
  spec.pins = {"0", "3"};
  const ConfigResult full = replay(trace, spec, {2, 4}, {}).result;
  EXPECT_FALSE(full.feasible);
  EXPECT_EQ(full.problem, "2 pinned adapters fill every slot");
  EXPECT_TRUE(replay(trace, spec, {3, 4}, {}).result.feasible);
}

TEST(MeetsSlo, NothingMayFail) {
  ConfigResult r;
  r.completed = 1;
  r.slo_ttft_ms = 10, r.slo_tpot_ms = 5;
  EXPECT_TRUE(meets_slo(r, {}));
  EXPECT_TRUE(meets_slo(r, {.ttft_ms = 10, .tpot_ms = 5}));
  EXPECT_FALSE(meets_slo(r, {.ttft_ms = 9}));
  EXPECT_FALSE(meets_slo(r, {.tpot_ms = 4}));
  r.failed = 1;
  EXPECT_FALSE(meets_slo(r, {}));
  r.failed = 0, r.feasible = false;
  EXPECT_FALSE(meets_slo(r, {}));
  r.feasible = true, r.completed = 0;
  EXPECT_FALSE(meets_slo(r, {}));
}

// One seat: the first request has its token after 10 ms and the seat for 100. The others leave
// after 60 ms, which is the least that their first tokens would have taken.
TEST(MeetsSlo, ClientsThatLeftHaveWaited) {
  EngineSpec spec = engine();
  spec.scheduler.max_num_seqs = 1;
  Trace trace = round_robin(1, 4);
  for (TraceRequest& r : trace.requests) r.arrival_ns = 0;
  for (size_t i = 1; i < 4; ++i) trace.requests[i].cancel_ns = 60 * kMillisecond;
  for (TraceRequest& r : trace.requests) r.adapter = kBaseModel;
  for (const double limit_ms : {50, 59, 60, 70}) {
    const Slo slo{.ttft_ms = limit_ms};
    const ConfigResult result = replay(trace, spec, {1, 1}, slo).result;
    EXPECT_EQ(result.completed, 1);
    EXPECT_EQ(result.ttft.pslo_ms, 10);
    EXPECT_EQ(result.slo_ttft_ms, 60);
    EXPECT_EQ(result.meets_slo, limit_ms >= 60) << limit_ms;
    EXPECT_EQ(would_meet(trace, spec, {1, 1}, slo), limit_ms >= 60) << limit_ms;
  }
}

// One slot, two adapters by turns. The first request of adapter 1 finds its weights on the disk and
// the slot taken: it waits for both, and the parts are its whole queue.
TEST(Waits, ArePartsOfTheQueue) {
  const EngineSpec spec = engine();
  const ConfigResult r =
      replay(round_robin(2, 40), spec, {1, 2}, {.ttft_ms = 1}, ReplayDetail::details).result;
  int64_t load = 0, slot = 0, copy = 0;
  for (const RequestRecord& request : r.requests) {
    const int64_t queue = request.first_scheduled_ns - request.arrival_ns;
    EXPECT_LE(request.wait_load_ns + request.wait_slot_ns + request.wait_copy_ns, queue);
    load += request.wait_load_ns, slot += request.wait_slot_ns, copy += request.wait_copy_ns;
  }
  EXPECT_GT(load, 0);
  EXPECT_GT(slot, load);
  EXPECT_GT(copy, 0);
  EXPECT_GE(r.waits.slot.requests, 0.5);
  EXPECT_GT(r.waits.slot.of_late_time, r.waits.load.of_late_time);
  EXPECT_NEAR(r.waits.load.of_late_time + r.waits.slot.of_late_time + r.waits.copy.of_late_time +
                  r.waits.batch.of_late_time,
              1, 1e-9);
  // A slot for each: nobody waits for one.
  const ConfigResult enough = replay(round_robin(2, 40), spec, {2, 2}, {.ttft_ms = 1}).result;
  EXPECT_EQ(enough.waits.slot.requests, 0);
  EXPECT_GT(enough.waits.load.requests, 0);
}

// The limit lies between the percentiles of a whole replay; cut or not, the answer is the same.
TEST(WouldMeet, IsWhatTheWholeReplaySays) {
  const EngineSpec spec = engine();
  const Trace trace = round_robin(5, 200);
  const double ttft_ms = replay(trace, spec, {2, 5}, {.percentile = 90}).result.slo_ttft_ms;
  ASSERT_GT(ttft_ms, 20);
  for (const double factor : {0.2, 0.999, 1.0, 1.001, 5.0}) {
    const Slo slo{.ttft_ms = factor * ttft_ms, .percentile = 90};
    EXPECT_EQ(would_meet(trace, spec, {2, 5}, slo), factor >= 1) << factor;
  }
  Trace cancelled = trace;  // no late request is left to count
  for (TraceRequest& r : cancelled.requests) r.cancel_ns = r.arrival_ns + 15 * kMillisecond;
  const Slo slo{.ttft_ms = 15, .percentile = 90};
  EXPECT_EQ(would_meet(cancelled, spec, {2, 5}, slo),
            replay(cancelled, spec, {2, 5}, slo).result.meets_slo);
}

// One of eleven is late, and their 95th percentile lies in the middle between it and the others: no
// count of late requests tells, only the percentile itself.
TEST(WouldMeet, TheWholeReplayDecidesBetweenTwoRequests) {
  const EngineSpec spec = engine();
  Trace trace = round_robin(1, 11);
  for (TraceRequest& r : trace.requests) r.adapter = kBaseModel;
  trace.requests.back().prompt_tokens = 3000;  // two steps
  const double ttft_ms = replay(trace, spec, {1, 1}, {.percentile = 95}).result.slo_ttft_ms;
  EXPECT_EQ(ttft_ms, 15);
  for (const double factor : {0.7, 0.99, 1.0, 1.3, 1.4}) {
    const Slo slo{.ttft_ms = factor * ttft_ms, .percentile = 95};
    EXPECT_EQ(would_meet(trace, spec, {1, 1}, slo), factor >= 1) << factor;
  }
}

TEST(WouldMeet, NotIfARequestIsRefused) {
  EngineSpec spec = engine();
  spec.forced_kv_blocks = 4;
  EXPECT_FALSE(would_meet(round_robin(1, 3), spec, {1, 1}, {}));
  spec.forced_kv_blocks = 40;
  EXPECT_TRUE(would_meet(round_robin(1, 3), spec, {1, 1}, {}));
}

// --- causes: a bottleneck each, on an engine that has no other ------------------------------

Cause cause_on(const Trace& trace, const EngineSpec& spec, EnginePoint point, const Slo& slo) {
  const ConfigResult missed = replay(trace, spec, point, slo).result;
  EXPECT_FALSE(missed.meets_slo);
  return find_cause(trace, spec, missed, slo, measure_yardsticks(trace, spec, slo));
}

TEST(FindCause, SlotsAndLoads) {
  EngineSpec spec = engine();
  const Slo slo{.ttft_ms = 60};
  spec.loads.disk_bytes_per_s = 100'000'000'000;
  const Cause slots = cause_on(round_robin(8, 200), spec, {1, 8}, slo);
  EXPECT_EQ(slots.kind, CauseKind::slots);
  EXPECT_GT(slots.figure, 0.5);
  EXPECT_LT(slots.miss_without, 0.5 * slots.miss);
  EXPECT_LT(slots.miss_of_base, 1);
  spec.loads.disk_bytes_per_s = 20'000'000;
  const Cause loads = cause_on(round_robin(40, 200), spec, {8, 8}, slo);
  EXPECT_EQ(loads.kind, CauseKind::loads);
  EXPECT_LE(loads.miss_without, 1);
}

// Three prompts of 100 tokens fit, and each grows to 130.
TEST(FindCause, KvCacheAndSeats) {
  EngineSpec spec = engine();
  Trace trace = round_robin(1, 100);
  for (TraceRequest& r : trace.requests) r.output_tokens = 30;
  const Slo slo{.ttft_ms = 100};
  EngineSpec few_blocks = spec;
  few_blocks.forced_kv_blocks = 27;
  EXPECT_EQ(cause_on(trace, few_blocks, {1, 1}, slo).kind, CauseKind::kv_cache);
  EngineSpec few_seats = spec;
  few_seats.scheduler.max_num_seqs = 2;
  EXPECT_EQ(cause_on(trace, few_seats, {1, 1}, slo).kind, CauseKind::seats);
}

TEST(FindCause, RequestsThatAreRefused) {
  EngineSpec spec = engine();
  spec.forced_kv_blocks = 7;
  Trace trace = round_robin(1, 5);
  trace.requests[1].prompt_tokens = 200;
  const Cause cause = cause_on(trace, spec, {1, 1}, {.ttft_ms = 1000});
  EXPECT_EQ(cause.kind, CauseKind::too_large);
  EXPECT_EQ(cause.figure, 1);
  spec.forced_kv_blocks = 70;
  spec.scheduler.max_model_len = 150;
  EXPECT_EQ(cause_on(trace, spec, {1, 1}, {.ttft_ms = 1000}).kind, CauseKind::too_long);
}

// 10 ms a step: no TPOT below that, with whatever arrivals. 200 prompts of 100 tokens at once take
// 10 steps of 2,048 tokens; one by one they take a step each.
TEST(FindCause, PeaksAndTheGpu) {
  const EngineSpec spec = engine();
  EXPECT_EQ(cause_on(round_robin(1, 100), spec, {1, 1}, {.tpot_ms = 8}).kind, CauseKind::gpu_speed);
  Trace burst = round_robin(1, 400);
  for (size_t i = 0; i < 200; ++i) burst.requests[i].arrival_ns = 0;
  const Cause peaks = cause_on(burst, spec, {1, 1}, {.ttft_ms = 50});
  EXPECT_EQ(peaks.kind, CauseKind::load_peaks);
  EXPECT_LE(peaks.miss_without, 1);
  EXPECT_GT(peaks.figure, 2);
  EXPECT_GT(peaks.miss_of_base, 1);
}

// 5 ms a step, and 20 more with an adapter in it.
class SlowLora : public StepTimeModel {
 public:
  int64_t step_ns(const BatchShape& shape) const override {
    return (shape.num_adapters > 0 ? 25 : 5) * kMillisecond;
  }
};

TEST(FindCause, LoraCompute) {
  EngineSpec spec = engine();
  spec.make_step_time = [](EnginePoint) { return std::make_unique<SlowLora>(); };
  const Cause cause = cause_on(round_robin(2, 50), spec, {2, 2}, {.tpot_ms = 10});
  EXPECT_EQ(cause.kind, CauseKind::lora_compute);
  EXPECT_FALSE(cause.is_ttft);
  EXPECT_EQ(cause.miss, 2.5);
  EXPECT_EQ(cause.miss_without, 0.5);
}

TEST(PoissonArrivals, KeepTheOrderTheEndAndTheMean) {
  Trace trace = round_robin(2, 1000);
  trace.requests[7].cancel_ns = trace.requests[7].arrival_ns + 9;
  const Trace smooth = with_poisson_arrivals(trace, 1);
  EXPECT_EQ(smooth.requests.back().arrival_ns, trace.requests.back().arrival_ns);
  EXPECT_TRUE(std::ranges::is_sorted(smooth.requests, {}, &TraceRequest::arrival_ns));
  EXPECT_EQ(smooth.requests[7].cancel_ns, smooth.requests[7].arrival_ns + 9);
  EXPECT_NE(smooth.requests[500].arrival_ns,
            with_poisson_arrivals(trace, 2).requests[500].arrival_ns);
}

TEST(Workload, IsSummarizedOverItsRequests) {
  Trace trace = round_robin(3, 6);
  trace.requests[1].adapter = trace.requests[4].adapter = 2;  // nobody asks for 1
  trace.requests[5].adapter = kBaseModel;
  const WorkloadSummary w = summarize_workload(trace, engine());
  EXPECT_EQ(w.num_requests, 6);
  EXPECT_EQ(w.num_adapters, 2);
  EXPECT_THAT(w.popularity, ElementsAre(DoubleEq(3. / 6), DoubleEq(2. / 6)));
  EXPECT_DOUBLE_EQ(w.duration_s, 0.1);
  EXPECT_DOUBLE_EQ(w.request_rate, 60);
  EXPECT_DOUBLE_EQ(w.mean_prompt_tokens, 100);
  EXPECT_DOUBLE_EQ(w.mean_output_tokens, 10);
}

}  // namespace
}  // namespace loratory::sim
