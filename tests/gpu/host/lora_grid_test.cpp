// The CTAs of a launch, without a launch.
#include "gpu/plan/lora_grid.hpp"

#include <gtest/gtest.h>

namespace loratory::gpu {
namespace {

/// A layer of one slice on an H200.
KernelParams params(int segments, int items, int rows = 1) {
  KernelParams out;
  out.max_segments = segments;
  out.num_rows = rows;
  out.num_in = 4096;
  out.max_rank = 64;
  out.all_slices_fit = true;
  out.num_items = items;
  out.num_sms = 132;
  return out;
}

constexpr KernelLaunch kExpand{.op = LoraOp::expand, .variant = {.rank_tiles = 2, .stages = 2}};
constexpr KernelLaunch kShrink{.op = LoraOp::shrink, .variant = {.rank_tiles = 2, .cluster = 8}};

TEST(LoraGrid, NoMoreClustersThanFitOrHaveWork) {
  EXPECT_EQ(lora_grid(kShrink, params(9, 2), 45).num_clusters, 18);
  EXPECT_EQ(lora_grid(kShrink, params(32, 2), 45).num_clusters, 45);
  EXPECT_EQ(lora_grid(kShrink, params(9, 2), 45).ctas_of_cluster, 8);
}

// Up to 66 items are halved, and those of more SMs than items as far as there are SMs. 132 CTAs are
// no whole number of clusters, so four more are launched.
TEST(LoraGrid, SpreadCtasAreWholeClusters) {
  const LoraGrid few = lora_grid(kExpand, params(1, 8), 396);
  EXPECT_EQ(few.num_clusters, 16);
  EXPECT_EQ(few.ctas_of_cluster, kSpreadCtas);
  EXPECT_EQ(lora_grid(kExpand, params(1, 66), 396).num_clusters, 136);
  EXPECT_EQ(lora_grid(kExpand, params(1, 97), 396).num_clusters, 136);
  EXPECT_EQ(lora_grid(kExpand, params(1, 100), 396).num_clusters, 132) << "too many to spread";
  EXPECT_EQ(lora_grid(kExpand, params(1, 100), 396).ctas_of_cluster, 1);
}

// 1,536 items on 1,056 CTAs: some would have two, so all have.
TEST(LoraGrid, ExpandsOfASmallRankHaveEqualShares) {
  KernelLaunch launch{.op = LoraOp::expand, .variant = {.stages = 2, .warps = 4}};
  EXPECT_EQ(lora_grid(launch, params(16, 96), 1056).num_clusters, 768);
  EXPECT_EQ(lora_grid(launch, params(11, 96), 1056).num_clusters, 1056);
  EXPECT_EQ(lora_grid(launch, params(23, 96), 1056).num_clusters, 736);
  launch.variant.rank_tiles = 4;
  EXPECT_EQ(lora_grid(launch, params(16, 96), 1056).num_clusters, 1056);
  launch.variant = {.stages = 2};
  EXPECT_EQ(lora_grid(launch, params(16, 96), 1056).num_clusters, 1056);
}

TEST(LoraGrid, OtherWeightsAndGpusDoNotSpreadCtas) {
  KernelLaunch launch = kExpand;
  launch.has_8_bits = true;
  EXPECT_EQ(lora_grid(launch, params(1, 9), 396).ctas_of_cluster, 1);
  EXPECT_EQ(lora_grid(launch, params(1, 9), 396).num_clusters, 18);
  launch = kExpand;
  launch.has_clusters = false;
  EXPECT_EQ(lora_grid(launch, params(1, 9), 396).ctas_of_cluster, 1);
}

TEST(LoraGrid, ClustersOfAShrinkAloneBalanceLoad) {
  KernelLaunch launch = kShrink;
  EXPECT_FALSE(lora_grid(launch, params(8, 2), 45).balances_load);
  launch.order = LaunchOrder::x_is_ready;
  EXPECT_TRUE(lora_grid(launch, params(8, 2), 45).balances_load);
  launch.op = LoraOp::linear;
  EXPECT_FALSE(lora_grid(launch, params(8, 2), 45).balances_load);
  launch.op = LoraOp::shrink;
  launch.variant.through_memory = true;
  EXPECT_FALSE(lora_grid(launch, params(8, 2), 45).balances_load);
  EXPECT_EQ(lora_grid(launch, params(8, 2), 45).ctas_of_cluster, 1);
}

}  // namespace
}  // namespace loratory::gpu
