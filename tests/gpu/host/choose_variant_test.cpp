// The rules. What is chosen depends on nothing that a captured graph would not keep.
#include "gpu/plan/lora_variant.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#include "gpu/plan/variant_table.hpp"

namespace loratory::gpu {
namespace {

LaunchShape shape(LoraOp op, int64_t num_tokens, int64_t max_rank) {
  return {.op = op, .num_tokens = num_tokens, .num_in = 4096, .max_rank = max_rank};
}
LoraVariant shrink(int64_t num_tokens, int64_t max_rank) {
  return choose_variant(shape(LoraOp::shrink, num_tokens, max_rank));
}
LoraVariant linear(int64_t num_tokens, int64_t max_rank) {
  return choose_variant(shape(LoraOp::linear, num_tokens, max_rank));
}
LoraVariant linear_without_workspace(int64_t num_tokens, int64_t max_rank) {
  LaunchShape s = shape(LoraOp::linear, num_tokens, max_rank);
  s.has_workspace = false;
  return choose_variant(s);
}
LoraVariant in_two_launches(LoraVariant variant) {
  variant.launches = 2;
  return variant;
}

/// If one field were another.
LaunchShape changed(LaunchShape s, auto LaunchShape::*field, auto value) {
  s.*field = value;
  return s;
}
LoraVariant chosen_with(const LaunchShape& s, auto LaunchShape::*field, auto value) {
  return choose_variant(changed(s, field, value));
}

/// Aligned shapes of an operation on both sides of every size that a rule looks at.
void for_all_shapes(LoraOp op, const std::function<void(LaunchShape)>& test) {
  for (const int64_t num_tokens : {1,   8,   9,   23,  24,   32,   33,   64,   65,   128, 129,
                                   256, 257, 512, 513, 1920, 1921, 2048, 2049, 4096, 8192}) {
    for (const int64_t max_rank : {1, 16, 17, 32, 33, 64, 65, 512}) {
      for (const int64_t num_in : {64, 8192, 8193}) {
        for (const int64_t num_slices : {1, 2, 3}) {
          LaunchShape s = shape(op, num_tokens, max_rank);
          s.num_in = num_in;
          s.num_slices = num_slices;
          s.num_columns = num_slices == 2 ? 24576 : 4096 * num_slices;
          s.num_rank_blocks = (num_slices * ((max_rank + 15) / 16) + 3) / 4;
          for (const int64_t num_slots : {1, 16, 2000}) {
            s.num_slots = num_slots;
            test(s);
          }
        }
      }
    }
  }
}

// --- linear -----------------------------------------------------------------------------------

// Without a workspace there is no other way. With one, only few tokens of a small rank.
TEST(ChooseVariant, LinearTakesOneLaunchForFewTokensOfSmallRank) {
  EXPECT_EQ(linear(8, 16).launches, 1);
  EXPECT_EQ(linear(9, 16).launches, 2);
  EXPECT_EQ(linear(8, 17).launches, 2);
  EXPECT_EQ(linear(8, 16), (LoraVariant{.cluster = 8, .stages = 2}));
  for_all_shapes(LoraOp::linear, [](LaunchShape s) {
    s.has_workspace = false;
    EXPECT_EQ(choose_variant(s).launches, 1) << s.num_tokens << " tokens, rank " << s.max_rank;
    EXPECT_FALSE(choose_variant(s).is_wide());
  });
}

// gate|up of four adapters, but not of one.
TEST(ChooseVariant, LinearTakesTwoLaunchesForManyColumns) {
  LaunchShape s = shape(LoraOp::linear, 4, 16);
  s.num_columns = 24576;
  EXPECT_EQ(chosen_with(s, &LaunchShape::num_slots, 1).launches, 1);
  EXPECT_EQ(chosen_with(s, &LaunchShape::num_slots, 4).launches, 2);
  s.num_slots = 4;
  EXPECT_EQ(chosen_with(s, &LaunchShape::num_columns, 22500).launches, 1);
  EXPECT_EQ(chosen_with(s, &LaunchShape::num_columns, 22501).launches, 2);
  s.has_workspace = false;
  EXPECT_EQ(choose_variant(s).launches, 1) << "no other way";
}

// A layer with memory for the sums of splits is behind a product of its x.
TEST(ChooseVariant, LinearOfFewAdaptersTakesTwoLaunchesBehindAProduct) {
  LaunchShape s = shape(LoraOp::linear, 8, 16);
  s.num_split_units = 1;
  EXPECT_EQ(chosen_with(s, &LaunchShape::num_slots, 1).launches, 2);
  EXPECT_EQ(chosen_with(s, &LaunchShape::num_slots, 4).launches, 2);
  EXPECT_EQ(chosen_with(s, &LaunchShape::num_slots, 5).launches, 1);
  s.num_slots = 1;
  EXPECT_EQ(chosen_with(s, &LaunchShape::num_split_units, 0).launches, 1);
}

TEST(ChooseVariant, OneLaunchByRankAndTokens) {
  EXPECT_EQ(linear_without_workspace(64, 16), (LoraVariant{.cluster = 8, .stages = 2}));
  EXPECT_EQ(linear_without_workspace(65, 16), (LoraVariant{.cluster = 2, .stages = 3}));
  EXPECT_EQ(linear_without_workspace(65, 17),
            (LoraVariant{.rank_tiles = 2, .cluster = 8, .stages = 2}));
  EXPECT_EQ(linear_without_workspace(1, 17),
            (LoraVariant{.rank_tiles = 2, .cluster = 8, .stages = 2}));
}

// The first of two launches has the variant of the shrink alone, but for gate and up: SwiGLU's
// expand, which may follow that one, is another.
TEST(ChooseVariant, TwoLaunchesBeginWithTheShrink) {
  int num_in_two = 0;
  for_all_shapes(LoraOp::linear, [&](LaunchShape s) {
    const LoraVariant chosen = choose_variant(s);
    if (chosen.launches == 1 || is_wide_pair(s)) return;
    ++num_in_two;
    s.op = LoraOp::shrink;
    EXPECT_EQ(chosen, in_two_launches(choose_variant(s)))
        << s.num_tokens << " tokens, rank " << s.max_rank;
  });
  EXPECT_GT(num_in_two, 0);
}

// --- shrink -----------------------------------------------------------------------------------

/// Of few adapters, and where each token may have its own.
LoraVariant shrink_of(int64_t num_tokens, int64_t max_rank, int64_t num_slots,
                      int64_t num_slices = 1) {
  LaunchShape s = shape(LoraOp::shrink, num_tokens, max_rank);
  s.num_slots = num_slots, s.num_slices = num_slices;
  s.num_rank_blocks = (num_slices * ((max_rank + 15) / 16) + 3) / 4;
  return choose_variant(s);
}

TEST(ChooseVariant, ShrinkOfSmallRankByTokens) {
  EXPECT_EQ(shrink(32, 16), (LoraVariant{.cluster = 8, .stages = 2}));
  EXPECT_EQ(shrink(256, 16), (LoraVariant{.cluster = 8, .stages = 2}));
  EXPECT_TRUE(shrink(257, 16).is_wide());
  EXPECT_EQ(shrink(32, 17).rank_tiles, 2);
}

// Fewer CTAs of a cluster, the more segments there are and the more adapters there may be.
TEST(ChooseVariant, ShrinkOfSmallRankBySlots) {
  EXPECT_EQ(shrink_of(32, 16, 32), (LoraVariant{.cluster = 8, .stages = 2}));
  EXPECT_EQ(shrink_of(64, 16, 16), (LoraVariant{.cluster = 8, .stages = 2}));
  EXPECT_EQ(shrink_of(64, 16, 17), (LoraVariant{.cluster = 4, .stages = 2}));
  EXPECT_EQ(shrink_of(65, 16, 17), (LoraVariant{.cluster = 2, .stages = 2}));
  EXPECT_EQ(shrink_of(256, 16, 64), (LoraVariant{.cluster = 8, .stages = 2}));
  EXPECT_EQ(shrink_of(257, 16, 64), (LoraVariant{.cluster = 2, .stages = 2}));
  EXPECT_EQ(shrink_of(64, 16, 16, 3), (LoraVariant{.cluster = 8, .stages = 2}));
  EXPECT_EQ(shrink_of(65, 16, 16, 3), (LoraVariant{.cluster = 4, .stages = 2}));
  EXPECT_EQ(shrink_of(64, 16, 64, 3), (LoraVariant{.cluster = 2, .stages = 2}));
}

// Of two slices, up to 32 work items, if their expand leaves clusters of 8 room; of three, always
// smaller clusters.
TEST(ChooseVariant, ShrinkOfSmallRankBySlices) {
  EXPECT_EQ(shrink_of(1, 16, 1), (LoraVariant{.cluster = 8, .stages = 2}));
  EXPECT_EQ(shrink_of(16, 16, 16, 2), (LoraVariant{.cluster = 8, .stages = 2}));
  EXPECT_EQ(shrink_of(17, 16, 17, 2), (LoraVariant{.cluster = 4, .stages = 2}));
  EXPECT_EQ(shrink_of(32, 16, 12, 2), (LoraVariant{.cluster = 8, .stages = 2}));
  EXPECT_EQ(shrink_of(32, 16, 13, 2), (LoraVariant{.cluster = 4, .stages = 2}));
  EXPECT_EQ(shrink_of(1, 16, 1, 3), (LoraVariant{.cluster = 4, .stages = 2}));
  LaunchShape s = shape(LoraOp::linear, 9, 16);
  s.num_slots = 8, s.num_slices = 2;
  s.num_columns = 22528;  // nine segments: 396 CTAs of 512 columns
  EXPECT_EQ(choose_variant(s).cluster, 8);
  s.num_columns = 22529;
  EXPECT_EQ(choose_variant(s).cluster, 4);
  EXPECT_EQ(chosen_with(s, &LaunchShape::op, LoraOp::shrink).cluster, 8);
}

// o of a small rank and 16 adapters, behind its product.
TEST(ChooseVariant, ShrinkOfSmallRankBehindAProduct) {
  LaunchShape s = shape(LoraOp::shrink, 16, 16);
  s.num_slots = 16, s.num_split_units = 1;
  EXPECT_EQ(choose_variant(s), (LoraVariant{.cluster = 2, .stages = 2}));
  const auto with = [&](auto field, auto value) { return chosen_with(s, field, value); };
  const LoraVariant cluster{.cluster = 8, .stages = 2};
  EXPECT_EQ(with(&LaunchShape::num_split_units, 0), cluster);
  EXPECT_EQ(with(&LaunchShape::num_slots, 15), cluster);
  EXPECT_EQ(with(&LaunchShape::num_slices, 2), cluster);
  EXPECT_EQ(with(&LaunchShape::has_experts, true), cluster);
  EXPECT_NE(with(&LaunchShape::num_in, 8193).cluster, 2);
  EXPECT_NE(with(&LaunchShape::max_rank, 17).cluster, 2);
  EXPECT_NE(with(&LaunchShape::num_tokens, 33).cluster, 2);
}

// Up to 32 tokens of two rank blocks. From 46 work items of 32 ranks on, clusters of 8 do not fit
// in one wave; smaller ones lose where a segment has more than two tokens.
TEST(ChooseVariant, ShrinkOfTwoBlocksByAdapters) {
  EXPECT_EQ(shrink_of(11, 64, 11, 2), (LoraVariant{.rank_tiles = 4, .cluster = 8}));
  EXPECT_EQ(shrink_of(12, 64, 12, 2), (LoraVariant{.rank_tiles = 2, .cluster = 4}));
  EXPECT_EQ(shrink_of(12, 128, 12), (LoraVariant{.rank_tiles = 2, .cluster = 4}));
  EXPECT_EQ(shrink_of(32, 64, 2000, 2), (LoraVariant{.rank_tiles = 2, .cluster = 4}));
  EXPECT_EQ(shrink_of(32, 64, 13, 2), (LoraVariant{.rank_tiles = 2, .cluster = 4}));
  EXPECT_EQ(shrink_of(32, 64, 12, 2), (LoraVariant{.rank_tiles = 4, .cluster = 8}));
}

constexpr LoraVariant kBlocksBy8{.rank_tiles = 4, .cluster = 8};
constexpr LoraVariant kHalvesBy8{.rank_tiles = 2, .cluster = 8};
constexpr LoraVariant kHalvesBy4{.rank_tiles = 2, .cluster = 4};
constexpr LoraVariant kHalvesBy2{.rank_tiles = 2, .cluster = 2};

// Up to 32 tokens of several slices: by work items of 32 ranks. Segments are as many as there can
// be.
TEST(ChooseVariant, ShrinkOfSlicesByWorkItems) {
  EXPECT_EQ(shrink_of(8, 64, 1, 3), kHalvesBy8);    // 6
  EXPECT_EQ(shrink_of(2, 64, 2, 3), kBlocksBy8);    // 12
  EXPECT_EQ(shrink_of(8, 64, 7, 3), kBlocksBy8);    // 42
  EXPECT_EQ(shrink_of(8, 64, 8, 3), kHalvesBy4);    // 48
  EXPECT_EQ(shrink_of(30, 64, 30, 3), kHalvesBy4);  // 180
  EXPECT_EQ(shrink_of(31, 64, 31, 3), kHalvesBy2);  // 186
  EXPECT_EQ(shrink_of(8, 256, 1, 3), kBlocksBy8);   // 24
  EXPECT_EQ(shrink_of(2, 256, 2, 3), kHalvesBy4);   // 48
  EXPECT_EQ(shrink_of(32, 256, 4, 3), kHalvesBy4);  // 168
  EXPECT_EQ(shrink_of(8, 256, 8, 3), kHalvesBy2);   // 192
}

// Of one slice only where each adapter has a token or two, but for one or two adapters.
TEST(ChooseVariant, ShrinkOfOneSliceByWorkItems) {
  EXPECT_EQ(shrink_of(8, 128, 1), kHalvesBy8);    // 4
  EXPECT_EQ(shrink_of(9, 128, 2), kHalvesBy8);    // 8
  EXPECT_EQ(shrink_of(3, 128, 3), kBlocksBy8);    // 12
  EXPECT_EQ(shrink_of(8, 256, 8), kHalvesBy4);    // 64
  EXPECT_EQ(shrink_of(32, 256, 8), kBlocksBy8);   // 88
  EXPECT_EQ(shrink_of(32, 256, 32), kHalvesBy2);  // 256
}

// q|k|v of a small rank behind its product, and experts, as before.
TEST(ChooseVariant, ShrinkOfSlicesWhereSmallerItemsWereNotMeasured) {
  LaunchShape s = shape(LoraOp::shrink, 8, 64);
  s.num_slots = 8, s.num_slices = 3, s.num_rank_blocks = 3;
  EXPECT_EQ(choose_variant(s), kHalvesBy4);
  EXPECT_EQ(chosen_with(s, &LaunchShape::num_split_units, int64_t{1}), kBlocksBy8);
  s.max_rank = 65, s.num_rank_blocks = 4, s.num_split_units = 1;
  EXPECT_EQ(choose_variant(s), kHalvesBy4);
  EXPECT_EQ(chosen_with(s, &LaunchShape::has_experts, true), kBlocksBy8);
}

// A linear of gate and up halves its rank blocks, up to 30 million numbers of B.
TEST(ChooseVariant, GateAndUpOfLargeRankByNumbersOfB) {
  LaunchShape s = shape(LoraOp::linear, 8, 128);
  s.num_slots = 8, s.num_slices = 2, s.num_columns = 28672, s.num_rank_blocks = 4;
  EXPECT_TRUE(halves_rank_blocks_of_pair(s));
  EXPECT_EQ(choose_variant(s), in_two_launches(kHalvesBy8));
  EXPECT_EQ(choose_expand_variant(s, 1), (LoraVariant{.rank_tiles = 4, .stages = 2, .warps = 4}));
  const auto with = [&](auto field, auto value) {
    return halves_rank_blocks_of_pair(changed(s, field, value));
  };
  EXPECT_FALSE(with(&LaunchShape::op, LoraOp::shrink)) << "SwiGLU follows";
  EXPECT_FALSE(with(&LaunchShape::num_columns, 29297)) << "30,000,128";
  EXPECT_FALSE(with(&LaunchShape::num_columns, 16383)) << "no gate and up";
  EXPECT_FALSE(with(&LaunchShape::max_rank, 64));
  EXPECT_FALSE(with(&LaunchShape::num_slices, 3));
  EXPECT_FALSE(with(&LaunchShape::num_in, 8193));
  EXPECT_FALSE(with(&LaunchShape::has_experts, true));
  EXPECT_FALSE(with(&LaunchShape::num_tokens, 33));
}

TEST(ChooseVariant, ShrinkOfLargeRankByTokensAndSlots) {
  EXPECT_EQ(shrink(32, 64), (LoraVariant{.rank_tiles = 2, .cluster = 8}));
  EXPECT_EQ(shrink_of(33, 64, 8), (LoraVariant{.rank_tiles = 4, .cluster = 8}));
  EXPECT_EQ(shrink_of(33, 64, 9), (LoraVariant{.rank_tiles = 2, .cluster = 4}));
  EXPECT_EQ(shrink_of(33, 17, 9), (LoraVariant{.rank_tiles = 2, .cluster = 4}));
  EXPECT_EQ(shrink_of(128, 64, 32), (LoraVariant{.rank_tiles = 4, .cluster = 8}));
  EXPECT_EQ(shrink_of(129, 64, 32), (LoraVariant{.rank_tiles = 2, .cluster = 4}));
  EXPECT_EQ(shrink_of(128, 33, 32), (LoraVariant{.rank_tiles = 4, .cluster = 8}));
  EXPECT_EQ(shrink_of(128, 32, 32), (LoraVariant{.rank_tiles = 2, .cluster = 8, .stages = 2}));
  EXPECT_EQ(shrink_of(64, 65, 16), (LoraVariant{.rank_tiles = 4, .cluster = 8}));
  EXPECT_EQ(shrink_of(65, 65, 16), (LoraVariant{.rank_tiles = 2, .cluster = 4}));
  EXPECT_EQ(shrink_of(128, 64, 128), (LoraVariant{.rank_tiles = 2, .cluster = 4}));
  EXPECT_EQ(shrink_of(129, 64, 128), (LoraVariant{.rank_tiles = 2, .cluster = 2}));
  EXPECT_EQ(shrink_of(64, 65, 64), (LoraVariant{.rank_tiles = 2, .cluster = 4}));
  EXPECT_EQ(shrink_of(65, 65, 64), (LoraVariant{.rank_tiles = 2, .cluster = 2}));
  EXPECT_EQ(shrink_of(512, 64, 64), (LoraVariant{.rank_tiles = 2, .cluster = 2}));
}

constexpr LoraVariant kStripsOf32{.rank_tiles = 2, .token_tiles = 4, .cluster = 8};
constexpr LoraVariant kLongStripsOf32{.rank_tiles = 2, .token_tiles = 4, .cluster = 8, .stages = 2};
constexpr LoraVariant kLongStripsOf16Ranks{.token_tiles = 4, .cluster = 8, .stages = 2};
constexpr LoraVariant kWideOf32{.rank_tiles = 4, .token_tiles = 4, .cluster = 8, .stages = 4};

// Strips where segments of 32 are full, wide where they are half full; of one slice of a small rank
// nothing is gained.
TEST(ChooseVariant, ShrinkOfFewAdaptersTakes32Tokens) {
  EXPECT_FALSE(shrink_of(64, 64, 2).is_wide());
  EXPECT_EQ(shrink_of(65, 64, 2), kStripsOf32);
  EXPECT_EQ(shrink_of(128, 17, 4), kStripsOf32);
  EXPECT_EQ(shrink_of(127, 17, 4), kWideOf32);
  EXPECT_EQ(shrink_of(128, 17, 8), kWideOf32);
  EXPECT_FALSE(shrink_of(127, 17, 8).is_wide());
  EXPECT_EQ(shrink_of(129, 64, 4), kWideOf32);
  EXPECT_EQ(shrink_of(256, 64, 8), kWideOf32);
  EXPECT_FALSE(shrink_of(255, 64, 8).is_wide());
  EXPECT_FALSE(shrink_of(128, 16, 4).is_wide());
  EXPECT_EQ(shrink_of(128, 16, 4, 2), kWideOf32);
  EXPECT_FALSE(shrink_of(127, 16, 4, 2).is_wide());
}

// Of packed layers, half a segment suffices up to 64 tokens.
TEST(ChooseVariant, ShrinkOfPackedLayersTakes32TokensBefore) {
  EXPECT_EQ(shrink_of(16, 64, 1, 2), kStripsOf32);
  EXPECT_FALSE(shrink_of(15, 64, 1, 2).is_wide());
  EXPECT_FALSE(shrink_of(31, 64, 2, 2).is_wide());
  EXPECT_EQ(shrink_of(64, 64, 4, 3), kStripsOf32);
  EXPECT_FALSE(shrink_of(64, 64, 5, 3).is_wide());
  EXPECT_FALSE(shrink_of(32, 16, 1, 3).is_wide());
}

// Items of 32 ranks, 30 clusters at once.
TEST(ChooseVariant, StripsOf32TokensFitInOneWave) {
  LaunchShape s = shape(LoraOp::shrink, 128, 64);
  s.num_slots = 4, s.num_rank_blocks = 3;
  EXPECT_EQ(choose_variant(s), kStripsOf32);
  s.num_rank_blocks = 4;
  EXPECT_EQ(choose_variant(s), kWideOf32);
  s.num_tokens = 32, s.num_slots = 1, s.num_slices = 2, s.num_rank_blocks = 15;
  EXPECT_EQ(choose_variant(s), kStripsOf32);
  s.num_rank_blocks = 16;
  EXPECT_FALSE(choose_variant(s).is_wide());
  s.num_slots = 2, s.num_rank_blocks = 7;  // a segment each
  EXPECT_EQ(choose_variant(s), kStripsOf32);
  s.num_rank_blocks = 8;
  EXPECT_FALSE(choose_variant(s).is_wide());
}

// q, k and v of one adapter beside a product that leaves 18 SMs idle: one segment of 32 tokens
// where there may be two, six blocks of 32 ranks, eight CTAs each.
TEST(ChooseVariant, ShrinkOfFewTokensFindsRoomOnIdleSms) {
  LaunchShape s = shape(LoraOp::shrink, 32, 64);
  s.num_slices = 3, s.num_slots = 2, s.num_rank_blocks = 3, s.num_columns = 6144;
  s.idle_sms = 18, s.num_split_units = 384;
  const LoraVariant cluster{.rank_tiles = 2, .token_tiles = 4, .cluster = 8};
  LoraVariant one_by_one = cluster;
  one_by_one.through_memory = true;
  EXPECT_EQ(choose_variant(s), one_by_one);
  const auto with = [&](auto field, auto value) { return chosen_with(s, field, value); };
  EXPECT_EQ(with(&LaunchShape::idle_sms, 17), cluster);
  EXPECT_EQ(with(&LaunchShape::num_split_units, 383), cluster);
  EXPECT_FALSE(with(&LaunchShape::num_in, 8193).through_memory);
  EXPECT_FALSE(with(&LaunchShape::num_tokens, 33).through_memory);
  EXPECT_FALSE(with(&LaunchShape::num_slots, 32).through_memory);
  EXPECT_FALSE(with(&LaunchShape::has_experts, true).through_memory);
  s.num_columns = 28672, s.idle_sms = 5;
  EXPECT_EQ(choose_variant(s), one_by_one);
  EXPECT_EQ(with(&LaunchShape::idle_sms, 4), cluster);
}

// o of an adapter for each token: 16 clusters of eight.
TEST(ChooseVariant, ShrinkOfEightTokensNeedsTwiceAsManyIdleSms) {
  LaunchShape s = shape(LoraOp::shrink, 8, 64);
  s.num_slots = 8, s.num_columns = 4096, s.idle_sms = 48, s.num_split_units = 32;
  EXPECT_TRUE(choose_variant(s).through_memory);
  EXPECT_FALSE(chosen_with(s, &LaunchShape::idle_sms, 47).through_memory);
  s.num_tokens = 9, s.num_split_units = 36, s.idle_sms = 24;
  EXPECT_TRUE(choose_variant(s).through_memory);
  EXPECT_FALSE(chosen_with(s, &LaunchShape::idle_sms, 23).through_memory);
}

// q, k and v of one adapter beside a product that leaves 36 SMs idle.
TEST(ChooseVariant, SmallShrinkOfSeveralSlicesAndEightTokensStaysInClusters) {
  LaunchShape s = shape(LoraOp::shrink, 8, 16);
  s.num_slices = 3, s.num_slots = 1, s.num_rank_blocks = 3, s.num_columns = 6144;
  s.idle_sms = 36, s.num_split_units = 384;
  EXPECT_EQ(choose_variant(s), (LoraVariant{.cluster = 4, .stages = 2}));
  const auto is_through_memory = [&](auto field, auto value) {
    return chosen_with(s, field, value).through_memory;
  };
  EXPECT_FALSE(is_through_memory(&LaunchShape::max_rank, 64));
  EXPECT_TRUE(is_through_memory(&LaunchShape::max_rank, 65));
  EXPECT_TRUE(is_through_memory(&LaunchShape::num_tokens, 9));
  EXPECT_TRUE(is_through_memory(&LaunchShape::num_slices, 1));
  EXPECT_TRUE(is_through_memory(&LaunchShape::num_columns, 16384));
}

TEST(ChooseVariant, AProductLeavesSmsIdleForLongRowsOfFewTokensAndAdapters) {
  LaunchShape s = shape(LoraOp::linear, 8, 64);
  s.num_in = 12288, s.num_slots = 1, s.num_split_units = 1;
  EXPECT_TRUE(gains_by_idle_sms(s));
  const auto gains_with = [&](auto field, auto value) {
    LaunchShape other = s;
    other.*field = value;
    return gains_by_idle_sms(other);
  };
  EXPECT_FALSE(gains_with(&LaunchShape::num_split_units, 0));
  EXPECT_FALSE(gains_with(&LaunchShape::max_rank, 65));
  EXPECT_FALSE(gains_with(&LaunchShape::num_in, 14336));
  EXPECT_TRUE(gains_with(&LaunchShape::num_slots, 2));
  EXPECT_FALSE(gains_with(&LaunchShape::num_slots, 3));
  s.max_rank = 16, s.num_in = 14336;
  EXPECT_TRUE(gains_by_idle_sms(s));
  EXPECT_FALSE(gains_with(&LaunchShape::num_in, 14337));
  s.max_rank = 128, s.num_slots = 8;
  EXPECT_TRUE(gains_with(&LaunchShape::num_tokens, 9));
  EXPECT_TRUE(gains_with(&LaunchShape::num_in, 8192));
}

// Gate and up of a long product that leaves four SMs idle: three segments of 64 tokens where there
// may be four adapters, two slices.
TEST(ChooseVariant, ShrinkOfFewAdaptersFitsBesideALongProduct) {
  const LoraVariant beside{.rank_tiles = 4, .token_tiles = 8, .cluster = 1, .stages = 4};
  LaunchShape s = shape(LoraOp::shrink, 128, 64);
  s.num_slices = 2, s.num_slots = 4, s.num_rank_blocks = 2, s.num_columns = 16384, s.idle_sms = 3;
  EXPECT_EQ(choose_variant(s), beside);
  const auto with = [&](auto field, auto value) { return chosen_with(s, field, value); };
  EXPECT_EQ(with(&LaunchShape::num_slots, 1), beside);
  EXPECT_NE(with(&LaunchShape::num_slots, 5), beside);
  EXPECT_NE(with(&LaunchShape::num_tokens, 127), beside);  // for four adapters
  EXPECT_NE(with(&LaunchShape::num_columns, 16383), beside);
  EXPECT_NE(with(&LaunchShape::idle_sms, 2), beside);
  EXPECT_NE(with(&LaunchShape::num_rank_blocks, 3), beside);
  EXPECT_NE(with(&LaunchShape::has_wgmma, false), beside);
  s.num_slots = 1;
  EXPECT_EQ(with(&LaunchShape::num_tokens, 65), beside);
  EXPECT_NE(with(&LaunchShape::num_tokens, 64), beside);
  s.num_slots = 32, s.num_rank_blocks = 1, s.max_rank = 16;  // each token may have its own
  EXPECT_NE(choose_variant(s), beside);
}

TEST(ChooseVariant, ShrinkOfLargeRankByBlocksAndWidth) {
  LaunchShape s = shape(LoraOp::shrink, 32, 64);
  s.num_slots = 3, s.num_rank_blocks = 2;
  EXPECT_EQ(choose_variant(s), (LoraVariant{.rank_tiles = 4, .cluster = 8}));
  s.num_in = 8192;
  EXPECT_EQ(choose_variant(s), (LoraVariant{.rank_tiles = 4, .cluster = 8}));
  s.num_in = 8193;
  EXPECT_EQ(choose_variant(s), (LoraVariant{.rank_tiles = 2, .cluster = 8, .stages = 2}));
}

// However many adapters there are, up to 128 tokens; few fill at least half of a segment of 32.
TEST(ChooseVariant, ShrinkOfLongRowsHasTwoStages) {
  const LoraVariant by_8{.rank_tiles = 2, .cluster = 8, .stages = 2};
  for (const int64_t tokens : {1, 15, 16, 24, 25, 32, 33, 63, 64, 65, 127, 128}) {
    for (const int64_t num_slots : {1, 4, 8, 128}) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, " << num_slots << " slots");
      const bool are_few = tokens >= 16 * num_slots;
      LaunchShape s = shape(LoraOp::shrink, tokens, 17);
      s.num_slots = num_slots;
      s.num_in = 8193;
      EXPECT_EQ(choose_variant(s), are_few ? kLongStripsOf32 : by_8);
      s.max_rank = 16;
      EXPECT_EQ(choose_variant(s) == kLongStripsOf16Ranks, are_few && tokens > 24);
      EXPECT_NE(choose_variant(s), by_8);
    }
  }
  LaunchShape s = shape(LoraOp::shrink, 129, 17);
  s.num_in = 8193;
  EXPECT_NE(choose_variant(s), by_8);
}

TEST(ChooseVariant, WideByTokens) {
  EXPECT_EQ(shrink(256, 64),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 4, .cluster = 8, .stages = 4}));
  EXPECT_EQ(shrink(257, 64),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 4}));
  EXPECT_EQ(
      linear(257, 16),
      (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 4, .launches = 2}));
  LaunchShape s = shape(LoraOp::shrink, 8192, 512);
  s.has_wgmma = false;
  EXPECT_EQ(choose_variant(s),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 4, .cluster = 8, .stages = 4}));
}

// Where there are slots for an adapter for each eight tokens, up to 512 are narrow; up to 1,024
// with one for each four.
TEST(ChooseVariant, NarrowWhereStepsMayHaveManyAdapters) {
  for (const LoraOp op : {LoraOp::linear, LoraOp::shrink, LoraOp::expand}) {
    LaunchShape s = shape(op, 512, 64);
    s.num_slots = 64;
    EXPECT_FALSE(choose_variant(s).is_wide());
    s.num_slots = 63;
    EXPECT_TRUE(choose_variant(s).is_wide());
    s.num_slots = 256, s.num_tokens = 1024;
    EXPECT_FALSE(choose_variant(s).is_wide());
    s.num_slots = 255;
    EXPECT_TRUE(choose_variant(s).is_wide());
    s.num_slots = 2000, s.num_tokens = 1025;
    EXPECT_TRUE(choose_variant(s).is_wide());
  }
  LaunchShape s = shape(LoraOp::expand, 65, 64);
  s.num_slots = 8;
  EXPECT_TRUE(choose_variant(s).is_wide());
  s.num_slots = 9;
  EXPECT_FALSE(choose_variant(s).is_wide());
}

/// So many work tiles of 64 ranks and 64 tokens.
LoraVariant shrink_of_tiles(int64_t tiles, int64_t num_rank_blocks) {
  LaunchShape s = shape(LoraOp::shrink, tiles / num_rank_blocks * 64, 64 * num_rank_blocks);
  s.num_rank_blocks = num_rank_blocks;
  return choose_variant(s);
}

// The largest cluster, then the deepest pipeline, for which all work tiles fit in one wave.
TEST(ChooseVariant, WideByWorkTiles) {
  EXPECT_EQ(shrink(30 * 64, 64),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 4}));
  EXPECT_EQ(shrink(30 * 64 + 1, 64),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(45, 1),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(46, 1),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 4, .stages = 4}));
  EXPECT_EQ(shrink_of_tiles(60, 1),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 4, .stages = 4}));
  EXPECT_EQ(shrink_of_tiles(61, 1),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 4, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(92, 1),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 4, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(93, 1),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 2, .stages = 4}));
  EXPECT_EQ(shrink_of_tiles(132, 1),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 2, .stages = 4}));
  EXPECT_EQ(shrink_of_tiles(133, 1),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 2, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(9999, 1),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 2, .stages = 3}));
  EXPECT_EQ(
      linear(9999, 16),
      (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 2, .stages = 3, .launches = 2}));
  EXPECT_EQ(shrink_of_tiles(30, 2),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 4}));
  EXPECT_EQ(shrink_of_tiles(45, 3),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(198, 3),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 2, .stages = 3}));
}

// Each adapter's last segment counts half, up to as many as there are full ones.
TEST(ChooseVariant, WideCountsSegmentsOfAdapters) {
  const auto variant = [](int64_t num_slots) { return shrink_of(44 * 64, 64, num_slots); };
  EXPECT_EQ(variant(3),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 3}));
  EXPECT_EQ(variant(4),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 4, .stages = 4}));
  EXPECT_EQ(variant(32),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 4, .stages = 4}));
  EXPECT_EQ(variant(34),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 4, .stages = 3}));
  EXPECT_EQ(variant(2000),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 4, .stages = 3}));
}

// Tiles of 128 ranks where they fit in one wave: x is read half as often.
// Eight splits of each segment fill two thirds of their waves of 264 CTAs.
TEST(ChooseVariant, ShrinksTheNextLayerWhereSplitsFillWaves) {
  const auto pays = [](int64_t num_segments, int64_t max_rank = 64) {
    LaunchShape shape;
    shape.num_tokens = 64 * num_segments;
    shape.num_slots = 1;
    shape.num_slices = 2;
    shape.max_rank = max_rank;
    return pays_to_shrink_next(shape);
  };
  EXPECT_FALSE(pays(21));
  EXPECT_TRUE(pays(22));
  EXPECT_TRUE(pays(33));
  EXPECT_FALSE(pays(34));
  EXPECT_FALSE(pays(43));
  EXPECT_TRUE(pays(44));
  EXPECT_TRUE(pays(128));
  EXPECT_FALSE(pays(33, 32)) << "no wgmma";
  EXPECT_FALSE(pays(8)) << "short prefill";
}

TEST(ChooseVariant, WideOfSeveralBlocks) {
  EXPECT_EQ(shrink_of_tiles(60, 2),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 4, .stages = 4}));
  for (const int tiles : {62, 66}) {
    EXPECT_EQ(shrink_of_tiles(tiles, 2),
              (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 2, .stages = 4}));
  }
  EXPECT_EQ(shrink_of_tiles(68, 2),
            (LoraVariant{.rank_tiles = 8, .token_tiles = 8, .cluster = 4, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(62, 1),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 4, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(63, 3),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 4, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(120, 2),
            (LoraVariant{.rank_tiles = 8, .token_tiles = 8, .cluster = 4, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(122, 2),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 2, .stages = 4}));
  EXPECT_EQ(shrink_of_tiles(200, 2),
            (LoraVariant{.rank_tiles = 8, .token_tiles = 8, .cluster = 2, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(264, 2),
            (LoraVariant{.rank_tiles = 8, .token_tiles = 8, .cluster = 2, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(266, 2), (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(201, 3), (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .stages = 4}));
  EXPECT_EQ(shrink_of_tiles(264, 3), (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .stages = 4}));
  EXPECT_EQ(shrink_of_tiles(265, 5), (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(396, 2), (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(398, 2), (LoraVariant{.rank_tiles = 8, .token_tiles = 8, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(528, 2), (LoraVariant{.rank_tiles = 8, .token_tiles = 8, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(530, 2),
            (LoraVariant{.rank_tiles = 8, .token_tiles = 8, .cluster = 2, .stages = 3}));
  EXPECT_EQ(shrink_of_tiles(399, 3),
            (LoraVariant{.rank_tiles = 8, .token_tiles = 8, .cluster = 2, .stages = 3}));
}

// --- expand -----------------------------------------------------------------------------------

// Every CTA of an expand has h from memory: nothing is gained by a cluster.
TEST(ChooseVariant, ExpandByTokens) {
  LaunchShape s = shape(LoraOp::expand, 64, 16);
  EXPECT_EQ(choose_variant(s), (LoraVariant{}));
  s.num_tokens = 65;
  EXPECT_EQ(choose_variant(s), (LoraVariant{.token_tiles = 4, .stages = 2}));
  s.aligned = false;
  EXPECT_EQ(choose_variant(s), (LoraVariant{.stages = 3, .aligned = false}));
  s.num_tokens = 2048;
  s.aligned = true;
  EXPECT_EQ(choose_variant(s), (LoraVariant{.token_tiles = 4, .stages = 2}));
  s.num_tokens = 2049;
  EXPECT_EQ(choose_variant(s), (LoraVariant{.token_tiles = 8, .stages = 2}));
  s.has_wgmma = false;
  EXPECT_EQ(choose_variant(s), (LoraVariant{.token_tiles = 4, .stages = 2}));
}

// Of the second launch the tokens are those of the first.
TEST(ChooseExpandVariant, IsOfSoManyTokensAtOnce) {
  for_all_shapes(LoraOp::linear, [](const LaunchShape& s) {
    for (const int token_tiles : {1, 4, 8}) {
      const LoraVariant v = choose_expand_variant(s, token_tiles);
      const bool is_narrow_h = s.num_slices * ((s.max_rank + 63) / 64) <= 2;
      const int64_t most_by_32 = s.max_rank <= 32 ? 2048 : is_narrow_h ? 256 : 512;
      const bool makes_64 = token_tiles == 8 && s.num_tokens > most_by_32;
      EXPECT_EQ(v.token_tiles, token_tiles == 8 && !makes_64 ? 4 : token_tiles);
      EXPECT_EQ(v.needs_wgmma(), makes_64 && s.max_rank > 32);
      EXPECT_EQ(v.cluster, 1);
      EXPECT_EQ(v.launches, 1);
    }
  });
}

TEST(ChooseExpandVariant, ByRank) {
  EXPECT_EQ(choose_expand_variant(shape(LoraOp::expand, 8, 16), 1).rank_tiles, 1);
  EXPECT_EQ(choose_expand_variant(shape(LoraOp::expand, 8, 17), 1).rank_tiles, 2);
  EXPECT_EQ(choose_expand_variant(shape(LoraOp::expand, 999, 16), 4),
            (LoraVariant{.token_tiles = 4, .stages = 2}));
  EXPECT_EQ(choose_expand_variant(shape(LoraOp::expand, 999, 17), 4),
            (LoraVariant{.rank_tiles = 2, .token_tiles = 4, .stages = 2}));
  EXPECT_EQ(choose_expand_variant(shape(LoraOp::expand, 9999, 16), 8),
            (LoraVariant{.token_tiles = 8, .stages = 2}));
  EXPECT_EQ(choose_expand_variant(shape(LoraOp::expand, 9999, 32), 8),
            (LoraVariant{.token_tiles = 8, .stages = 2}));
  EXPECT_EQ(choose_expand_variant(shape(LoraOp::expand, 9999, 33), 8),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .stages = 3}));
  EXPECT_EQ(choose_expand_variant(shape(LoraOp::expand, 9999, 33), 4),
            (LoraVariant{.rank_tiles = 2, .token_tiles = 4, .stages = 2}));
  EXPECT_EQ(choose_expand_variant(shape(LoraOp::expand, 9999, 32), 4),
            (LoraVariant{.rank_tiles = 2, .token_tiles = 4, .stages = 2}));
}

// On wgmma beyond 512 tokens, of one or two panels of 64 ranks beyond 256.
TEST(ChooseExpandVariant, OfWgmma) {
  LaunchShape s = shape(LoraOp::expand, 512, 65);
  s.num_slices = 2;
  EXPECT_EQ(choose_expand_variant(s, 8),
            (LoraVariant{.rank_tiles = 2, .token_tiles = 4, .stages = 2}));
  s.num_tokens = 513;
  EXPECT_EQ(choose_expand_variant(s, 8),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .stages = 3}));
  s.num_slices = 1;
  s.num_tokens = 257;
  EXPECT_EQ(choose_expand_variant(s, 8),
            (LoraVariant{.rank_tiles = 4, .token_tiles = 8, .stages = 3}));
  s.num_tokens = 256;
  EXPECT_EQ(choose_expand_variant(s, 8),
            (LoraVariant{.rank_tiles = 2, .token_tiles = 4, .stages = 2}));
  s.num_tokens = 513, s.max_rank = 32;
  EXPECT_EQ(choose_expand_variant(s, 8),
            (LoraVariant{.rank_tiles = 2, .token_tiles = 4, .stages = 2}));
  s.max_rank = 64, s.has_wgmma = false;
  EXPECT_EQ(choose_expand_variant(s, 8),
            (LoraVariant{.rank_tiles = 2, .token_tiles = 4, .stages = 2}));
}

// In middling prefill of one panel or three it is the slower; of eight fp32 y leaves it no room.
TEST(ChooseExpandVariant, StagesOfWgmma) {
  const auto stages = [](int64_t num_tokens, int64_t max_rank, int64_t num_slices) {
    LaunchShape s = shape(LoraOp::expand, num_tokens, max_rank);
    s.num_slices = num_slices;
    return choose_expand_variant(s, 8).stages;
  };
  EXPECT_EQ(stages(512, 64, 1), 3);
  EXPECT_EQ(stages(513, 64, 1), 2);
  EXPECT_EQ(stages(4096, 64, 1), 2);
  EXPECT_EQ(stages(4097, 64, 1), 3);
  EXPECT_EQ(stages(4096, 64, 2), 3);
  EXPECT_EQ(stages(4096, 128, 1), 3);
  EXPECT_EQ(stages(4096, 64, 3), 2);
  EXPECT_EQ(stages(4097, 64, 3), 3);
  EXPECT_EQ(stages(4096, 64, 4), 3);
  EXPECT_EQ(stages(4097, 64, 7), 3);
  EXPECT_EQ(stages(4097, 64, 8), 2);
  EXPECT_EQ(stages(4097, 512, 1), 2);
}

// One stage holds all ranks where they fit. Two stages are for few tokens.
TEST(ChooseExpandVariant, StagesByRankAndTokens) {
  const auto variant = [](int64_t num_tokens, int64_t max_rank) {
    return choose_expand_variant(shape(LoraOp::expand, num_tokens, max_rank), 1);
  };
  EXPECT_EQ(variant(8, 16), (LoraVariant{}));
  EXPECT_EQ(variant(256, 16), (LoraVariant{}));
  EXPECT_EQ(variant(32, 32), (LoraVariant{.rank_tiles = 2}));
  EXPECT_EQ(variant(256, 32), (LoraVariant{.rank_tiles = 2}));
  EXPECT_EQ(variant(32, 33), (LoraVariant{.rank_tiles = 2, .stages = 2}));
  EXPECT_EQ(variant(32, 64), (LoraVariant{.rank_tiles = 2, .stages = 2}));
  EXPECT_EQ(variant(32, 65), (LoraVariant{.rank_tiles = 4, .stages = 2}));
  EXPECT_EQ(variant(33, 33), (LoraVariant{.rank_tiles = 4}));
  EXPECT_EQ(variant(33, 512), (LoraVariant{.rank_tiles = 4}));
}

// Of 32 tokens at a time: one stage for 33 to 64 ranks of several slices, up to 128 tokens.
TEST(ChooseExpandVariant, OneStageOfAllRanks) {
  const auto variant = [](int64_t num_tokens, int64_t max_rank, int64_t num_slices) {
    LaunchShape s = shape(LoraOp::expand, num_tokens, max_rank);
    s.num_slices = num_slices;
    return choose_expand_variant(s, 4);
  };
  const LoraVariant one{.rank_tiles = 4, .token_tiles = 4};
  const LoraVariant two{.rank_tiles = 2, .token_tiles = 4, .stages = 2};
  EXPECT_EQ(variant(128, 64, 2), one);
  EXPECT_EQ(variant(65, 33, 3), one);
  EXPECT_EQ(variant(129, 64, 2), two);
  EXPECT_EQ(variant(128, 64, 1), two);
  EXPECT_EQ(variant(128, 32, 2), two);
  EXPECT_EQ(variant(128, 65, 2), two);
}

// Up to 32 tokens of 33 to 64 ranks: one stage where segments of a token or two have many columns.
TEST(ChooseExpandVariant, StagesByColumns) {
  const auto variant = [](int64_t num_tokens, int64_t num_slots, int64_t max_rank) {
    LaunchShape s = shape(LoraOp::expand, num_tokens, max_rank);
    s.num_slots = num_slots, s.num_slices = 2, s.num_columns = 24576;
    return choose_expand_variant(s, 1);
  };
  EXPECT_EQ(variant(11, 11, 64), (LoraVariant{.rank_tiles = 2, .stages = 2}));
  EXPECT_EQ(variant(12, 12, 64), (LoraVariant{.rank_tiles = 4}));
  EXPECT_EQ(variant(32, 12, 64), (LoraVariant{.rank_tiles = 2, .stages = 2}));
  EXPECT_EQ(variant(32, 13, 33), (LoraVariant{.rank_tiles = 4}));
  EXPECT_EQ(variant(32, 32, 65), (LoraVariant{.rank_tiles = 4, .stages = 2}));
  EXPECT_EQ(variant(32, 32, 32), (LoraVariant{.rank_tiles = 2}));
}

// Of 33 to 64 ranks by the columns of all segments; of long rows, experts and gate with up never.
TEST(ChooseExpandVariant, FourWarpsByColumns) {
  const auto warps_of = [](const LaunchShape& s) { return choose_expand_variant(s, 1).warps; };
  LaunchShape s = shape(LoraOp::linear, 32, 64);
  s.num_slots = 20, s.num_columns = 4096;  // 24 segments
  EXPECT_EQ(warps_of(s), 4);
  s.num_slots = 19;
  EXPECT_EQ(warps_of(s), 8);
  s.num_slots = 32, s.num_columns = 6250;
  EXPECT_EQ(warps_of(s), 4);
  s.num_columns = 6251;
  EXPECT_EQ(warps_of(s), 8);
  s.num_columns = 4096;
  const auto with = [&](auto field, auto value) { return warps_of(changed(s, field, value)); };
  EXPECT_EQ(warps_of(s), 4);
  EXPECT_EQ(with(&LaunchShape::op, LoraOp::gated_expand), 8);
  EXPECT_EQ(with(&LaunchShape::has_experts, true), 8);
  EXPECT_EQ(with(&LaunchShape::num_in, 8193), 8);
  EXPECT_EQ(with(&LaunchShape::max_rank, 32), 8);
  EXPECT_EQ(with(&LaunchShape::num_tokens, 33), 8);
}

// Of more than 64 ranks for many adapters, or for four with a token each.
TEST(ChooseExpandVariant, FourWarpsOfLargeRanks) {
  const auto warps = [](int64_t num_tokens, int64_t num_slots, int64_t num_columns = 4096,
                        int64_t max_rank = 128) {
    LaunchShape s = shape(LoraOp::expand, num_tokens, max_rank);
    s.num_slots = num_slots, s.num_columns = num_columns;
    return choose_expand_variant(s, 1).warps;
  };
  EXPECT_EQ(warps(3, 3), 8);
  EXPECT_EQ(warps(4, 4), 4);
  EXPECT_EQ(warps(8, 8), 4);
  EXPECT_EQ(warps(8, 4), 8);
  EXPECT_EQ(warps(16, 7), 8);
  EXPECT_EQ(warps(16, 8), 4);
  EXPECT_EQ(warps(32, 5), 8);
  EXPECT_EQ(warps(32, 6), 4);
  EXPECT_EQ(warps(32, 32, 5859), 4);
  EXPECT_EQ(warps(32, 32, 5860), 8) << "more than 24 million numbers of B";
  EXPECT_EQ(warps(4, 4, 4096, 65), 4);
  LaunchShape s = shape(LoraOp::linear, 16, 128);
  s.num_slots = 1, s.num_slices = 3, s.num_columns = 6144;
  EXPECT_EQ(choose_expand_variant(s, 1).warps, 8);
  s.num_slots = 2;  // three segments
  EXPECT_EQ(choose_expand_variant(s, 1).warps, 4);
  s.num_slices = 2;
  EXPECT_EQ(choose_expand_variant(s, 1).warps, 4);
  s.num_columns = 16384, s.op = LoraOp::expand;
  EXPECT_EQ(choose_expand_variant(s, 1).warps, 8) << "gate and up";
}

// Of more than 128 ranks: all of B ahead, as long as CTAs are few.
TEST(ChooseExpandVariant, StagesOfLargeRanks) {
  const auto variant = [](int64_t num_tokens, int64_t num_slots, int64_t num_slices,
                          int64_t num_columns, int64_t max_rank = 256) {
    LaunchShape s = shape(LoraOp::linear, num_tokens, max_rank);
    s.num_slots = num_slots, s.num_slices = num_slices, s.num_columns = num_columns;
    return choose_expand_variant(s, 1);
  };
  const LoraVariant four{.rank_tiles = 4, .stages = 4, .warps = 4};
  const LoraVariant three{.rank_tiles = 4, .stages = 3, .warps = 4};
  const LoraVariant two{.rank_tiles = 4, .stages = 2, .warps = 4};
  EXPECT_EQ(variant(8, 1, 3, 6144), four);
  EXPECT_EQ(variant(2, 2, 3, 6144), three) << "six parts";
  EXPECT_EQ(variant(4, 4, 1, 4096), four);
  EXPECT_EQ(variant(4, 4, 1, 4097), three);
  EXPECT_EQ(variant(5, 5, 1, 3000), three);
  EXPECT_EQ(variant(32, 4, 3, 7021), three) << "seven segments";
  EXPECT_EQ(variant(32, 4, 3, 7022), two) << "49,154 columns";
  EXPECT_EQ(variant(7, 7, 1, 4096), three);
  EXPECT_EQ(variant(8, 8, 1, 4096), two) << "a token each";
  EXPECT_EQ(variant(8, 1, 3, 6144, 129), four);
  EXPECT_EQ(variant(8, 1, 3, 6144, 128).stages, 2);
  EXPECT_EQ(variant(8, 1, 2, 16384).stages, 2) << "gate and up";
}

// Of a small rank: gate and up of 9 to 32 adapters with few tokens.
TEST(ChooseExpandVariant, GateAndUpOfASmallRank) {
  LaunchShape s = shape(LoraOp::linear, 9, 16);
  s.num_slots = 9, s.num_slices = 2, s.num_columns = 16384;
  const LoraVariant four{.stages = 2, .warps = 4};
  EXPECT_EQ(choose_expand_variant(s, 1), four);
  const auto with = [&](auto field, auto value) {
    return choose_expand_variant(changed(s, field, value), 1);
  };
  EXPECT_EQ(with(&LaunchShape::num_slots, 8), (LoraVariant{}));
  EXPECT_EQ(with(&LaunchShape::num_columns, 16383), (LoraVariant{}));
  EXPECT_EQ(with(&LaunchShape::op, LoraOp::gated_expand), (LoraVariant{}));
  EXPECT_EQ(with(&LaunchShape::has_experts, true), (LoraVariant{}));
  EXPECT_EQ(with(&LaunchShape::max_rank, 17), (LoraVariant{.rank_tiles = 2}));
  s.num_slots = s.num_tokens = 32;
  EXPECT_EQ(choose_expand_variant(s, 1), four);
  s.num_tokens = 33;
  EXPECT_EQ(choose_expand_variant(s, 1), (LoraVariant{}));
}

// --- the table --------------------------------------------------------------------------------

// The rules take every GPU, alignment, workspace and experts; `seen` gets what they choose, as it
// is launched.
void choose(LaunchShape s, std::map<LoraOp, std::vector<LoraVariant>>& seen) {
  LoraVariant v = choose_variant(s);
  // Router weights meet h on its way from one launch to the other.
  const bool is_weighted = s.op == LoraOp::linear && s.has_router_weights;
  ASSERT_TRUE(!is_weighted || v.launches == 2) << describe(s);
  if (s.op == LoraOp::expand || v.launches == 2) {
    seen[LoraOp::expand].push_back(choose_expand_variant(s, v.token_tiles));
  }
  const bool is_shrink = s.op == LoraOp::linear && v.launches == 2;
  v.launches = 1;
  seen[is_shrink ? LoraOp::shrink : s.op].push_back(v);
}

// What the rules choose has a kernel, and every kernel is chosen for some shape: the table holds
// all that the rules need and nothing else, so that nothing is left for a tuner to choose.
TEST(ChooseVariant, TheTableIsWhatTheRulesChoose) {
  std::map<LoraOp, std::vector<LoraVariant>> seen;
  for (const LoraOp op : {LoraOp::linear, LoraOp::shrink, LoraOp::expand}) {
    for_all_shapes(op, [&](LaunchShape s) {
      for (int allows = 0; allows < 128; ++allows) {
        s.has_workspace = (allows & 1) == 0, s.aligned = (allows & 2) == 0;
        s.has_clusters = (allows & 4) == 0, s.has_wgmma = (allows & 12) == 0;
        s.has_experts = (allows & 16) != 0, s.has_router_weights = (allows & 48) == 48;
        s.idle_sms = (allows & 64) != 0 ? 132 : 0, s.num_split_units = 1 << 20;
        choose(s, seen);
      }
    });
  }
  for (const auto& [op, chosen] : seen) {
    for (const LoraVariant& v : chosen) ASSERT_TRUE(has_kernel(op, v)) << int(op) << " " << v;
    for (const LoraVariant& v : variants_of(op)) {
      EXPECT_NE(std::ranges::find(chosen, v), chosen.end()) << int(op) << " " << v;
    }
  }
}

// Gate and up, whose ranks are up to 512 together, choose every gated expand and no other.
TEST(ChooseExpandVariant, TheTableHasWhatGateAndUpChoose) {
  std::vector<LoraVariant> chosen;
  for_all_shapes(LoraOp::linear, [&](LaunchShape s) {
    if (s.num_slices != 1 || s.max_rank > 65) return;
    s.num_slices = 2;
    for (const int64_t max_rank : {s.max_rank, int64_t{256}}) {
      s.max_rank = max_rank;
      s.num_rank_blocks = (2 * ((max_rank + 15) / 16) + 3) / 4;
      s.op = LoraOp::shrink;
      const int token_tiles = choose_variant(s).token_tiles;
      s.op = LoraOp::gated_expand;
      chosen.push_back(choose_expand_variant(s, token_tiles));
    }
  });
  for (const LoraVariant& v : chosen) ASSERT_TRUE(has_kernel(LoraOp::gated_expand, v)) << v;
  for (const LoraVariant& v : variants_of(LoraOp::gated_expand)) {
    EXPECT_NE(std::ranges::find(chosen, v), chosen.end()) << v;
  }
}

// --- tensors and GPUs that allow less ---------------------------------------------------------

TEST(ChooseVariant, UnalignedTakesSingleNumbers) {
  for (const LoraOp op : {LoraOp::linear, LoraOp::shrink}) {
    LaunchShape s = shape(op, 4096, 64);
    s.aligned = false;
    EXPECT_EQ(choose_variant(s),
              (LoraVariant{.rank_tiles = 2, .cluster = 8, .stages = 2, .aligned = false}));
  }
  LaunchShape s = shape(LoraOp::linear, 4096, 64);
  s.aligned = false;
  EXPECT_EQ(choose_expand_variant(s, 1), (LoraVariant{.stages = 3, .aligned = false}));
}

// Before sm_90 there are none.
TEST(ChooseVariant, WithoutClusters) {
  for (const LoraOp op : {LoraOp::linear, LoraOp::shrink, LoraOp::expand}) {
    for (const bool aligned : {false, true}) {
      for_all_shapes(op, [&](LaunchShape s) {
        s.aligned = aligned;
        s.has_clusters = s.has_wgmma = false;
        const LoraVariant v = choose_variant(s);
        EXPECT_EQ(v.cluster, 1);
        EXPECT_EQ(v.launches, 1);
        EXPECT_EQ(v.aligned, aligned);
      });
    }
  }
}

// Only sm_90 has it. Without it, segments of 32 tokens replace those of 64; nothing else changes.
TEST(ChooseVariant, WithoutWgmma) {
  int num_others = 0;
  for (const LoraOp op : {LoraOp::linear, LoraOp::shrink, LoraOp::expand}) {
    for_all_shapes(op, [&](LaunchShape s) {
      const LoraVariant with = choose_variant(s);
      s.has_wgmma = false;
      const LoraVariant without = choose_variant(s);
      EXPECT_FALSE(without.needs_wgmma());
      EXPECT_EQ(without.is_wide(), with.is_wide());
      if (with.token_tiles == 8)
        ++num_others;
      else
        EXPECT_EQ(without, with);
    });
  }
  EXPECT_GT(num_others, 0);
}

// --- text -------------------------------------------------------------------------------------

// Every field: a line of a log says which kernel ran.
TEST(Describe, NamesEveryField) {
  EXPECT_EQ(describe(LoraVariant{.rank_tiles = 4, .token_tiles = 8, .stages = 3, .launches = 2}),
            "rank_tiles=4 token_tiles=8 cluster=1 stages=3 aligned=true launches=2 "
            "through_memory=false warps=8");
  EXPECT_EQ(describe(LoraVariant{.cluster = 8, .aligned = false, .warps = 4}),
            "rank_tiles=1 token_tiles=1 cluster=8 stages=1 aligned=false launches=1 "
            "through_memory=false warps=4");
  EXPECT_EQ(describe(shape(LoraOp::shrink, 32, 16)),
            "op=lora_shrink num_tokens=32 num_in=4096 max_rank=16 num_slices=1 num_slots=1 "
            "has_experts=false has_router_weights=false num_rank_blocks=1 num_columns=0 "
            "idle_sms=0 has_workspace=true num_split_units=0 aligned=true has_clusters=true "
            "has_wgmma=true");
}

}  // namespace
}  // namespace loratory::gpu
