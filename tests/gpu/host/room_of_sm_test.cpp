// Which shrinks ask for more than half of an SM's shared memory: known before any launch.
#include "gpu/plan/room_of_sm.hpp"

#include <gtest/gtest.h>

#include "gpu/layout/segments.hpp"

namespace loratory::gpu {
namespace {

constexpr LoraVariant kByWgmma{.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 4};

/// One rank block of an H200's launch.
KernelParams launch(int segments, int num_in = 4096, int max_rank = 64) {
  KernelParams out;
  out.max_segments = segments;
  out.num_in = num_in;
  out.max_rank = max_rank;
  out.num_sms = 132;
  return out;
}

TEST(RoomOfSm, ClustersOfThreeFifthsOfTheSmsAreKeptApart) {
  EXPECT_TRUE(keeps_ctas_apart(kByWgmma, launch(1)));
  EXPECT_TRUE(keeps_ctas_apart(kByWgmma, launch(9)));
  EXPECT_FALSE(keeps_ctas_apart(kByWgmma, launch(10)));
}

// One adapter of 512 tokens, or of 256 by segments of 32: the bound is one above what it needs.
TEST(RoomOfSm, OneAdapterOfShortPrefillIsKeptApart) {
  EXPECT_TRUE(keeps_ctas_apart(kByWgmma, launch(int(max_segments(512, 1, 64)))));
  const LoraVariant by_32{.rank_tiles = 4, .token_tiles = 4, .cluster = 8, .stages = 4};
  EXPECT_TRUE(keeps_ctas_apart(by_32, launch(int(max_segments(256, 1, 32)))));
  EXPECT_FALSE(keeps_ctas_apart(kByWgmma, launch(int(max_segments(512, 2, 64)))));
}

// Of down_proj, four adapters are.
TEST(RoomOfSm, FourAdaptersOfLongRowsAreKeptApart) {
  EXPECT_TRUE(keeps_ctas_apart(kByWgmma, launch(int(max_segments(512, 4, 64)), 14336)));
  EXPECT_FALSE(keeps_ctas_apart(kByWgmma, launch(int(max_segments(512, 8, 64)), 14336)));
}

TEST(RoomOfSm, LongRowsAreKeptApartUpToThreeQuarters) {
  EXPECT_FALSE(keeps_ctas_apart(kByWgmma, launch(10, 8192)));
  EXPECT_TRUE(keeps_ctas_apart(kByWgmma, launch(12, 8224)));
  EXPECT_FALSE(keeps_ctas_apart(kByWgmma, launch(13, 8224)));
}

TEST(RoomOfSm, EveryRankBlockCounts) {
  KernelParams p = launch(4, 4096, 128);
  p.num_items = 2;
  EXPECT_TRUE(keeps_ctas_apart(kByWgmma, p));
  p.num_items = 3;
  EXPECT_FALSE(keeps_ctas_apart(kByWgmma, p));
}

TEST(RoomOfSm, FewRanksAreNot) {
  KernelParams p = launch(8, 4096, 32);
  EXPECT_FALSE(keeps_ctas_apart(kByWgmma, p));
  p.num_slices = 2;
  EXPECT_TRUE(keeps_ctas_apart(kByWgmma, p));
}

// Those are to start beside the previous kernel's CTAs.
TEST(RoomOfSm, NarrowShrinksAndSingleCtasAreNot) {
  EXPECT_FALSE(keeps_ctas_apart({.rank_tiles = 4, .cluster = 8}, launch(8)));
  EXPECT_FALSE(keeps_ctas_apart({.rank_tiles = 2, .token_tiles = 4, .cluster = 8}, launch(8)));
  EXPECT_FALSE(
      keeps_ctas_apart({.rank_tiles = 4, .token_tiles = 8, .cluster = 1, .stages = 4}, launch(8)));
}

// A graph may not say how many segments there are.
TEST(RoomOfSm, AnUnknownNumberOfSegmentsIsNot) {
  EXPECT_FALSE(keeps_ctas_apart(kByWgmma, launch(0)));
}

}  // namespace
}  // namespace loratory::gpu
