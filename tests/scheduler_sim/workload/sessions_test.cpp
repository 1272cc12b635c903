#include "scheduler_sim/workload/sessions.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "tests/scheduler_sim/workload/workload_testing.hpp"

namespace loratory::sim {
namespace {

Trace requests_every_second(size_t count, uint32_t num_adapters, uint32_t message_tokens,
                            uint32_t output_tokens) {
  Trace trace;
  for (size_t i = 0; i < count; ++i) {
    trace.requests.push_back({.arrival_ns = int64_t(i) * kSecond,
                              .prompt_tokens = message_tokens,
                              .output_tokens = output_tokens,
                              .adapter = AdapterIndex(i % num_adapters)});
  }
  return trace;
}

std::vector<uint64_t> blocks(const Trace& trace, size_t request) {
  const auto span = trace.blocks_of(trace.requests[request]);
  return {span.begin(), span.end()};
}

TEST(Sessions, OneTurnEachHasASystemPromptAndNewBlocks) {
  Trace trace = requests_every_second(3, 2, 10, 5);
  add_sessions(
      trace,
      {.block_tokens = 16, .num_system_prompts = 1, .system_tokens = LengthLaw::constant(40)}, 1);
  EXPECT_EQ(trace.block_tokens, 16u);
  EXPECT_EQ(trace.requests[0].prompt_tokens, 50u);
  // 40 tokens fill blocks 0 and 1; the block that mixes system prompt and message is new each time.
  EXPECT_EQ(blocks(trace, 0), (std::vector<uint64_t>{0, 1, 2, 3}));
  EXPECT_EQ(blocks(trace, 1), (std::vector<uint64_t>{0, 1, 4, 5})) << "another adapter, same ids";
  EXPECT_EQ(blocks(trace, 2), (std::vector<uint64_t>{0, 1, 6, 7}));
}

TEST(Sessions, ALaterTurnRepeatsTheFullBlocksOfThePromptBeforeIt) {
  Trace trace = requests_every_second(3, 1, 20, 8);
  // A gap of at most 1 s: ready after 0.0005 s + an exponential of that mean.
  add_sessions(trace, {.block_tokens = 16, .mean_turns = 1e9, .mean_gap_s = 0.001}, 1);
  EXPECT_EQ(trace.requests[1].prompt_tokens, 20u + 8 + 20);
  EXPECT_EQ(trace.requests[2].prompt_tokens, 48u + 8 + 20);
  EXPECT_EQ(blocks(trace, 0), (std::vector<uint64_t>{0, 1}));
  EXPECT_EQ(blocks(trace, 1), (std::vector<uint64_t>{0, 2, 3}));
  EXPECT_EQ(blocks(trace, 2), (std::vector<uint64_t>{0, 2, 3, 4, 5}));
  for (const TraceRequest& request : trace.requests) EXPECT_EQ(request.session, 1u);
}

TEST(Sessions, ASessionStaysWithItsAdapterAndWaitsForItsGap) {
  Trace trace = requests_every_second(4000, 7, 20, 8);
  add_sessions(trace, {.block_tokens = 16, .mean_turns = 3, .mean_gap_s = 60}, 1);
  std::map<uint32_t, const TraceRequest*> last;
  for (const TraceRequest& request : trace.requests) {
    const TraceRequest*& before = last[request.session];
    if (before) {
      EXPECT_EQ(request.adapter, before->adapter);
      EXPECT_GE(request.arrival_ns, before->arrival_ns + 30 * kSecond);
      EXPECT_EQ(request.prompt_tokens, before->prompt_tokens + before->output_tokens + 20);
    }
    before = &request;
  }
  // Sessions that never come back to an arrival shorten the mean a little.
  EXPECT_NEAR(4000.0 / double(last.size()), 3, 0.4);
}

TEST(Sessions, ASessionWithoutRoomEnds) {
  Trace trace = requests_every_second(50, 1, 100, 50);
  add_sessions(trace, {.mean_turns = 1e9, .mean_gap_s = 0.001, .max_prompt_tokens = 1000}, 1);
  uint32_t longest = 0;
  for (const TraceRequest& request : trace.requests) {
    longest = std::max(longest, request.prompt_tokens);
  }
  EXPECT_EQ(longest, 1000u);  // 100 + 6 * 150
  EXPECT_TRUE(trace.block_ids.empty());
  EXPECT_EQ(trace.requests.back().session, 8u);  // seven turns each
}

TEST(Sessions, EveryRequestHasABlockIdForEveryStartedBlock) {
  Trace trace = requests_every_second(500, 5, 33, 17);
  add_sessions(trace,
               {.block_tokens = 16,
                .mean_turns = 2.5,
                .mean_gap_s = 20,
                .num_system_prompts = 3,
                .system_tokens = LengthLaw::lognormal(300, 200),
                .max_prompt_tokens = 600},
               9);
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& request = trace.requests[i];
    EXPECT_EQ(request.content_count, (request.prompt_tokens + 15) / 16);
    EXPECT_LE(request.prompt_tokens, 600u);
    const auto ids = blocks(trace, i);
    EXPECT_EQ(std::set<uint64_t>(ids.begin(), ids.end()).size(), ids.size());
  }
}

}  // namespace
}  // namespace loratory::sim
