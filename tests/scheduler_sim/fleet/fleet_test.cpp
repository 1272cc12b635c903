// Routers by hand: which replica gets which request, and what a stale look costs.
#include "scheduler_sim/fleet/fleet.hpp"

#include <gmock/gmock.h>

#include "scheduler_sim/fleet/fleet_result.hpp"
#include "scheduler_sim/fleet/scored_router.hpp"
#include "tests/scheduler_sim/simulator/tiny_replay.hpp"

namespace loratory::sim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using AdapterUse = FleetView::AdapterUse;

// What a router is told, in place of replicas.
struct ToldView : FleetView {
  explicit ToldView(size_t num_replicas) : metrics(num_replicas), uses(num_replicas) {}
  int32_t num_replicas() const override { return int32_t(metrics.size()); }
  int64_t num_outstanding(int32_t replica) override { return outstanding[size_t(replica)]; }
  const std::vector<int64_t>& all_outstanding() override { return outstanding; }
  const std::vector<EndpointMetrics>& scraped() override { return metrics; }
  uint64_t num_scraped_changes() const override { return num_changes; }
  AdapterUse scraped_use(AdapterIndex, int32_t replica) const override {
    return uses[size_t(replica)];
  }
  std::vector<EndpointMetrics> metrics;
  std::vector<AdapterUse> uses;
  std::vector<int64_t> outstanding;
  uint64_t num_changes = 0;
};

RouterOptions options_for(int32_t num_replicas) {
  return {.num_replicas = num_replicas, .max_loras = 2, .block_size = 4, .kv_blocks = 100};
}

std::vector<size_t> sent_to(const Fleet& fleet, size_t replica) {
  return fleet.replicas()[replica].requests();
}

TEST(Routers, RoundRobinTakesTurns) {
  const Trace trace = two_adapters(std::vector(5, at(1, 0, 3, 1)));
  const FixedTime times(50);
  Fleet fleet(trace, tiny_config(LoadMode::overlap), times, {.num_replicas = 2});
  fleet.run();
  EXPECT_THAT(sent_to(fleet, 0), ElementsAre(0u, 2u, 4u));
  EXPECT_THAT(sent_to(fleet, 1), ElementsAre(1u, 3u));
}

TEST(Routers, LeastLoadedTakesTheNextOfTheLeast) {
  const Trace trace = two_adapters(std::vector(4, at(1, 0, 3, 1)));
  ToldView view(3);
  const auto router = make_router(trace, {.kind = RouterKind::least_loaded, .num_replicas = 3});
  view.outstanding = {1, 1, 1};
  EXPECT_EQ(router->route(0, view), 0);
  EXPECT_EQ(router->route(1, view), 1);
  view.outstanding = {0, 1, 0};
  EXPECT_EQ(router->route(2, view), 2);
  EXPECT_EQ(router->route(3, view), 0);
}

// [scorer/queue.go] The shortest queue scores 1, the longest 0, those between in proportion.
TEST(ScoredRouter, QueueScoreIsRelativeToTheOthers) {
  const Trace trace = two_adapters({at(1, 0, 3, 1)});
  ScoredRouter router(trace, options_for(3), {.queue = 2});
  ToldView view(3);
  view.metrics[0].num_waiting = 8, view.metrics[1].num_waiting = 4, view.metrics[2].num_waiting = 6;
  EXPECT_EQ(router.route(0, view), 1);
  EXPECT_THAT(router.scores(), ElementsAre(0, 2, 1));
  for (EndpointMetrics& m : view.metrics) m.num_waiting = 7;
  ++view.num_changes;
  router.route(0, view);
  EXPECT_THAT(router.scores(), ElementsAre(2, 2, 2));
}

TEST(ScoredRouter, KvScoreIsWhatIsFree) {
  const Trace trace = two_adapters({at(1, 0, 3, 1)});
  ScoredRouter router(trace, options_for(2), {.queue = 2, .kv = 2});
  ToldView view(2);
  view.metrics[0].kv_usage = 0.75, view.metrics[1].kv_usage = 0.5;
  EXPECT_EQ(router.route(0, view), 1);
  EXPECT_THAT(router.scores(), ElementsAre(2.5, 3));
}

// [scorer/lora_affinity.go] Running there 1, room .8, waiting there .6, else 0: max_loras is 2.
TEST(ScoredRouter, LoraScoreHasFourSteps) {
  const Trace trace = two_adapters({at(1, 0, 3, 1), at(1, kBaseModel, 3, 1)});
  ScoredRouter router(trace, options_for(5), {.lora = 1});
  ToldView view(5);
  view.uses = {AdapterUse::none, AdapterUse::waiting, AdapterUse::none, AdapterUse::both,
               AdapterUse::waiting};
  view.metrics[0] = {.num_running_adapters = 1, .num_waiting_adapters = 1};
  view.metrics[1] = {.num_running_adapters = 1, .num_waiting_adapters = 1};
  view.metrics[2] = {.num_running_adapters = 1};
  view.metrics[3] = {.num_running_adapters = 2, .num_waiting_adapters = 1};
  view.metrics[4] = {.num_waiting_adapters = 1};
  EXPECT_EQ(router.route(0, view), 3);
  EXPECT_THAT(router.scores(), ElementsAre(0, 0.6, 0.8, 1, 0.8));
  router.route(1, view);  // the base model is nowhere among the adapters
  EXPECT_THAT(router.scores(), ElementsAre(0, 0, 0.8, 0, 0.8));
}

// Prompts of 3 blocks of 4 tokens; adapter b shares nothing with a.
TEST(ScoredRouter, PrefixScoreIsTheShareOfKnownBlocks) {
  Trace trace = two_adapters({at(1, 0, 12, 1), at(1, 0, 15, 1), at(1, 1, 12, 1), at(1, 0, 3, 1)});
  add_contents(trace, 4, {{7, 8, 9}, {7, 8, 5, 6}, {7, 8, 9}, {7}});
  ScoredRouter router(trace, options_for(2), {.prefix = 3});
  ToldView view(2);
  EXPECT_FALSE(router.looks_at_replicas());
  const int32_t first = router.route(0, view);
  EXPECT_THAT(router.scores(), ElementsAre(0, 0));
  EXPECT_EQ(router.route(1, view), first);
  EXPECT_DOUBLE_EQ(router.scores()[size_t(first)], 3 * 2.0 / 3);
  EXPECT_DOUBLE_EQ(router.scores()[size_t(1 - first)], 0);
  router.route(2, view);
  EXPECT_THAT(router.scores(), ElementsAre(0, 0));
  router.route(3, view);  // no full block
  EXPECT_THAT(router.scores(), ElementsAre(0, 0));
}

TEST(ScoredRouter, TiesAreDrawnAmongTheBest) {
  const Trace trace = two_adapters(std::vector(200, at(1, 0, 3, 1)));
  ScoredRouter router(trace, options_for(3), {.kv = 1});
  ToldView view(3);
  view.metrics[1].kv_usage = 0.1;
  std::vector<int> counts(3);
  for (size_t i = 0; i < trace.requests.size(); ++i) ++counts[size_t(router.route(i, view))];
  EXPECT_GT(counts[0], 60);
  EXPECT_EQ(counts[1], 0);
  EXPECT_GT(counts[2], 60);
}

TEST(PrefixIndex, ForgetsWhatWasSentFirst) {
  PrefixIndex index(2, /*capacity=*/3);
  std::vector<int32_t> counts;
  const std::vector<BlockKey> chain = {1, 2, 3};
  index.add(chain, 0);
  index.match(chain, counts);
  EXPECT_THAT(counts, ElementsAre(3, 0));
  index.add(std::vector<BlockKey>{1, 4}, 0);  // 1 is fresh again, 2 leaves
  index.match(chain, counts);
  EXPECT_THAT(counts, ElementsAre(1, 0));  // nobody has 2
  index.add(std::vector<BlockKey>{1, 2}, 1);
  index.match(chain, counts);
  EXPECT_THAT(counts, ElementsAre(2, 2));  // the hole of replica 0 does not end its count
  index.match(std::vector<BlockKey>{9}, counts);
  EXPECT_THAT(counts, ElementsAre(0, 0));
}

TEST(PromptBlocks, AreFullAndAtMost256) {
  Trace trace = two_adapters({at(1, 0, 4 * 300, 1), at(1, 0, 7, 1), at(1, kBaseModel, 7, 1)});
  add_contents(trace, 4, {std::vector<uint64_t>(300, 1), {1, 1}, {1, 1}});
  PromptBlocks blocks(trace, 4);
  EXPECT_EQ(blocks.of(trace.requests[0]).size(), 256u);
  const BlockKey first = blocks.of(trace.requests[0]).front();
  EXPECT_THAT(blocks.of(trace.requests[1]), ElementsAre(first));
  EXPECT_NE(blocks.of(trace.requests[2]).front(), first);
  trace.block_ids.clear(), trace.block_tokens = 0;
  EXPECT_THAT(PromptBlocks(trace, 4).of(trace.requests[0]), IsEmpty());
}

// Two replicas are scraped at 0, 100, ... and at 50, 150, ... A step takes 1,000 ns, so requests of
// two running adapters pile up where max_loras is 1.
TEST(Scrapes, AreStaleUntilTheNextOne) {
  const Trace trace =
      two_adapters({at(10, kBaseModel, 3, 9), at(20, kBaseModel, 3, 9), at(160, kBaseModel, 3, 9)});
  struct Looker : Router {
    int32_t route(size_t, FleetView& fleet) override {
      const auto& metrics = fleet.scraped();
      seen.push_back({metrics[0].kv_usage > 0, metrics[1].kv_usage > 0});
      return 0;
    }
    bool looks_at_replicas() const override { return true; }
    std::vector<std::pair<bool, bool>> seen;
  } router;
  const FixedTime times(1000);
  Fleet fleet(trace, tiny_config(LoadMode::overlap), times,
              {.num_replicas = 2, .scrape_interval_ns = 100});
  fleet.run(router);
  EXPECT_THAT(router.seen, ElementsAre(std::pair(false, false), std::pair(false, false),
                                       std::pair(true, false)));
}

ConfigResult totals_of(const Trace& trace, const FleetOptions& options) {
  const FixedTime times(50);
  Fleet fleet(trace, tiny_config(LoadMode::overlap), times, options);
  fleet.run();
  ConfigResult result;
  fill_fleet(result, fleet, trace, {.ttft_ms = 1e-4}, 4, /*keep_details=*/true);
  return result;
}

Trace mixed_trace() {
  return two_adapters({at(1, 0, 9, 3), at(2, 1, 9, 5), at(40, 0, 3, 1), at(300, kBaseModel, 5, 4),
                       at(400, 1, 5, 2)});
}

TEST(FleetResult, OneReplicaIsASimulator) {
  const Trace trace = mixed_trace();
  const FixedTime times(50);
  Simulator alone(trace, tiny_config(LoadMode::overlap), times);
  alone.run();
  const ConfigResult a = totals_of(trace, {}), b = result_of(alone, {.ttft_ms = 1e-4});
  EXPECT_EQ(a.event_log_hash, alone.log().hash());
  EXPECT_EQ(a.ttft.p99_ms, b.ttft.p99_ms);
  EXPECT_EQ(a.itl.mean_ms, b.itl.mean_ms);
  EXPECT_EQ(a.request_goodput, b.request_goodput);
  EXPECT_EQ(a.gpu_busy_fraction, b.gpu_busy_fraction);
  EXPECT_EQ(a.adapter_copies, b.adapter_copies);
  EXPECT_EQ(a.mean_batch_seqs, b.mean_batch_seqs);
  EXPECT_EQ(a.max_running, b.max_running);
  EXPECT_EQ(a.max_kv_blocks, b.max_kv_blocks);
  ASSERT_EQ(a.timeline.size(), b.timeline.size());
  EXPECT_EQ(a.timeline.back().kv_blocks_used, b.timeline.back().kv_blocks_used);
}

TEST(FleetResult, TotalsAreOverAllRequests) {
  const Trace trace = mixed_trace();
  const ConfigResult all = totals_of(trace, {.num_replicas = 2});
  ASSERT_EQ(all.fleet.replicas.size(), 2u);
  const ReplicaResult &a = all.fleet.replicas[0], &b = all.fleet.replicas[1];
  EXPECT_EQ(all.completed, 5);
  EXPECT_EQ(a.num_requests, 3);
  EXPECT_EQ(b.num_requests, 2);
  EXPECT_EQ(a.num_adapters, 2);
  EXPECT_EQ(b.num_adapters, 1);
  EXPECT_EQ(all.adapter_copies, a.adapter_copies + b.adapter_copies);
  EXPECT_DOUBLE_EQ(all.gpu_busy_fraction, (a.gpu_busy_s + b.gpu_busy_s) / 2 / all.duration_s);
  ASSERT_EQ(all.requests.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(all.requests[i].arrival_ns, trace.requests[i].arrival_ns);
    EXPECT_EQ(all.requests[i].output_tokens, trace.requests[i].output_tokens);
  }
  EXPECT_NE(all.event_log_hash, a.event_log_hash);
}

// 4 GPUs for half an hour are 2 GPU-hours, and 1,000 tokens/s for as long are 1.8 million tokens.
TEST(FleetResult, GpuHoursPerMillionTokens) {
  ConfigResult result;
  result.duration_s = 1800;
  result.total_token_throughput = 1000;
  EXPECT_DOUBLE_EQ(gpu_hours_per_million_tokens(result, 4), 2 / 1.8);
  EXPECT_EQ(gpu_hours_per_million_tokens(ConfigResult{}, 4), 0);
}

}  // namespace
}  // namespace loratory::sim
