// Sizing on hand-made workloads: which row is recommended, and what the sweep keeps.
#include "scheduler_sim/sizing/sweep.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler_sim/sizing/recommend.hpp"

namespace loratory::sim {
namespace {

constexpr int64_t kMillisecond = 1'000'000;

// Every step takes 10 ms.
class TenMilliseconds : public StepTimeModel {
 public:
  int64_t step_ns(const BatchShape&) const override { return 10 * kMillisecond; }
};

// Adapters 0, 1, 2, 0, 1, 2, ... one request every 20 ms.
Trace round_robin(uint32_t num_adapters, size_t num_requests) {
  Trace trace;
  for (uint32_t a = 0; a < num_adapters; ++a) trace.adapters.push_back({std::to_string(a), 16});
  for (size_t i = 0; i < num_requests; ++i) {
    TraceRequest r;
    r.arrival_ns = int64_t(i) * 20 * kMillisecond;
    r.prompt_tokens = 100;
    r.output_tokens = 10;
    r.adapter = AdapterIndex(i % num_adapters);
    trace.requests.push_back(r);
  }
  return trace;
}

EngineSpec engine() {
  EngineSpec engine;
  engine.model = load_model_spec("Llama-3.1-8B");
  engine.gpu = parse_gpu_spec("H100-80");
  engine.make_step_time = [](int64_t) { return std::make_unique<TenMilliseconds>(); };
  return engine;
}

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

}  // namespace
}  // namespace loratory::sim
