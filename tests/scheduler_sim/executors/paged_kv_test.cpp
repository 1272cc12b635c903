#include "scheduler_sim/executors/paged_kv.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace loratory::sim {
namespace {

bool all_nan(std::span<const float> numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](float v) { return std::isnan(v); });
}

PagedKv small_pool() {
  return PagedKv({.num_blocks = 4, .block_size = 2, .num_layers = 2, .row_size = 3});
}

TEST(PagedKv, LayoutOfOneBlock) {  // [block_size][layers][key, value][row]
  PagedKv kv = small_pool();
  const std::vector<BlockId> table{3, 1};
  kv.begin_step({{table, 0, 4}});
  for (int64_t position = 0; position < 4; ++position) {
    for (int64_t layer = 0; layer < 2; ++layer) {
      const auto base = float(100 * position + 10 * layer);
      std::ranges::fill(kv.key(layer, 0, position), base + 1);
      std::ranges::fill(kv.value(layer, 0, position), base + 2);
    }
  }
  const auto block = kv.block(1);  // positions 2 and 3
  ASSERT_EQ(block.size(), 24U);
  const float expected[] = {201, 202, 211, 212, 301, 302, 311, 312};
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(block[i], expected[i / 3]) << i;
  EXPECT_EQ(kv.block(3)[0], 1);
}

TEST(PagedKv, IsPoisonAtFirst) {
  PagedKv kv = small_pool();
  for (BlockId id = 0; id < 4; ++id) EXPECT_TRUE(all_nan(kv.block(id)));
}

// A block with computed tokens keeps them: its owner's, or of a prefix hit. One behind them is new.
TEST(PagedKv, ANewOwnerFindsPoison) {
  PagedKv kv = small_pool();
  const std::vector<BlockId> first{1, 2}, second{1, 3}, third{2};
  kv.begin_step({{first, 0, 3}});
  for (BlockId id = 1; id < 4; ++id) std::ranges::fill(kv.block(id), float(id));
  kv.begin_step({{first, 3, 1}, {second, 2, 2}});
  EXPECT_EQ(kv.block(1)[0], 1);  // shared
  EXPECT_EQ(kv.block(2)[0], 2);  // half full
  EXPECT_TRUE(all_nan(kv.block(3)));
  kv.begin_step({{third, 0, 1}});
  EXPECT_TRUE(all_nan(kv.block(2)));
}

TEST(PagedKvDeathTest, PositionsOfTheSequenceAlone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // OpenMP has started threads
  PagedKv kv = small_pool();
  const std::vector<BlockId> table{1, 2};
  kv.begin_step({{table, 1, 2}});
  EXPECT_DEATH(kv.key(0, 0, 3), "a position of the sequence");
  EXPECT_DEATH(kv.key(0, 1, 0), "a sequence of the step");
  EXPECT_DEATH(kv.value(2, 0, 0), "a layer of the model");
  EXPECT_DEATH(kv.begin_step({{table, 3, 2}}), "a place for every token");
}

}  // namespace
}  // namespace loratory::sim
