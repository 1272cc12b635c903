#include "scheduler_sim/trace/summary.hpp"

#include <gtest/gtest.h>

#include <string>

#include "scheduler_sim/trace/info.hpp"
#include "scheduler_sim/trace/reader.hpp"
#include "scheduler_sim/trace/reuse.hpp"

namespace loratory::sim {
namespace {

Trace small_trace() {
  return read_trace_from(
      "{\"arrival_ms\":0,\"prompt_tokens\":10,\"output_tokens\":1,\"adapter\":\"a\",\"rank\":8}\n"
      "{\"arrival_ms\":1000,\"prompt_tokens\":20,\"output_tokens\":2,\"adapter\":\"b\"}\n"
      "{\"arrival_ms\":1000,\"prompt_tokens\":30,\"output_tokens\":3,\"adapter\":\"b\"}\n"
      "{\"arrival_ms\":4000,\"prompt_tokens\":40,\"output_tokens\":4,\"session\":3,"
      "\"cancel_ms\":5000}\n",
      "small");
}

TEST(Summary, OfFourRequestsByHand) {
  const TraceSummary summary = summarize(small_trace());
  EXPECT_EQ(summary.num_requests, 4u);
  EXPECT_DOUBLE_EQ(summary.span_s, 4);
  EXPECT_DOUBLE_EQ(summary.request_rate, 1);
  // Gaps 1, 0, 3: mean 4/3, variance (1/9 + 16/9 + 25/9) / 3 = 14/9.
  EXPECT_DOUBLE_EQ(summary.gap_mean_s, 4.0 / 3);
  EXPECT_NEAR(summary.gap_cv, 0.93541434669348533, 1e-12);  // sqrt(14/9) / (4/3)
  EXPECT_EQ(summary.num_arrival_times, 3u);
  EXPECT_DOUBLE_EQ(summary.prompt.mean, 25);
  EXPECT_DOUBLE_EQ(summary.prompt.p50, 25);
  EXPECT_DOUBLE_EQ(summary.prompt.p90, 37);  // index 2.7 of 10, 20, 30, 40
  EXPECT_DOUBLE_EQ(summary.prompt.p99, 39.7);
  EXPECT_EQ(summary.output.min, 1u);
  EXPECT_EQ(summary.output.max, 4u);
  EXPECT_EQ(summary.num_base_requests, 1u);
  ASSERT_EQ(summary.adapters.size(), 2u);
  EXPECT_EQ(summary.adapters[0].name, "b");
  EXPECT_EQ(summary.adapters[0].num_requests, 2u);
  EXPECT_EQ(summary.adapters[1].rank, 8u);
  EXPECT_EQ(summary.num_sessions, 1u);
  EXPECT_EQ(summary.num_cancelled, 1u);
}

TEST(Summary, OfOneRequest) {
  const TraceSummary summary = summarize(
      read_trace_from("{\"arrival_ms\":7,\"prompt_tokens\":10,\"output_tokens\":1}", "one"));
  EXPECT_EQ(summary.request_rate, 0);
  EXPECT_EQ(summary.gap_cv, 0);
  EXPECT_EQ(summary.prompt.p99, 10);
}

// Four rows of blocks of 10 tokens. With room for 2 blocks, by hand:
//   row 0: 1 2 3   no hit; touched 3, 2, 1: cache {1, 2}
//   row 1: 1 2 4   hits 1, 2; touched 4, 2, 1: cache {1, 2}
//   row 2: 5       no hit; cache {5, 1}
//   row 3: 1 2 3   hits 1 (2 was evicted)
Trace reuse_trace() {
  return read_trace_from(
      "{\"arrival_ms\":0,\"prompt_tokens\":30,\"output_tokens\":1,\"block_tokens\":10,"
      "\"block_ids\":[1,2,3]}\n"
      "{\"arrival_ms\":0,\"prompt_tokens\":25,\"output_tokens\":1,\"block_tokens\":10,"
      "\"block_ids\":[1,2,4]}\n"
      "{\"arrival_ms\":0,\"prompt_tokens\":10,\"output_tokens\":1,\"block_tokens\":10,"
      "\"block_ids\":[5]}\n"
      "{\"arrival_ms\":0,\"prompt_tokens\":25,\"output_tokens\":1,\"block_tokens\":10,"
      "\"block_ids\":[1,2,3]}\n",
      "reuse");
}

TEST(PrefixReuse, ByHand) {
  const std::vector<uint64_t> capacities = {0, 2, 3, kUnboundedBlocks};
  const std::vector<PrefixReuse> reuse = prefix_reuse(reuse_trace(), capacities);
  ASSERT_EQ(reuse.size(), 4u);
  EXPECT_EQ(reuse[0].hit_blocks, 0u);
  EXPECT_EQ(reuse[1].hit_blocks, 3u);
  EXPECT_EQ(reuse[1].hit_tokens, 30u);
  EXPECT_EQ(reuse[2].hit_blocks, 4u);  // 2 survives the block of row 2, 3 does not
  EXPECT_EQ(reuse[3].hit_blocks, 5u);
  EXPECT_EQ(reuse[3].hit_tokens, 45u);  // the last, partial block has 5 tokens
  EXPECT_EQ(reuse[3].num_blocks, 10u);
  EXPECT_EQ(reuse[3].num_tokens, 90u);
}

TEST(PrefixReuse, ABlockBehindAMissIsNoHit) {
  const Trace trace = read_trace_from(
      "{\"arrival_ms\":0,\"prompt_tokens\":2,\"output_tokens\":1,\"block_tokens\":1,"
      "\"block_ids\":[1,2]}\n"
      "{\"arrival_ms\":0,\"prompt_tokens\":2,\"output_tokens\":1,\"block_tokens\":1,"
      "\"block_ids\":[3,2]}\n",
      "t");
  const std::vector<uint64_t> capacities = {kUnboundedBlocks};
  EXPECT_EQ(prefix_reuse(trace, capacities)[0].hit_blocks, 0u);
}

TEST(Info, TableFitsAndSaysWhatIsThere) {
  Trace trace = reuse_trace();
  trace.num_rows_skipped = 3;
  const std::vector<uint64_t> capacities = {2, kUnboundedBlocks};
  const std::vector<PrefixReuse> reuse = prefix_reuse(trace, capacities);
  const std::string table = info_table(trace, summarize(trace), reuse);
  for (size_t begin = 0; begin < table.size();) {
    const size_t end = table.find('\n', begin);
    ASSERT_NE(end, std::string::npos);
    EXPECT_LE(end - begin, 100u);
    begin = end + 1;
  }
  EXPECT_NE(table.find("rows skipped    3\n"), std::string::npos) << table;
  EXPECT_NE(table.find("               2        0.3000        0.3333\n"), std::string::npos)
      << table;
  EXPECT_NE(table.find("             inf        0.5000        0.5000\n"), std::string::npos)
      << table;
}

TEST(Info, JsonHoldsTheSame) {
  const Trace trace = small_trace();
  const std::string json = info_json(trace, summarize(trace), {});
  EXPECT_NE(json.find("\"num_requests\": 4"), std::string::npos) << json;
  EXPECT_NE(json.find("\"rank\": null"), std::string::npos) << json;
}

}  // namespace
}  // namespace loratory::sim
