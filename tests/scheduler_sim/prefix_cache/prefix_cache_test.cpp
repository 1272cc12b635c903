// Worked examples of docs/scheduler.md, part "Prefix cache".
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <random>
#include <set>

#include "fuzz/support/handed_out.hpp"
#include "scheduler_sim/prefix_cache/block_pool.hpp"
#include "scheduler_sim/scheduler/scheduler.hpp"

namespace loratory::sim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(BlockKeyInterner, BlocksOfTheLongestRequestsAreTheirOwn) {
  constexpr uint32_t kMostBlocks = uint32_t{1} << 31;
  std::set<BlockKey> keys;
  for (const uint64_t request : {0, 1, 2, 3}) {
    for (const uint32_t block : {0u, 1u, 1u << 24, kMostBlocks - 1}) {
      EXPECT_TRUE(keys.insert(BlockKeyInterner::unique(request, block)).second);
    }
  }
}

TEST(BlockKeyInterner, BlockIdsAndTokensNeverMeet) {
  BlockKeyInterner keys;
  const std::vector<int32_t> tokens{5, 6};
  const BlockKey of_tokens = keys.key(kNoKey, 0, tokens);
  for (uint64_t id = 0; id < 10; ++id) EXPECT_NE(keys.key(kNoKey, 0, id), of_tokens);
  EXPECT_EQ(keys.key(kNoKey, 0, tokens), of_tokens);
  EXPECT_NE(keys.key(kNoKey, 1, tokens), of_tokens);
  EXPECT_NE(keys.key(of_tokens, 0, tokens), of_tokens);
}

// Ids come and go in any order, until none is left; a std::set is the judge. Four levels of words.
TEST(LowestFirstSet, AgreesWithASet) {
  for (const uint32_t capacity : {1u, 64u, 65u, 5000u, 300'000u}) {
    std::mt19937 random(capacity);
    LowestFirstSet ids(capacity);
    std::set<uint32_t> judge;
    const auto pop = [&] {
      ASSERT_EQ(ids.pop_lowest(), *judge.begin());
      judge.erase(judge.begin());
      ASSERT_EQ(ids.size(), judge.size());
    };
    for (int round = 0; round < 20; ++round) {
      for (int i = 0; i < 200; ++i) {
        const auto id = uint32_t(random() % capacity);
        if (judge.insert(id).second) ids.insert(id);
        if (random() % 3 == 0) pop();
      }
      while (!judge.empty() && round % 2 == 0) pop();
    }
  }
}

TEST(BlockPool, SuffixIsReusedBeforePrefix) {  // [6.18]
  BlockPool pool(4);
  const std::vector<BlockId> table{pool.allocate(), pool.allocate(), pool.allocate()};
  EXPECT_THAT(table, ElementsAre(1, 2, 3));  // lowest index first
  const std::vector<BlockKey> keys{11, 12};
  pool.publish(1, 11, 0), pool.publish(2, 12, 0);
  pool.release(table, keys, 0);
  EXPECT_THAT(handed_out(pool), ElementsAre(3, 2, 1));  // plain free ones first
  EXPECT_EQ(pool.allocate(), 3U);
  EXPECT_EQ(pool.allocate(), 2U);
  EXPECT_EQ(pool.find(12), kNullBlock);
  EXPECT_EQ(pool.find(11), 1U);
}

// Two sequences compute one prefix; the second also publishes a child of it. When it ends, the
// prefix must outlive the child in the queue although its own copy was never published.
TEST(BlockPool, TwinOfAPrefixStaysBehindItsChild) {  // [6.18] [6.19]
  BlockPool pool(4);
  const std::vector<BlockId> first{pool.allocate()};
  const std::vector<BlockId> second{pool.allocate(), pool.allocate()};
  pool.publish(first[0], 11, 0);
  pool.publish(second[0], 11, 0);
  pool.publish(second[1], 12, 0);
  const std::vector<BlockKey> keys{11, 12};
  pool.release(first, std::span(keys).first(1), 0);
  pool.release(second, keys, 0);
  EXPECT_THAT(handed_out(pool), ElementsAre(second[0], second[1], first[0]));
}

TEST(BlockPool, OwnFullBlockIsPublishedWhenItsTwinIsGone) {
  BlockPool pool(3);
  const std::vector<BlockId> first{pool.allocate()}, second{pool.allocate()};
  const std::vector<BlockKey> keys{11};
  pool.publish(first[0], 11, 0), pool.publish(second[0], 11, 0);
  pool.release(first, keys, 0);
  EXPECT_EQ(pool.allocate(), first[0]);  // reused: 11 is gone
  pool.release(second, keys, 0);
  EXPECT_EQ(pool.find(11), second[0]);
}

TEST(BlockPool, EvictedNamespaceIsGoneAtOnceAndForGood) {  // [6.24]
  BlockPool pool(6);
  const std::vector<BlockId> idle{pool.allocate()}, used{pool.allocate()}, base{pool.allocate()};
  const std::vector<BlockKey> idle_key{21}, used_key{22}, base_key{1};
  pool.publish(idle[0], 21, 7), pool.publish(used[0], 22, 7), pool.publish(base[0], 1, 0);
  pool.release(idle, idle_key, 7), pool.release(base, base_key, 0);
  EXPECT_EQ(pool.evict_namespace(7), 1U);
  EXPECT_EQ(pool.evict_namespace(7), 0U);
  EXPECT_EQ(pool.evict_namespace(0), 0U);
  EXPECT_EQ(pool.evict_namespace(99), 0U);
  EXPECT_EQ(pool.find(21), kNullBlock);
  EXPECT_EQ(pool.find(22), kNullBlock);
  EXPECT_EQ(pool.find(1), base[0]);
  EXPECT_EQ(pool.ref_count(used[0]), 1U);
  pool.release(used, used_key, 7);
  EXPECT_EQ(pool.find(22), kNullBlock);
  EXPECT_THAT(handed_out(pool), ElementsAre(idle[0], used[0], 4, 5, base[0]));
}

// Requests one after the other; says how many prompt tokens each found in the cache.
class OneByOne {
 public:
  OneByOne(uint32_t block_size, uint32_t num_blocks) : scheduler_(config(block_size, num_blocks)) {
    for (int i = 1; i <= 7; ++i) scheduler_.register_adapter(fmt::format("{}", i), 8, 1, false, 0);
  }

  uint32_t hits(int adapter, std::vector<int32_t> prompt, uint32_t max_new = 1) {
    RequestSpec spec;
    spec.adapter = Uid(adapter);
    spec.num_prompt_tokens = uint32_t(prompt.size());
    spec.max_new_tokens = max_new;
    spec.tokens = prompt;
    EXPECT_EQ(scheduler_.submit(spec, 0), SubmitStatus::ok);
    uint32_t num_hits = UINT32_MAX;
    while (scheduler_.num_live() > 0) {
      const StepPlan& plan = scheduler_.plan(0);
      while (!scheduler_.step_can_start()) finish_transfers();
      if (num_hits == UINT32_MAX) num_hits = plan.rows[0].num_computed;
      blocks_in_use = scheduler_.blocks().num_referenced();
      scheduler_.commit({}, 0);
    }
    return num_hits;
  }

  const BlockPool& pool() const { return scheduler_.blocks(); }
  Scheduler& scheduler() { return scheduler_; }
  uint32_t blocks_in_use = 0;

 private:
  static SchedulerConfig config(uint32_t block_size, uint32_t num_blocks) {
    SchedulerConfig c;
    c.block_size = block_size;
    c.num_blocks = num_blocks;
    c.load_mode = LoadMode::blocking;
    return c;
  }
  void finish_transfers() {
    const ResidencyActions now = scheduler_.starts();
    scheduler_.starts().clear();
    for (const LoadStart& load : now.loads) scheduler_.load_done(load.uid, true, 0);
    for (const CopyStart& copy : now.copies) scheduler_.copy_done(copy.uid, 0);
  }
  Scheduler scheduler_;
};

TEST(PrefixCache, OneRequestAfterTheOther) {
  OneByOne engine(2, 6);
  EXPECT_EQ(engine.hits(0, {1, 2, 3, 4, 5}), 0U);
  EXPECT_EQ(engine.blocks_in_use, 3U);
  EXPECT_THAT(handed_out(engine.pool()), ElementsAre(3, 4, 5, 2, 1));  // [3,4] before [1,2]
  EXPECT_EQ(engine.hits(7, {1, 2, 3, 4, 9}), 0U);                      // another namespace
  EXPECT_EQ(engine.hits(0, {1, 2, 3, 4}), 2U);                         // last-token rule
  EXPECT_EQ(engine.hits(0, {1, 2, 3, 4, 5}), 4U);
  EXPECT_EQ(engine.scheduler().evict_lora_namespace(7), 2U);
  EXPECT_EQ(engine.scheduler().evict_lora_namespace(7), 0U);
  EXPECT_EQ(engine.hits(0, {1, 2, 3, 4, 5}), 4U);
  EXPECT_EQ(engine.hits(7, {1, 2, 3, 4, 9}), 0U);
  EXPECT_EQ(engine.hits(7, {1, 2, 3, 4, 9}), 0U);  // and it stays dead
}

// A uid that is given to nobody yet has no namespace, and is as good as any when it is given.
TEST(PrefixCache, EvictingAnUnknownNamespaceDoesNothing) {  // [6.24]
  OneByOne engine(2, 10);
  EXPECT_EQ(engine.scheduler().evict_lora_namespace(8), 0U);
  engine.scheduler().register_adapter("8", 8, 1, false, 0);
  EXPECT_EQ(engine.hits(8, {1, 2, 3}), 0U);
  EXPECT_EQ(engine.hits(8, {1, 2, 3}), 2U);
}

TEST(PrefixCache, LastTokenRule) {  // [6.3]
  for (const uint32_t block_size : {1U, 2U, 4U, 16U}) {
    for (uint32_t n = 1; n <= 40; ++n) {
      OneByOne engine(block_size, 200);
      const std::vector<int32_t> prompt(n, 5);
      engine.hits(0, prompt);
      EXPECT_EQ(engine.hits(0, prompt), (n - 1) / block_size * block_size) << n;
    }
  }
}

TEST(PrefixCache, TheLastSampledTokenHasNoKv) {  // [6.9]
  OneByOne four(4, 20), three(4, 20);
  four.hits(7, {1, 2, 3, 4}, 1);
  EXPECT_EQ(four.scheduler().evict_lora_namespace(7), 1U);
  three.hits(7, {1, 2, 3}, 1);
  EXPECT_EQ(three.scheduler().evict_lora_namespace(7), 0U);
}

}  // namespace
}  // namespace loratory::sim
