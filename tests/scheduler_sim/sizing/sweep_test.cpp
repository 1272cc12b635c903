// Sizing on hand-made workloads: which row is recommended, and what the sweep keeps.
#include "scheduler_sim/sizing/sweep.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/sizing/headroom.hpp"
#include "scheduler_sim/sizing/memory_advice.hpp"
#include "scheduler_sim/sizing/recommend.hpp"
#include "scheduler_sim/sizing/tasks.hpp"
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
  options.choice = Choice::smallest;
  options.find_headroom = false;
  options.max_cpu_loras = {8};
  const SizeResult result = sweep({round_robin(8, 400)}, engine(), options);
  ASSERT_GE(result.recommended, 0);
  EXPECT_EQ(result.smallest, result.recommended);
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
}

// All six adapters, or as many as the host holds; an adapter of rank 16 takes 80 MiB.
TEST(Sweep, HostsHoldAllAdaptersOrWhatFits) {
  SweepOptions options;
  options.max_loras = {1, 2, 4};
  options.slo = {.ttft_ms = 0.001};  // nothing is chosen, so no smaller host is looked for
  options.find_headroom = false;
  EngineSpec spec = engine();
  const auto hosts = [&] {
    std::vector<int32_t> sizes;
    for (const ConfigResult& c : sweep({round_robin(6, 20)}, spec, options).configs) {
      sizes.push_back(c.max_cpu_loras);
    }
    return sizes;
  };
  EXPECT_THAT(hosts(), testing::ElementsAre(6, 6, 6));
  spec.memory.host_memory_bytes = 3 * adapter_bytes(spec.model, spec.memory.targets, 16);
  EXPECT_THAT(hosts(), testing::ElementsAre(3, 3, 4));
}

// Two adapters take turns, and nobody asks for the other 14: no host needs places for them. The
// chosen row is the small host's; the one it came from stays beside it.
TEST(Sweep, LooksForTheSmallestHostThatLosesNothing) {
  Trace trace = round_robin(16, 200);
  for (TraceRequest& r : trace.requests) r.adapter %= 2;
  SweepOptions options;
  options.max_loras = {4};
  options.slo = {.ttft_ms = 300};
  const SizeResult result = sweep({trace}, engine(), options);
  ASSERT_EQ(result.configs.size(), 2u);
  EXPECT_EQ(result.recommended, 0);
  EXPECT_EQ(result.configs[0].max_cpu_loras, 4);
  EXPECT_EQ(result.configs[1].max_cpu_loras, 16);
  EXPECT_TRUE(result.configs[0].meets_slo);
  EXPECT_LT(result.configs[0].memory.host_bytes, result.configs[1].memory.host_bytes);
  EXPECT_GE(1.03 * result.configs[0].headroom, result.configs[1].headroom);
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
    EXPECT_GE(result.ttft_max_ms[i], result.configs[i].slo_ttft_ms);
    EXPECT_GE(result.tpot_max_ms[i], result.configs[i].slo_tpot_ms);
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
  EXPECT_FALSE(result.configs[0].problem.empty());
}

SizeResult rows_of(const std::vector<double>& goodputs) {
  SizeResult result;
  result.workload.num_adapters = 100;
  for (const double goodput : goodputs) {
    ConfigResult row;
    row.max_loras = int32_t(result.configs.size()) + 1;
    row.request_goodput = goodput;
    row.num_seeds_met = 1;
    row.memory.kv_blocks = 1000;
    result.configs.push_back(row);
  }
  return result;
}

TEST(Choose, SmallestWithinOnePercent) {
  SizeResult result = rows_of({9.0, 9.95, 10.0});
  result.choice = Choice::smallest;
  EXPECT_EQ(choose(result), 1);
  EXPECT_EQ(choose(result, Choice::robust), 1);  // no headroom is known
  result.configs[1].num_seeds_met = 0;
  EXPECT_EQ(choose(result), 2);
  result.configs[2].num_seeds_met = 0;
  EXPECT_EQ(choose(result), 0);
  result.configs[0].num_seeds_met = 0;
  EXPECT_EQ(choose(result), -1);
}

TEST(Choose, RobustHasTheMostHeadroomThatCostsLittle) {
  SizeResult result = rows_of({10, 10, 10, 10});
  const std::vector<double> headrooms = {1.1, 1.5, 2.0, 3.0};
  const std::vector<int64_t> blocks = {1000, 950, 900, 890};
  for (size_t i = 0; i < 4; ++i) {
    result.configs[i].headroom = headrooms[i];
    result.configs[i].memory.kv_blocks = blocks[i];
  }
  EXPECT_EQ(choose(result), 2);
  result.configs[1].headroom = 1.95;  // within two steps: the smaller one
  EXPECT_EQ(choose(result), 1);
  result.workload.num_adapters = 3;  // the third row holds all
  EXPECT_EQ(choose(result), 2);
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

// Of three seeds that all miss, the second is shown.
TEST(Sweep, TheCauseIsThatOfTheSeedThatIsShown) {
  SweepOptions options;
  options.max_loras = {2};
  options.slo = {.ttft_ms = 1e-3};
  options.find_headroom = false;
  const Trace trace = round_robin(8, 300);
  const SizeResult result =
      sweep({at_rate(trace, 0.5), at_rate(trace, 8), trace}, engine(), options);
  const ConfigResult& shown = result.configs[0];
  ASSERT_NE(shown.cause.kind, CauseKind::none);
  EXPECT_EQ(shown.seed, 1u);
  EXPECT_DOUBLE_EQ(shown.cause.miss, shown.slo_ttft_ms / options.slo.ttft_ms);
}

TEST(Tasks, TheFirstFailureIsThrownWhenAllHaveEnded) {
  for (const int threads : {1, 4}) {
    std::atomic<int> done = 0;
    const auto task = [&](int64_t i) {
      ++done;
      if (i % 3 == 1) throw std::runtime_error(std::to_string(i));
    };
    EXPECT_THAT([&] { run_tasks(20, threads, task); },
                testing::ThrowsMessage<std::runtime_error>("1"));
    EXPECT_EQ(done, 20);
  }
}

// A row that misses at any rate is looked at with slower traffic, until arrivals would lie beyond
// 100 years: then no factor is low enough.
TEST(Headroom, OfALongTraceEndsWhereItsTimesDo) {
  SweepOptions options;
  options.max_loras = {2};
  options.slo = {.ttft_ms = 1e-3};
  Trace trace = round_robin(8, 4);
  trace.requests.back().arrival_ns = int64_t{300'000'000} * 1'000'000'000;  // nine years
  const SizeResult result = sweep({trace}, engine(), options);
  ASSERT_EQ(result.configs.size(), 1u);
  EXPECT_EQ(result.configs[0].headroom, 0);
  EXPECT_THROW(at_rate(trace, rate_factor(-kMostStep)), InputError);
}

// 1.025^n; what does not hold anywhere, and what holds everywhere.
TEST(Headroom, FindsTheLargestStepFromAnyHint) {
  for (const int truth : {kNoStep, -kMostStep, -7, 0, 1, 40, kMostStep - 1, kMostStep}) {
    for (const int hint : {-kMostStep, -7, -1, 0, 1, 41, kMostStep}) {
      int calls = 0;
      const auto meets = [&](int step) { return ++calls, step <= truth; };
      EXPECT_EQ(largest_step(meets, hint, 1), truth) << hint;
      EXPECT_LE(calls, 20) << hint;
    }
  }
  constexpr int kLowest = -70;
  for (const int truth : {kLowest - 1, kLowest, -60, 3}) {
    for (const int hint : {-kMostStep, -5, -1}) {
      const auto meets = [&](int step) {
        EXPECT_GE(step, kLowest);
        return step <= truth;
      };
      EXPECT_EQ(largest_step(meets, hint, 8, kLowest), truth < kLowest ? kNoStep : truth) << hint;
    }
  }
  int calls = 0;
  EXPECT_EQ(largest_step([&](int step) { return ++calls, step <= 40; }, 40, 1), 40);
  EXPECT_EQ(calls, 2);
  EXPECT_DOUBLE_EQ(rate_factor(2), 1.025 * 1.025);
  EXPECT_DOUBLE_EQ(rate_factor(-1), 1 / 1.025);
  EXPECT_EQ(rate_factor(kNoStep), 0);
}

// At its headroom a row meets the SLO, a step above it misses; on one thread and on two.
TEST(Headroom, IsTheLastRateThatMeets) {
  SweepOptions options;
  options.max_loras = {2, 4, 8};
  options.slo = {.ttft_ms = 400, .tpot_ms = 20};
  options.num_threads = 1;
  const Trace trace = round_robin(8, 300);
  const SizeResult result = sweep({trace}, engine(), options);
  for (const ConfigResult& c : result.configs) {
    ASSERT_GT(c.headroom, 0);
    EXPECT_EQ(c.headroom >= 1, c.meets_slo);
    const EnginePoint point{c.max_loras, c.max_cpu_loras};
    EXPECT_TRUE(would_meet(at_rate(trace, c.headroom), engine(), point, options.slo));
    EXPECT_FALSE(would_meet(at_rate(trace, 1.025 * c.headroom), engine(), point, options.slo));
    EXPECT_EQ(c.cause.kind == CauseKind::none, c.meets_slo);
  }
  ASSERT_TRUE(result.bounds);
  EXPECT_NE(result.bounds->limit.kind, CauseKind::none);
  EXPECT_GT(result.bounds->limit_factor, result.configs[size_t(result.recommended)].headroom);
  EXPECT_TRUE(result.bounds->base.meets_slo);
  EXPECT_TRUE(result.bounds->resident.meets_slo);
  options.num_threads = 2;
  const SizeResult again = sweep({trace}, engine(), options);
  for (size_t i = 0; i < result.configs.size(); ++i) {
    EXPECT_EQ(again.configs[i].headroom, result.configs[i].headroom);
  }
}

// Nothing meets 15 ms with steps of 10; with steps of 1 it does, and what comes after is not told.
TEST(Sweep, TriesOtherSystemsWhereNothingMeets) {
  class OneMillisecond : public StepTimeModel {
    int64_t step_ns(const BatchShape&) const override { return kMillisecond; }
  };
  SweepOptions options;
  options.max_loras = {2};
  options.slo = {.ttft_ms = 200, .tpot_ms = 5};
  options.alternatives = [] {
    EngineSpec fast = engine();
    fast.make_step_time = [](EnginePoint) { return std::make_unique<OneMillisecond>(); };
    return std::vector<Alternative>{{"slow", engine()}, {"fast", fast}, {"faster", fast}};
  };
  const SizeResult result = sweep({round_robin(2, 50)}, engine(), options);
  ASSERT_EQ(result.recommended, -1);
  ASSERT_EQ(result.remedies.size(), 2u);
  EXPECT_FALSE(result.remedies[0].result.meets_slo);
  EXPECT_EQ(result.remedies[1].flags, "fast");
  EXPECT_TRUE(result.remedies[1].result.meets_slo);
  EXPECT_EQ(result.configs[0].cause.kind, CauseKind::gpu_speed);
}

// --- what memory denies ------------------------------------------------------------------------

EngineSpec small_card() {
  EngineSpec spec = engine();
  spec.gpu = parse_gpu_spec("A10G");
  spec.memory.max_lora_rank = 64;
  return spec;
}

TEST(MoreRoom, NamesWhatWasNotReplayed) {
  static constexpr int64_t kRanks[] = {8, 16, 32, 64};
  EngineSpec spec = small_card();
  spec.lora_ranks = kRanks;
  SweepOptions options;
  options.max_loras = {16};
  options.alternatives = [&] {
    EngineSpec two = spec;
    two.memory.tp = 2;
    return std::vector<Alternative>{{"--tp 2", two}};
  };
  const SizeResult result = sweep({round_robin(2, 10)}, spec, options);
  ASSERT_EQ(result.recommended, -1);
  ASSERT_TRUE(result.more_room);
  EXPECT_EQ(result.more_room->max_loras, 16);
  using testing::StartsWith;
  EXPECT_THAT(result.more_room->changes,
              testing::ElementsAre(StartsWith("--max-lora-rank 32 has room for "),
                                   StartsWith("--max-loras 8 "), StartsWith("--dtype fp8 "),
                                   StartsWith("--gpu A100-40 ")));
}

// A size that fits lacks slots, and the next does not fit; or a request is larger than the cache.
TEST(MoreRoom, IsForTheRowThatMemoryDenies) {
  const EngineSpec spec = small_card();
  SizeResult result;
  result.configs.resize(3);
  result.configs[0].max_loras = 2, result.configs[1].max_loras = 16;
  result.configs[2].max_loras = 32;
  result.configs[1].feasible = result.configs[2].feasible = false;
  result.configs[0].cause.kind = CauseKind::slots;
  ASSERT_TRUE(more_room(result, spec));
  EXPECT_EQ(more_room(result, spec)->max_loras, 16);
  result.configs[0].cause.kind = CauseKind::gpu_speed;
  EXPECT_FALSE(more_room(result, spec));
  result.configs[0].cause.kind = CauseKind::too_large;
  EXPECT_FALSE(more_room(result, spec));  // two slots fit, and nothing says how long a request is
  EngineSpec of_long_requests = spec;
  of_long_requests.scheduler.max_model_len = 100'000;
  ASSERT_TRUE(more_room(result, of_long_requests));
  EXPECT_EQ(more_room(result, of_long_requests)->max_loras, 2);
}

TEST(RankCost, IsOfARankThatIsRoundedUp) {
  static constexpr int64_t kRanks[] = {8, 16, 32, 64};
  EngineSpec spec = engine();
  spec.memory.max_lora_rank = 32;
  spec.default_rank = 24;
  ConfigResult large;
  large.memory.slot_bytes = int64_t{1} << 40;
  EXPECT_FALSE(rank_cost(large, spec));  // any rank is allowed, and this one was asked for
  spec.lora_ranks = kRanks;
  spec.name = "vLLM";
  SweepOptions options;
  options.max_loras = {4};
  options.find_headroom = false;
  const SizeResult result = sweep({round_robin(2, 10)}, spec, options);
  const auto& cost = result.rank_cost;
  ASSERT_TRUE(cost);
  EXPECT_EQ(cost->allowed, "8, 16, 32, ...");
  EXPECT_EQ(cost->max_lora_rank, 32);
  EXPECT_EQ(cost->rank_of_trace, 24);
  MemoryOptions eight = spec.memory;
  eight.max_lora_rank = 8;  // 32 - 24
  EXPECT_EQ(cost->bytes, 4 * slot_bytes(spec.model, eight));
  spec.memory.max_lora_rank = 64;  // asked for: not what rounding gives
  EXPECT_FALSE(rank_cost(large, spec));
  spec.memory.max_lora_rank = spec.default_rank = 64;
  EXPECT_FALSE(rank_cost(large, spec));
}

}  // namespace
}  // namespace loratory::sim
