// A group of tp_ranks and its leader, step by step [3.19] [4.18].
#include "reference/parallel/rank_group.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/reference/parallel/test_tensors.hpp"

namespace loratory::reference {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Two tp_ranks, one column layer [4, 2], two slots, an adapter of rank 2.
struct Example {
  std::shared_ptr<const MasterAdapter> adapter() const {
    MasterAdapter master;
    master.layers = {{LoraPair{a.view(), b.view(), 2}}};
    return std::make_shared<const MasterAdapter>(std::move(master));
  }
  void load(uint64_t uid) {
    group.submit({.kind = CommandKind::load, .uid = uid, .adapter = adapter()});
  }
  void copy(uint64_t uid, int32_t slot) {
    group.submit({.kind = CommandKind::copy, .uid = uid, .slot = slot});
  }
  void evict(int32_t slot) { group.submit({.kind = CommandKind::evict, .slot = slot}); }
  void unregister(uint64_t uid) { group.submit({.kind = CommandKind::unregister, .uid = uid}); }

  Tensor a = counting({2, 2}), b = counting({4, 2});
  RankGroup group{{column_shards({.tp_size = 2, .max_lora_rank = 2}, 2, 4)}, 2, Dtype::f32};
};

// [4.18] Visible when the last tp_rank has published it, and not before.
TEST(RankGroup, ALoadIsVisibleWhenEveryTpRankHasIt) {
  Example e;
  e.load(7);
  EXPECT_FALSE(e.group.idle());
  e.group.work(1);
  EXPECT_FALSE(e.group.has_work(1)) << "waits for tp_rank 0";
  EXPECT_EQ(e.group.tp_rank(1).staged.count(7), 1);
  e.group.work(0);
  e.group.work(0);
  EXPECT_EQ(e.group.tp_rank(0).registry.count(7), 1);
  EXPECT_FALSE(e.group.is_visible(7));
  e.group.work(1);
  EXPECT_TRUE(e.group.is_visible(7));
  EXPECT_TRUE(e.group.idle());
  EXPECT_TRUE(e.group.tp_rank(0).staged.empty());
}

// [4.17] [4.18] One tp_rank fails: all roll back, and the uid can be loaded later.
TEST(RankGroup, OneFailureRollsAllBack) {
  Example e;
  e.load(7);
  e.group.work(0);
  e.group.work(1, /*fails=*/true);
  e.group.finish();
  EXPECT_THAT(e.group.outcomes(), ElementsAre(Outcome::failed));
  EXPECT_FALSE(e.group.is_visible(7));
  for (const int64_t p : {0, 1}) {
    EXPECT_TRUE(e.group.tp_rank(p).registry.empty());
    EXPECT_TRUE(e.group.tp_rank(p).staged.empty());
  }
  e.load(7);
  e.group.finish();
  EXPECT_TRUE(e.group.is_visible(7));
}

// [4.18] A file that does not fit is refused by the tp_ranks themselves.
TEST(RankGroup, AnAdapterThatDoesNotFitFails) {
  Example e;
  e.b = counting({3, 2});
  e.load(7);
  e.group.finish();
  MasterAdapter no_layers;
  e.group.submit({.kind = CommandKind::load,
                  .uid = 8,
                  .adapter = std::make_shared<const MasterAdapter>(no_layers)});
  e.group.finish();
  EXPECT_THAT(e.group.outcomes(), ElementsAre(Outcome::failed, Outcome::failed));
}

// [3.19] Slots and generations are the leader's on every tp_rank, after failed copies too.
TEST(RankGroup, CopiesAndEvictionsKeepGenerationsEqual) {
  Example e;
  e.load(7);
  e.copy(7, 1);
  e.group.finish();
  EXPECT_THAT(e.group.slots(), ElementsAre(SlotState{0, 0}, SlotState{7, 1}));
  EXPECT_THAT(values(e.group.tp_rank(1).buffers[0].slices[0].b),
              ElementsAre(0, 0, 0, 0, 4, 5, 6, 7));
  e.evict(1);
  e.copy(7, 0);
  e.group.work(1);
  e.group.work(0);
  e.group.work(0, /*fails=*/true);
  e.group.finish();
  EXPECT_THAT(e.group.slots(), ElementsAre(SlotState{0, 2}, SlotState{0, 2}));
  for (const int64_t p : {0, 1}) {
    EXPECT_EQ(e.group.tp_rank(p).slots, e.group.slots());
    EXPECT_THAT(e.group.tp_rank(p).buffers[0].slices[0].expand_ranks, ElementsAre(0, 0));
  }
  EXPECT_EQ(e.group.outcomes().back(), Outcome::failed);
}

// [3.19] The leader forgets before the first tp_rank does: nobody uses what is going away.
TEST(RankGroup, TheLeaderForgetsFirst) {
  Example e;
  e.load(7);
  e.copy(7, 0);
  e.group.finish();
  e.unregister(7);
  EXPECT_FALSE(e.group.is_visible(7));
  EXPECT_EQ(e.group.slots()[0].uid, 0);
  EXPECT_EQ(e.group.tp_rank(0).slots[0].uid, 7);
  e.group.finish();
  for (const int64_t p : {0, 1}) {
    EXPECT_TRUE(e.group.tp_rank(p).registry.empty());
    EXPECT_EQ(e.group.tp_rank(p).slots, e.group.slots());
  }
}

TEST(RankGroup, TheLeaderRefusesWithoutAsking) {
  Example e;
  e.copy(7, 0);
  e.evict(0);
  e.unregister(7);
  EXPECT_TRUE(e.group.idle());
  e.load(7);
  e.load(7);
  e.load(8);
  e.copy(7, 0);
  e.copy(7, 1);
  e.copy(8, 0);
  e.group.finish();
  using enum Outcome;
  EXPECT_THAT(e.group.outcomes(),
              ElementsAre(refused, refused, refused, done, refused, done, done, refused, refused));
}

TEST(RankGroup, ErrorsOfTheCaller) {
  Example e;
  EXPECT_THAT(error_of([&] { e.copy(7, 2); }), HasSubstr("slot: 2 is outside [0, 2)"));
  EXPECT_THAT(error_of([&] { e.evict(-1); }), HasSubstr("slot"));
  EXPECT_THAT(error_of([&] { e.load(0); }), HasSubstr("uid"));
  EXPECT_THAT(error_of([&] { e.group.submit({.kind = CommandKind::load, .uid = 1}); }),
              HasSubstr("adapter"));
}

}  // namespace
}  // namespace loratory::reference
