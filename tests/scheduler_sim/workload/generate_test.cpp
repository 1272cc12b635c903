#include "scheduler_sim/workload/generate.hpp"

#include <cmath>

#include "scheduler_sim/workload/adapter_assignment.hpp"
#include "tests/scheduler_sim/workload/workload_testing.hpp"

namespace loratory::sim {
namespace {

GenerateOptions chat_options() {
  GenerateOptions options;
  options.seed = 42;
  options.source = ArrivalSource::per_adapter;
  options.arrivals = {10, 2};
  options.limit.num_requests = 2000;
  options.popularity = parse_popularity("zipf:0.9");
  options.num_adapters = 24;
  options.ranks = {8, 16, 64};
  options.prompt_tokens = LengthLaw::lognormal(400, 250, 4096);
  options.output_tokens = LengthLaw::lognormal(211, 129, 1000);
  options.sessions = {.block_tokens = 16,
                      .mean_turns = 2.5,
                      .mean_gap_s = 30,
                      .num_system_prompts = 5,
                      .system_tokens = LengthLaw::lognormal(400, 300, 2000)};
  return options;
}

// Golden: changing any draw, law or order changes these. Change them only on purpose, and say so.
TEST(Generate, SameSeedSameBytes) {
  EXPECT_EQ(generate(chat_options()).checksum, "xxh3:cd9feda6c2b87dc2");
  GenerateOptions shared = chat_options();
  shared.source = ArrivalSource::shared;
  shared.sessions = {};
  EXPECT_EQ(generate(shared).checksum, "xxh3:419643e54a21e7ac");
}

TEST(Generate, AnotherSeedIsAnotherTrace) {
  GenerateOptions other = chat_options();
  other.seed = 43;
  EXPECT_NE(generate(other).checksum, generate(chat_options()).checksum);
}

TEST(Generate, PartsAreIndependentOfEachOther) {
  GenerateOptions options = chat_options();
  options.sessions = {};
  const Trace before = generate(options);
  options.output_tokens = LengthLaw::constant(7);
  const Trace after = generate(options);
  ASSERT_EQ(before.requests.size(), after.requests.size());
  for (size_t i = 0; i < before.requests.size(); ++i) {
    ASSERT_EQ(before.requests[i].arrival_ns, after.requests[i].arrival_ns);
    ASSERT_EQ(before.requests[i].adapter, after.requests[i].adapter);
    ASSERT_EQ(before.requests[i].prompt_tokens, after.requests[i].prompt_tokens);
  }
}

TEST(Generate, SessionsLeaveTimesAndAdaptersAlone) {
  GenerateOptions options = chat_options();
  const Trace with = generate(options);
  options.sessions = {};
  const Trace without = generate(options);
  for (size_t i = 0; i < with.requests.size(); ++i) {
    ASSERT_EQ(with.requests[i].arrival_ns, without.requests[i].arrival_ns);
    ASSERT_EQ(with.requests[i].adapter, without.requests[i].adapter);
    ASSERT_GE(with.requests[i].prompt_tokens, without.requests[i].prompt_tokens);
  }
}

TEST(Generate, WithoutAdaptersAllAskForTheBaseModel) {
  GenerateOptions options;
  options.limit.num_requests = 10;
  const Trace trace = generate(options);
  ASSERT_EQ(trace.requests.size(), 10u);
  EXPECT_TRUE(trace.adapters.empty());
  for (const TraceRequest& request : trace.requests) EXPECT_EQ(request.adapter, kBaseModel);
}

// Agullo et al.: groups of adapters, each adapter a Poisson stream with the rate of its group.
TEST(Generate, AdapterRatesMakeGroups) {
  GenerateOptions options;
  options.source = ArrivalSource::adapter_rates;
  options.adapter_rates = parse_adapter_rates("0.1:4,0.025:8");
  options.limit.duration_ns = 3600'000'000'000;
  const Trace trace = generate(options);
  EXPECT_EQ(trace.adapters.size(), 12u);
  double fast = 0;
  for (const TraceRequest& request : trace.requests) {
    fast += trace.adapters[request.adapter].name < "adapter-004";
  }
  EXPECT_NEAR(fast, 1440, 4 * std::sqrt(1440.0));
  EXPECT_NEAR(double(trace.requests.size()) - fast, 720, 4 * std::sqrt(720.0));
}

TEST(Generate, RateScaleMultipliesTheRateAndKeepsTheDuration) {
  GenerateOptions options = chat_options();
  options.limit = {.duration_ns = 400'000'000'000};
  options.rate_scale = 3;
  const auto count = double(generate(options).requests.size());
  EXPECT_NEAR(count, 12'000, 0.1 * 12'000);
}

TEST(Generate, LengthsComeFromATraceInOrderOrAtRandom) {
  Trace rows;
  for (uint32_t i = 1; i <= 5; ++i) {
    rows.requests.push_back({.prompt_tokens = i, .output_tokens = 10 * i});
  }
  GenerateOptions options;
  options.limit.num_requests = 5000;
  options.lengths_from = &rows;
  options.lengths_in_order = true;
  const Trace in_order = generate(options);
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(in_order.requests[i].prompt_tokens, i % 5 + 1);
  options.lengths_in_order = false;
  std::vector<uint64_t> counts(5, 0);
  for (const TraceRequest& request : generate(options).requests) {
    ASSERT_EQ(request.output_tokens, 10 * request.prompt_tokens);
    ++counts.at(request.prompt_tokens - 1);
  }
  EXPECT_LT(std::abs(chi_square_z(counts, std::vector<double>(5, 0.2))), 4);
}

TEST(Generate, TimesOfATraceAreScaledBeforeTheLimit) {
  Trace times;
  for (int64_t i = 0; i < 10; ++i) times.requests.push_back({.arrival_ns = 100 * i});
  GenerateOptions options;
  options.source = ArrivalSource::trace;
  options.arrivals_from = &times;
  options.rate_scale = 2;
  options.limit.duration_ns = 400;
  const Trace trace = generate(options);
  ASSERT_EQ(trace.requests.size(), 8u);
  EXPECT_EQ(trace.requests[7].arrival_ns, 350);
}

TEST(Generate, ErrorsNameTheFlags) {
  GenerateOptions options;
  options.source = ArrivalSource::clients;
  EXPECT_EQ(error_of([&] { (void)generate(options); }),
            "--arrivals: only a table of clients has arrivals of its own; "
            "give --popularity servegen:FILE");
  EXPECT_EQ(error_of([] { (void)parse_adapter_rates("0.1"); }),
            "--adapter-rates: '0.1' is not RATE:COUNT; write it like 0.1:32,0.05:64");
  EXPECT_EQ(error_of([] { (void)parse_adapter_rates("0.1:0"); }),
            "--adapter-rates: '0' is not a number of adapters; it must lie in 1 .. 1000000");
}

TEST(TraceChecksum, SeesEveryField) {
  const Trace base = generate(chat_options());
  const auto changed = [&](auto&& change) {
    Trace trace = base;
    change(trace);
    return trace_checksum(trace) != base.checksum;
  };
  EXPECT_FALSE(changed([](Trace&) {}));
  EXPECT_TRUE(changed([](Trace& t) { t.requests[5].arrival_ns ^= 1; }));
  EXPECT_TRUE(changed([](Trace& t) { t.requests[5].output_tokens ^= 1; }));
  EXPECT_TRUE(changed([](Trace& t) { t.requests[5].session ^= 1; }));
  EXPECT_TRUE(changed([](Trace& t) { t.adapters[1].name += "x"; }));
  EXPECT_TRUE(changed([](Trace& t) { t.adapters[1].rank ^= 1; }));
  EXPECT_TRUE(changed([](Trace& t) { t.block_ids[77] ^= 1; }));
}

}  // namespace
}  // namespace loratory::sim
