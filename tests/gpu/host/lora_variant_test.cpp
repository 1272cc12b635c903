// The dispatch table. What is chosen depends on nothing that a captured graph would not keep.
#include "gpu/kernels/lora_variant.hpp"

#include <gtest/gtest.h>

namespace loratory::gpu {
namespace {

LoraVariant linear(int64_t num_tokens, int64_t num_in, int64_t max_rank) {
  return choose_variant({.num_tokens = num_tokens, .num_in = num_in, .max_rank = max_rank});
}
LoraVariant shrink(int64_t num_tokens, int64_t max_rank) {
  return choose_variant(
      {.stage = LoraStage::shrink, .num_tokens = num_tokens, .num_in = 4096, .max_rank = max_rank});
}

TEST(ChooseVariant, LinearByTokensAndShape) {
  EXPECT_EQ(linear(1, 4096, 16), (LoraVariant{1, 1, 8, 2, true}));
  EXPECT_EQ(linear(64, 4096, 16), (LoraVariant{1, 1, 8, 2, true}));
  EXPECT_EQ(linear(65, 4096, 16), (LoraVariant{1, 1, 2, 3, true}));
  EXPECT_EQ(linear(32, 4096, 64), (LoraVariant{2, 1, 8, 2, true}));
  EXPECT_EQ(linear(32, 8192, 17), (LoraVariant{2, 1, 8, 2, true}));
  EXPECT_EQ(linear(32, 12288, 64), (LoraVariant{4, 1, 8, 2, true}));
  EXPECT_EQ(linear(256, 4096, 64), (LoraVariant{2, 1, 8, 2, true}));
  EXPECT_EQ(linear(257, 4096, 64), (LoraVariant{4, 4, 8, 4, true}));
}

TEST(ChooseVariant, ShrinkByTokensAndRank) {
  EXPECT_EQ(shrink(256, 16), (LoraVariant{1, 1, 8, 2, true}));
  EXPECT_EQ(shrink(1, 17), (LoraVariant{2, 1, 8, 2, true}));
  EXPECT_EQ(shrink(257, 16), (LoraVariant{4, 4, 8, 4, true}));
}

// Three stages where the clusters that then fit save a round: 48 units in 62 places, not in 45.
TEST(ChooseVariant, WideByRounds) {
  LaunchShape shape{.num_tokens = 512, .num_in = 4096, .max_rank = 64, .num_slices = 3};
  EXPECT_EQ(choose_variant(shape), (LoraVariant{4, 4, 8, 3, true}));
  shape.one_block = true;
  EXPECT_EQ(choose_variant(shape), (LoraVariant{4, 4, 8, 4, true}));
  shape.num_tokens = 1504;  // 47 segments
  EXPECT_EQ(choose_variant(shape), (LoraVariant{4, 4, 8, 3, true}));
  shape.num_tokens = 2048;
  EXPECT_EQ(choose_variant(shape), (LoraVariant{4, 4, 8, 4, true}));
  shape.has_workspace = false;
  EXPECT_EQ(choose_variant(shape), (LoraVariant{2, 1, 8, 2, true}));
}

// Every CTA of an expand has h from memory: nothing is gained by a cluster.
TEST(ChooseVariant, ExpandByTokens) {
  LaunchShape shape{.stage = LoraStage::expand, .num_tokens = 64, .max_rank = 512};
  EXPECT_EQ(choose_variant(shape), (LoraVariant{1, 1, 1, 3, true}));
  shape.num_tokens = 65;
  EXPECT_EQ(choose_variant(shape), (LoraVariant{1, 4, 1, 3, true}));
  shape.aligned = false;
  EXPECT_EQ(choose_variant(shape), (LoraVariant{1, 1, 1, 3, false}));
}

TEST(ChooseVariant, UnalignedTakesSingleNumbers) {
  LaunchShape shape{.num_tokens = 4096, .num_in = 4096, .max_rank = 64, .aligned = false};
  EXPECT_EQ(choose_variant(shape), (LoraVariant{2, 1, 8, 2, false}));
  shape.stage = LoraStage::shrink;
  EXPECT_EQ(choose_variant(shape), (LoraVariant{2, 1, 8, 2, false}));
}

// Before sm_90 there are none.
TEST(ChooseVariant, WithoutClusters) {
  for (const LoraStage stage : {LoraStage::linear, LoraStage::shrink, LoraStage::expand}) {
    for (const int64_t num_tokens : {1, 100, 4096}) {
      for (const bool aligned : {false, true}) {
        const LoraVariant v = choose_variant({.stage = stage,
                                              .num_tokens = num_tokens,
                                              .num_in = 12288,
                                              .max_rank = 64,
                                              .aligned = aligned,
                                              .has_clusters = false});
        EXPECT_EQ(v.cluster, 1);
        EXPECT_EQ(v.aligned, aligned);
      }
    }
  }
}

TEST(DescribeVariant, RanksTokensCtasStages) {
  EXPECT_EQ(describe({4, 1, 8, 2, true}), "r64 t8 c8 s2");
  EXPECT_EQ(describe({1, 4, 1, 3, false}), "r16 t32 c1 s3 unaligned");
}

}  // namespace
}  // namespace loratory::gpu
