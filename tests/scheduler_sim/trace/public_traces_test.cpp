// The public traces, where they are on this machine: published row counts, statistics and every row
// of the prefix-hit oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "scheduler_sim/trace/client_windows.hpp"
#include "scheduler_sim/trace/reader.hpp"
#include "scheduler_sim/trace/reuse.hpp"
#include "scheduler_sim/trace/summary.hpp"

namespace loratory::sim {
namespace {

std::string public_trace(const std::string& name) {
  const char* folder = std::getenv("LORATORY_SHARED");
  return (folder != nullptr ? std::string(folder)
                            : std::string(LORATORY_SOURCE_DIR) + "/../shared/traces") +
         "/" + name;
}

#define READ_OR_SKIP(path)                                      \
  if (!std::filesystem::exists(path)) {                         \
    GTEST_SKIP() << "no " << (path) << "; set LORATORY_SHARED"; \
  }

double rounded(double value, double digits) {
  return std::round(value * std::pow(10, digits)) / std::pow(10, digits);
}

struct OracleRow {
  uint64_t capacity;
  double blocks;
};

void expect_oracle(const Trace& trace, const std::vector<OracleRow>& rows, double inf_tokens) {
  std::vector<uint64_t> capacities;
  for (const OracleRow& row : rows) capacities.push_back(row.capacity);
  const std::vector<PrefixReuse> reuse = prefix_reuse(trace, capacities);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_DOUBLE_EQ(rounded(reuse[i].block_ratio(), 4), rows[i].blocks) << rows[i].capacity;
  }
  EXPECT_DOUBLE_EQ(rounded(reuse[0].token_ratio(), 4), inf_tokens);
}

TEST(PublicTraces, MooncakeConversation) {
  const std::string path = public_trace("mooncake_conversation_trace.jsonl.gz");
  READ_OR_SKIP(path);
  const Trace trace = read_trace(path);
  const TraceSummary summary = summarize(trace);
  EXPECT_EQ(summary.num_requests, 12'031u);
  EXPECT_EQ(summary.num_arrival_times, 1'180u);
  EXPECT_DOUBLE_EQ(summary.span_s, 3'536.999);
  EXPECT_DOUBLE_EQ(rounded(summary.gap_cv, 2), 3.03);
  EXPECT_DOUBLE_EQ(rounded(summary.prompt.mean, 1), 12'035.1);
  EXPECT_DOUBLE_EQ(rounded(summary.prompt.p99, 0), 85'400);
  EXPECT_DOUBLE_EQ(rounded(summary.output.mean, 1), 342.6);
  EXPECT_EQ(summary.num_blocks, 288'500u);
  EXPECT_EQ(summary.num_distinct_blocks, 182'790u);
  expect_oracle(trace,
                {{kUnboundedBlocks, 0.3664},
                 {1'000, 0.0445},
                 {3'000, 0.0653},
                 {5'859, 0.1361},
                 {10'000, 0.2116},
                 {30'000, 0.3257},
                 {50'000, 0.3546},
                 {97'656, 0.3635}},
                0.3736);
}

TEST(PublicTraces, MooncakeSynthetic) {
  const std::string path = public_trace("mooncake_synthetic_trace.jsonl");
  READ_OR_SKIP(path);
  const Trace trace = read_trace(path);
  const TraceSummary summary = summarize(trace);
  EXPECT_EQ(summary.num_requests, 3'993u);
  EXPECT_EQ(summary.num_blocks, 121'877u);
  EXPECT_EQ(summary.num_distinct_blocks, 43'924u);
  expect_oracle(trace,
                {{kUnboundedBlocks, 0.6396},
                 {1'000, 0.0841},
                 {3'000, 0.1906},
                 {5'859, 0.3094},
                 {10'000, 0.4239},
                 {30'000, 0.6242},
                 {50'000, 0.6396},
                 {97'656, 0.6396}},
                0.6512);
}

// Both files end without a newline, and are whole.
TEST(PublicTraces, AzureConversation) {
  const std::string path = public_trace("AzureLLMInferenceTrace_conv.csv");
  READ_OR_SKIP(path);
  const TraceSummary summary = summarize(read_trace(path));
  EXPECT_EQ(summary.num_requests, 19'366u);
  EXPECT_DOUBLE_EQ(rounded(summary.span_s, 1), 3'501.7);
  EXPECT_DOUBLE_EQ(rounded(summary.gap_cv, 2), 1.09);
  EXPECT_DOUBLE_EQ(rounded(summary.prompt.mean, 1), 1'154.7);
  EXPECT_DOUBLE_EQ(rounded(summary.output.mean, 1), 211.1);
  EXPECT_EQ(summary.prompt.max, 14'050u);
}

TEST(PublicTraces, AzureCode) {
  const std::string path = public_trace("AzureLLMInferenceTrace_code.csv");
  READ_OR_SKIP(path);
  const TraceSummary summary = summarize(read_trace(path));
  EXPECT_EQ(summary.num_requests, 8'819u);
  EXPECT_DOUBLE_EQ(rounded(summary.gap_cv, 2), 13.15);
  EXPECT_DOUBLE_EQ(rounded(summary.output.mean, 1), 27.9);
}

TEST(PublicTraces, ServeGenClientWindows) {
  const std::string path = public_trace("servegen_client_windows.csv.gz");
  READ_OR_SKIP(path);
  const std::vector<ClientWindow> windows = read_client_windows(path);
  EXPECT_EQ(windows.size(), 251'524u);
  std::map<std::string, double> num_requests;
  for (const ClientWindow& window : windows) {
    num_requests[window.category + "/" + window.model] += window.rate_rps * 600;
  }
  EXPECT_NEAR(num_requests["language/m-large"], 2.37e8, 0.005e8);
  EXPECT_NEAR(num_requests["reason/deepseek-r1"], 1.38e6, 0.005e6);
}

}  // namespace
}  // namespace loratory::sim
