// One replay of an engine: what it is made of, and the words for how it went.
#include "scheduler_sim/sizing/engine_replay.hpp"

#include <gmock/gmock.h>

#include "tests/scheduler_sim/sizing/small_engine.hpp"

namespace loratory::sim {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;

// 7 blocks of 16 tokens beside the null block. The last token needs no KV.
TEST(EngineReplay, KvBlocksAreThoseThatRequestsCanHave) {
  EngineSpec seven = engine();
  seven.forced_kv_blocks = 7;
  Trace trace = round_robin(1, 1);
  trace.requests[0].prompt_tokens = 7 * 16;
  trace.requests[0].output_tokens = 1;
  EXPECT_EQ(replay(trace, seven, {1, 1}, {}).result.completed, 1);
  trace.requests[0].output_tokens = 2;
  const ConfigResult refused = replay(trace, seven, {1, 1}, {}).result;
  EXPECT_EQ(refused.failed, 1);
  EXPECT_FALSE(refused.meets_slo);
  EXPECT_EQ(refused.verdict, "1 requests failed");
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
  spec.pins = {0};
  EXPECT_GE(hits_of_zero(), 15);
  spec.pins = {0, 3};
  const ConfigResult full = replay(trace, spec, {2, 4}, {}).result;
  EXPECT_FALSE(full.feasible);
  EXPECT_EQ(full.verdict, "2 pinned adapters fill every slot");
  EXPECT_TRUE(replay(trace, spec, {3, 4}, {}).result.feasible);
}

TEST(MeetsSlo, NothingMayFail) {
  ConfigResult r;
  r.slo_ttft_ms = 10, r.slo_tpot_ms = 5;
  EXPECT_TRUE(meets_slo(r, {}));
  EXPECT_TRUE(meets_slo(r, {.ttft_ms = 10, .tpot_ms = 5}));
  EXPECT_FALSE(meets_slo(r, {.ttft_ms = 9}));
  EXPECT_FALSE(meets_slo(r, {.tpot_ms = 4}));
  r.failed = 1;
  EXPECT_FALSE(meets_slo(r, {}));
  r.failed = 0, r.feasible = false;
  EXPECT_FALSE(meets_slo(r, {}));
}

// Requests of 10 steps of 10 ms, one every 20 ms, under a TTFT nobody meets.
TEST(Verdict, NamesTheCause) {
  const Slo slo{.ttft_ms = 1};
  EngineSpec spec = engine();
  EXPECT_THAT(replay(round_robin(1, 100), spec, {1, 1}, {.tpot_ms = 1}).result.verdict,
              HasSubstr("steps take too long"));
  EngineSpec one_seat = spec;
  one_seat.scheduler.max_num_seqs = 1;
  EXPECT_THAT(replay(round_robin(1, 100), one_seat, {1, 1}, slo).result.verdict,
              HasSubstr("GPU saturated"));
  EngineSpec few_blocks = spec;
  few_blocks.forced_kv_blocks = 14;  // two prompts of 100 tokens
  Trace growing = round_robin(1, 100);
  for (TraceRequest& r : growing.requests) r.output_tokens = 30;
  EXPECT_THAT(replay(growing, few_blocks, {1, 1}, slo).result.verdict, HasSubstr("KV runs short"));
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
