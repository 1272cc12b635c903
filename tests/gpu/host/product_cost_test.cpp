// What a plan counts for a kernel beside its time in a chain of products.
#include <gtest/gtest.h>

#include "gpu/product/product_cost.hpp"
#include "gpu/product/skinny_plan.hpp"

namespace loratory::gpu {
namespace {

constexpr int kSms = 132;
constexpr double kUs = 50;
constexpr ProductShape kO{.num_out = 4096, .num_in = 4096, .max_tokens = 512};
constexpr ProductShape kGateUp{
    .num_out = 24576, .num_in = 4096, .max_tokens = 512, .feeds_silu_mul = true};

double cost(const ProductShape& shape, int64_t num_tokens, const char* kernel,
            ProductUse use = ProductUse::alone, double us = kUs) {
  return us_in_a_layer(shape, num_tokens, choice_from_text(kernel, ""), use, us, kSms);
}
double end_us(const ProductShape& shape, int64_t num_tokens, const char* kernel) {
  return 0.02 * skinny_layout(shape, num_tokens, choice_from_text(kernel, "")).results_of_thread();
}

constexpr const char* kLibrary = "cublaslt:66/208/35/1/0/0/3/0/5";

TEST(ProductCost, TheLibraryWaitsForSmallKernelsAndAShrinkForIt) {
  EXPECT_EQ(cost(kO, 128, kLibrary), kUs + 4);
  EXPECT_EQ(cost(kO, 128, kLibrary, ProductUse::before_lora), kUs + 6);
}

TEST(ProductCost, SwigluIsALaunchWhereTheKernelDoesNotEndWithIt) {
  EXPECT_EQ(cost(kGateUp, 128, kLibrary), kUs + 8);
  EXPECT_EQ(cost(kGateUp, 128, kLibrary, ProductUse::before_lora), kUs + 6);
  ProductShape without = kGateUp;
  without.feeds_silu_mul = false;
  EXPECT_EQ(cost(kGateUp, 128, "skinny:192:1"), cost(without, 128, "skinny:192:1"));
  EXPECT_DOUBLE_EQ(cost(kGateUp, 128, "skinny:24:1"), cost(without, 128, "skinny:24:1") + 4);
}

// Even where a chain would have the library a microsecond ahead.
TEST(ProductCost, GateAndUpOf128TokensByAnOwnKernel) {
  for (const ProductUse use : {ProductUse::alone, ProductUse::before_lora}) {
    EXPECT_LT(cost(kGateUp, 128, "skinny:192:1", use, 56), cost(kGateUp, 128, kLibrary, use, 55));
  }
}

TEST(ProductCost, IdleSmsCostUnlessAShrinkRunsThere) {
  const char* const few = "skinny:48:1";  // 86 tiles
  const double idle = 46.0 / kSms, end = end_us(kO, 32, few);
  EXPECT_DOUBLE_EQ(cost(kO, 32, few), kUs * (1 + 0.12 * idle) + end);
  EXPECT_DOUBLE_EQ(cost(kO, 32, few, ProductUse::before_lora), kUs * (1 + 0.12 * idle) + end - 2);
  EXPECT_EQ(cost(kO, 33, few, ProductUse::before_lora), cost(kO, 33, few));
  const char* const most = "skinny:32:1";  // 128 tiles: too few SMs are left
  EXPECT_EQ(cost(kO, 32, most, ProductUse::before_lora), cost(kO, 32, most));
}

TEST(ProductCost, BeforeAShrinkOfLongRowsComesTheTileThatLeavesAThirdOfTheSms) {
  constexpr ProductShape down{.num_out = 4096, .num_in = 12288, .max_tokens = 512};
  const auto gain = [](const ProductShape& shape, int64_t num_tokens, const char* tile) {
    return cost(shape, num_tokens, tile) - cost(shape, num_tokens, tile, ProductUse::before_lora);
  };
  EXPECT_EQ(cost(down, 8, "skinny:48:1", ProductUse::before_lora), 0);  // 46 SMs are idle
  EXPECT_DOUBLE_EQ(gain(down, 8, "skinny:64:1"), 2);                    // 68
  EXPECT_DOUBLE_EQ(gain(down, 8, "skinny:32:1"), 0);                    // 4
  EXPECT_DOUBLE_EQ(gain(down, 9, "skinny:48:1"), 2);
  EXPECT_DOUBLE_EQ(gain(kO, 8, "skinny:48:1"), 2);
  constexpr ProductShape longer{.num_out = 4096, .num_in = 14344, .max_tokens = 512};
  EXPECT_DOUBLE_EQ(gain(longer, 8, "skinny:48:1"), 2);
}

TEST(ProductCost, ALastRoundThatIsNotFullCostsUnlessAShrinkRunsThere) {
  const char* const tile = "skinny:48:1";  // 512 tiles in four rounds
  const double idle = 1 - 512.0 / (4 * kSms), end = end_us(kGateUp, 8, tile);
  EXPECT_DOUBLE_EQ(cost(kGateUp, 8, tile), kUs * (1 + 0.25 * idle) + end);
  EXPECT_DOUBLE_EQ(cost(kGateUp, 8, tile, ProductUse::before_lora), kUs * (1 - 0.2 * idle) + end);
  const char* const of_four = "skinny:48:4";  // share loads, and leave as many idle
  EXPECT_EQ(cost(kGateUp, 8, of_four, ProductUse::before_lora), cost(kGateUp, 8, of_four));
}

TEST(ProductCost, RoundsOfManyTokensCost) {
  const char* const tile = "skinny:96:2";  // 256 tiles in two rounds
  const double idle = 1 - 256.0 / (2 * kSms);
  const auto of_one_round = [&](int64_t num_tokens) {
    return kUs * (1 + 0.25 * idle) + end_us(kGateUp, num_tokens, tile);
  };
  EXPECT_DOUBLE_EQ(cost(kGateUp, 64, tile), of_one_round(64));
  EXPECT_DOUBLE_EQ(cost(kGateUp, 65, tile), of_one_round(65) + 2);
  EXPECT_LT(cost(kGateUp, 128, "skinny:192:1"), cost(kGateUp, 128, tile));
}

// A thread has 96 results of 192 columns and 128 tokens, and 32 of 64.
TEST(ProductCost, TheEndOfATileCounts) {
  const double idle = 4.0 / kSms;  // 128 tiles
  EXPECT_DOUBLE_EQ(cost(kGateUp, 128, "skinny:192:1"), kUs * (1 + 0.12 * idle) + 96 * 0.02);
  EXPECT_DOUBLE_EQ(cost(kO, 128, "skinny:64:1:2"), kUs * (1 + 0.12 * idle) + 32 * 0.02);
}

}  // namespace
}  // namespace loratory::gpu
