// Which shrinks ask for more than half of an SM's shared memory, which may share SMs, which expands
// are launched as clusters, and what widens 8-bit weights ahead: known before any launch.
#include "gpu/plan/room_of_sm.hpp"

#include <gtest/gtest.h>

#include <algorithm>

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

constexpr LoraVariant kNarrow{.rank_tiles = 2, .stages = 2};

/// An expand of `num_columns` columns and one slice.
KernelParams expand_of(int rows, int slots, int max_rank = 64, int num_columns = 4096) {
  KernelParams out = launch(int(max_segments(rows, std::min(rows, slots), 8)), 4096, max_rank);
  out.num_rows = rows;
  out.all_slices_fit = true;
  out.num_items = num_columns / 512;
  return out;
}
bool spreads(const KernelParams& p, const LoraVariant& v = kNarrow) {
  return spreads_ctas(LoraOp::expand, v, p, false);
}

// Up to 16 rows of four adapters, and a single row.
TEST(RoomOfSm, ExpandsOfFewAdaptersAreSpread) {
  EXPECT_TRUE(spreads(expand_of(1, 32)));
  EXPECT_TRUE(spreads(expand_of(8, 1)));
  EXPECT_TRUE(spreads(expand_of(16, 4)));
  EXPECT_FALSE(spreads(expand_of(16, 5)));
  EXPECT_FALSE(spreads(expand_of(17, 1)));
  EXPECT_FALSE(spreads(expand_of(4, 4))) << "an adapter of its own for each row";
}

TEST(RoomOfSm, ExpandsAreSpreadUpToThreeQuartersOfTheSms) {
  EXPECT_TRUE(spreads(expand_of(1, 1, 64, 99 * 512)));
  EXPECT_FALSE(spreads(expand_of(1, 1, 64, 100 * 512)));
  EXPECT_TRUE(spreads(expand_of(16, 4, 64, 8192)));
  EXPECT_FALSE(spreads(expand_of(16, 4, 64, 17 * 512)));
}

TEST(RoomOfSm, ExpandsAreSpreadByRank) {
  EXPECT_TRUE(spreads(expand_of(16, 4, 16)));
  EXPECT_FALSE(spreads(expand_of(16, 4, 17)));
  EXPECT_FALSE(spreads(expand_of(16, 4, 32)));
  EXPECT_TRUE(spreads(expand_of(16, 4, 33)));
  EXPECT_FALSE(spreads(expand_of(16, 4, 65)));
}

TEST(RoomOfSm, OtherExpandsAreNotSpread) {
  const KernelParams p = expand_of(16, 4);
  EXPECT_FALSE(spreads_ctas(LoraOp::gated_expand, kNarrow, p, false));
  EXPECT_FALSE(spreads_ctas(LoraOp::shrink, kNarrow, p, false));
  EXPECT_FALSE(spreads_ctas(LoraOp::expand, kNarrow, p, true)) << "8 bits";
  EXPECT_FALSE(spreads(p, {.token_tiles = 4, .stages = 2}));
  EXPECT_FALSE(spreads(p, {.rank_tiles = 2, .stages = 2, .warps = 4}));
  KernelParams unknown = p;
  unknown.max_segments = 0;
  EXPECT_FALSE(spreads(unknown));
  KernelParams experts = p;
  experts.num_experts = 8;
  EXPECT_FALSE(spreads(experts));
}

constexpr LoraVariant kOf32Ranks{.rank_tiles = 2, .cluster = 8};

bool balances(const KernelParams& p, LaunchOrder order = LaunchOrder::overlaps_previous,
              const LoraVariant& v = kOf32Ranks, bool has_8_bits = false) {
  return balances_load(v, p, order, has_8_bits);
}

// 1.9 CTAs for each of 132 SMs are 250.8.
TEST(RoomOfSm, ManyCtasOfAShrinkShareSms) {
  EXPECT_FALSE(balances(launch(31)));
  EXPECT_TRUE(balances(launch(32)));
  KernelParams of_two_blocks = launch(16);
  of_two_blocks.num_items = 2;
  EXPECT_TRUE(balances(of_two_blocks));
  EXPECT_FALSE(balances(launch(0))) << "unknown";
}

constexpr LoraVariant kOf64Ranks{.rank_tiles = 4, .cluster = 8};

/// Rows of `slices` slices of one rank block each, in `segments`, and whether CTAs of 8-bit A share
/// SMs.
bool balances_bytes(int rows, int segments, int slices = 1, const LoraVariant& v = kOf64Ranks,
                    int max_rank = 64) {
  KernelParams p = launch(segments, 4096, max_rank);
  p.num_rows = rows;
  p.num_slices = p.num_items = slices;
  return balances(p, LaunchOrder::overlaps_previous, v, true);
}

// 0.9 to 2.2 CTAs for each of 132 SMs are 118.8 to 290.4; 1.5 are 198.
TEST(RoomOfSm, CtasOf8BitWeightsShareSmsUpToTwoOfAnSm) {
  EXPECT_FALSE(balances_bytes(14, 14));
  EXPECT_TRUE(balances_bytes(15, 15));
  EXPECT_FALSE(balances_bytes(16, 15)) << "two rows of an adapter";
  EXPECT_TRUE(balances_bytes(32, 32));
  EXPECT_FALSE(balances_bytes(33, 33));
  EXPECT_FALSE(balances_bytes(32, 8, 3));
  EXPECT_TRUE(balances_bytes(32, 9, 3));
  EXPECT_TRUE(balances_bytes(32, 12, 3));
  EXPECT_FALSE(balances_bytes(32, 13, 3));
  EXPECT_TRUE(balances_bytes(32, 16, 3, kOf64Ranks, 65)) << "three of an SM";
  EXPECT_FALSE(balances_bytes(32, 17, 3, kOf64Ranks, 65));
  EXPECT_FALSE(balances_bytes(8, 8, 2)) << "gate and up";
  EXPECT_FALSE(balances_bytes(0, 0)) << "unknown";
  constexpr LoraVariant of_16{.cluster = 8, .stages = 2}, of_four{.cluster = 4, .stages = 2};
  EXPECT_FALSE(balances_bytes(16, 16, 1, of_16, 16));
  EXPECT_TRUE(balances_bytes(32, 32, 1, of_four, 16));
}

TEST(RoomOfSm, FewCtasOfAShrinkShareSmsBehindAProductOfX) {
  EXPECT_TRUE(balances(launch(1), LaunchOrder::x_is_ready));
  EXPECT_TRUE(balances(launch(1), LaunchOrder::x_is_ready, kOf32Ranks, true)) << "8 bits";
  EXPECT_FALSE(balances(launch(1), LaunchOrder::after_previous));
}

TEST(RoomOfSm, OtherShrinksDoNotShareSms) {
  const KernelParams many = launch(64);
  const auto with = [&](const LoraVariant& v) {
    return balances(many, LaunchOrder::x_is_ready, v);
  };
  EXPECT_FALSE(with(kByWgmma));
  EXPECT_FALSE(with({.rank_tiles = 2, .token_tiles = 4, .cluster = 8}));
  EXPECT_FALSE(with({.rank_tiles = 2, .cluster = 8, .through_memory = true}));
  KernelParams experts = many;
  experts.num_experts = 8;
  EXPECT_FALSE(balances(experts, LaunchOrder::x_is_ready));
}

bool widens(LoraOp op, const KernelParams& p, const LoraVariant& v = kOf32Ranks,
            LaunchOrder order = LaunchOrder::overlaps_previous) {
  return widens_ahead(op, v, p, order);
}

TEST(RoomOfSm, FewCtasOfFourWarpsLeaveAFourthOneAway) {
  const auto keeps = [](LoraOp op, int warps, int64_t ctas) {
    return keeps_fourth_cta_away(op, {.rank_tiles = 4, .warps = warps}, ctas, 132);
  };
  EXPECT_TRUE(keeps(LoraOp::expand, 4, 33));
  EXPECT_FALSE(keeps(LoraOp::expand, 4, 34));
  EXPECT_FALSE(keeps(LoraOp::expand, 8, 33));
  EXPECT_FALSE(keeps(LoraOp::shrink, 4, 33));
}

TEST(RoomOfSm, ExpandsWidenAllStagesAheadInAQuarterOfSharedMemory) {
  constexpr int kSmBytes = 228 << 10;
  const KernelParams two = launch(2);
  EXPECT_TRUE(widens_all_stages(two, 25, kSmBytes, 100 * kSmBytes));
  EXPECT_TRUE(widens_all_stages(two, 50, kSmBytes / 2, 100 * kSmBytes));
  EXPECT_FALSE(widens_all_stages(two, 50, kSmBytes / 2 + 1, 100 * kSmBytes));
  EXPECT_FALSE(widens_all_stages(two, 26, kSmBytes, 100 * kSmBytes));
}
TEST(RoomOfSm, ExpandsOfOneAdapterWidenAllStagesAheadInMoreOfSharedMemory) {
  constexpr int kSmBytes = 228 << 10;
  EXPECT_TRUE(widens_all_stages(launch(1), 36, kSmBytes, 100 * kSmBytes));
  EXPECT_FALSE(widens_all_stages(launch(1), 37, kSmBytes, 100 * kSmBytes));
}

// 24 clusters of eight CTAs are 1.5 for each of 128 SMs.
TEST(RoomOfSm, ShrinksOfTwoStagesWidenAheadUpToOneAndAHalfCtasOfAnSm) {
  constexpr LoraVariant two_stages{.rank_tiles = 2, .cluster = 8, .stages = 2};
  KernelParams p = launch(24);
  p.num_sms = 128;
  EXPECT_TRUE(widens(LoraOp::shrink, p, two_stages));
  p.num_sms = 127;
  EXPECT_FALSE(widens(LoraOp::shrink, p, two_stages));
}

// Six clusters of eight CTAs are three eighths of 128 SMs.
TEST(RoomOfSm, ShrinksOf32RanksWidenAheadWhereTheyAreFew) {
  KernelParams p = launch(6);
  p.num_sms = 128;
  EXPECT_TRUE(widens(LoraOp::shrink, p));
  p.num_sms = 127;
  EXPECT_FALSE(widens(LoraOp::shrink, p));
}

TEST(RoomOfSm, ShrinksOf64RanksWidenAheadUpToOneCtaOfAnSm) {
  KernelParams p = launch(16, 4096, 128);
  p.num_sms = 128;
  EXPECT_TRUE(widens(LoraOp::shrink, p, kOf64Ranks));
  p.num_sms = 127;
  EXPECT_FALSE(widens(LoraOp::shrink, p, kOf64Ranks));
  p = launch(8);
  p.num_rows = 24;
  EXPECT_FALSE(widens(LoraOp::shrink, p, kOf64Ranks)) << "one rank block of few rows";
  p.num_rows = 25;
  EXPECT_TRUE(widens(LoraOp::shrink, p, kOf64Ranks));
  p = launch(16);
  p.num_rows = 16;
  EXPECT_TRUE(widens(LoraOp::shrink, p, kOf64Ranks)) << "CTAs share SMs";
  EXPECT_TRUE(widens(LoraOp::expand, expand_of(8, 1, 64, 75 * 512), {.rank_tiles = 4}))
      << "150 CTAs of an expand";
}

TEST(RoomOfSm, FewRowsBehindAProductOfXAreNotWidenedAhead) {
  KernelParams p = launch(1);
  p.num_rows = 16;
  EXPECT_TRUE(widens(LoraOp::shrink, p));
  EXPECT_FALSE(widens(LoraOp::shrink, p, kOf32Ranks, LaunchOrder::x_is_ready));
  p.num_rows = 17;
  EXPECT_TRUE(widens(LoraOp::shrink, p, kOf32Ranks, LaunchOrder::x_is_ready));
}

}  // namespace
}  // namespace loratory::gpu
