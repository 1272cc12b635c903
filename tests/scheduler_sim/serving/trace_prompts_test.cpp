#include "scheduler_sim/serving/trace_prompts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "fuzz/support/random_model.hpp"
#include "reference/adapter/adapter.hpp"
#include "scheduler_sim/serving/synthetic_adapter.hpp"

namespace loratory::sim {
namespace {

// Blocks of 4: the first two requests share two, the third has the second block at first.
Trace three_requests() {
  Trace trace;
  trace.block_tokens = 4;
  trace.block_ids = {7, 8, 9, 7, 8, 8, 7};
  for (const auto& [begin, count, tokens] : {std::tuple{0, 3, 10}, {3, 2, 10}, {5, 2, 8}}) {
    TraceRequest r;
    r.content_begin = uint64_t(begin);
    r.content_count = uint32_t(count);
    r.prompt_tokens = uint32_t(tokens);
    trace.requests.push_back(r);
  }
  return trace;
}

bool begins_alike(const std::vector<int32_t>& a, const std::vector<int32_t>& b, size_t count) {
  return std::equal(a.begin(), a.begin() + int64_t(count), b.begin());
}

TEST(TracePrompts, EqualBlocksHaveEqualTokens) {
  const Trace trace = three_requests();
  const TracePrompts prompts(trace, 1, 30'000);
  const auto a = prompts.prompt_of(0), b = prompts.prompt_of(1), c = prompts.prompt_of(2);
  ASSERT_EQ(a.size(), 10u);
  ASSERT_EQ(b.size(), 10u);
  ASSERT_EQ(c.size(), 8u);
  EXPECT_TRUE(begins_alike(a, b, 8));
  EXPECT_NE(a[8], b[8]);
  EXPECT_TRUE(std::equal(c.begin(), c.begin() + 4, a.begin() + 4));
  for (const int32_t token : a) EXPECT_TRUE(token >= 0 && token < 30'000);
  EXPECT_EQ(prompts.prompt_of(0), a);
  EXPECT_NE(TracePrompts(trace, 2, 30'000).prompt_of(0), a);
}

TEST(TracePrompts, TokensOfTheTraceAreTaken) {
  Trace trace;
  trace.token_ids = {5, 105, 7};
  TraceRequest r;
  r.content_count = r.prompt_tokens = 3;
  trace.requests.push_back(r);
  EXPECT_EQ(TracePrompts(trace, 1, 100).prompt_of(0), (std::vector<int32_t>{5, 5, 7}));
}

TEST(SyntheticAdapter, IsLoadedAndHasAllLinearLayers) {
  const std::string folder = testing::TempDir() + "synthetic_adapter";
  reference::ModelConfig config = reference::random_model_config(3);
  config.num_experts = 0;
  config.layer_has_experts.clear();
  write_synthetic_adapter(folder, config, 3, 1);
  const reference::Adapter adapter = load_adapter(folder, base_model_shapes(config));
  EXPECT_EQ(adapter.rank, 3);
  EXPECT_EQ(int64_t(adapter.modules.size()), 7 * config.num_layers);
  EXPECT_TRUE(adapter.warnings.empty());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace loratory::sim
