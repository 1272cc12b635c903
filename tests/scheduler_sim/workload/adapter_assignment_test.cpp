#include "scheduler_sim/workload/adapter_assignment.hpp"

#include <algorithm>

#include "tests/scheduler_sim/workload/workload_testing.hpp"

namespace loratory::sim {
namespace {

Trace trace_of(size_t num_requests) {
  Trace trace;
  for (size_t i = 0; i < num_requests; ++i) {
    trace.requests.push_back({.arrival_ns = int64_t(i), .prompt_tokens = 1});
  }
  return trace;
}

TEST(AssignAdapters, ListsThemInOrderOfFirstAppearance) {
  Trace trace = trace_of(1000);
  assign_adapters(trace, {parse_popularity("zipf:1"), 16, {8, 16, 32}, 1});
  AdapterIndex seen = 0;
  for (const TraceRequest& request : trace.requests) {
    ASSERT_LE(request.adapter, seen);
    seen = std::max(seen, request.adapter + 1);
  }
  EXPECT_EQ(seen, trace.adapters.size());
  for (const TraceAdapter& adapter : trace.adapters) {
    const auto number = std::stoul(adapter.name.substr(adapter.name.find('-') + 1));
    EXPECT_EQ(adapter.rank, (std::vector<uint32_t>{8, 16, 32}[number % 3])) << adapter.name;
  }
}

TEST(AssignAdapters, LeavesOutAdaptersThatNobodyAsksFor) {
  Trace trace = trace_of(3);
  assign_adapters(trace, {parse_popularity("uniform"), 1000, {8}, 1});
  EXPECT_LE(trace.adapters.size(), 3u);
}

TEST(AssignAdapters, SameSeedSameAdapters) {
  const auto adapters = [](uint64_t seed) {
    Trace trace = trace_of(200);
    assign_adapters(trace, {parse_popularity("power:0.5"), 32, {8}, seed});
    std::vector<std::string> names;
    for (const TraceRequest& r : trace.requests) names.push_back(trace.adapters[r.adapter].name);
    return names;
  };
  EXPECT_EQ(adapters(4), adapters(4));
  EXPECT_NE(adapters(4), adapters(5));
}

TEST(AssignAdapters, KeepsTheAdaptersOfTheTraceUnlessTold) {
  Trace trace = trace_of(2);
  trace.adapters = {{"own", 8}};
  trace.requests[0].adapter = 0;
  EXPECT_EQ(error_of([&] {
              assign_adapters(trace, {{}, 4, {8}, 1});
            }),
            "--adapters: the trace names 1 adapters of its own; "
            "leave the flag out to use them, or add --replace-adapters");
  EXPECT_EQ(trace.adapters[0].name, "own");
  assign_adapters(trace, {{}, 4, {8}, 1, true});
  EXPECT_NE(trace.adapters[0].name, "own");
}

TEST(DealMissingRanks, KeepsRanksThatTheTraceStates) {
  Trace trace;
  trace.adapters = {{"a", 0}, {"b", 64}, {"c", 0}};
  deal_missing_ranks(trace, {8, 16});
  EXPECT_EQ(trace.adapters[0].rank, 8u);
  EXPECT_EQ(trace.adapters[1].rank, 64u);
  EXPECT_EQ(trace.adapters[2].rank, 8u);
}

}  // namespace
}  // namespace loratory::sim
