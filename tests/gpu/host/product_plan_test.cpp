// What of a product's plan needs no GPU: shapes and tensors, tiles, buckets, the file of plans.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "error_of.hpp"
#include "gpu/product/base_product.hpp"
#include "gpu/product/product_bound.hpp"
#include "gpu/product/skinny_plan.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using testing::HasSubstr;

constexpr ProductShape kDown{.num_out = 4096, .num_in = 14336, .max_tokens = 512};

ProductShape with(int64_t num_out, int64_t num_in) {
  return {.num_out = num_out, .num_in = num_in, .max_tokens = 512};
}

/// Memory that nobody reads.
void* place(uintptr_t address) { return reinterpret_cast<void*>(address); }

ProductTensors tensors_of(const ProductShape& shape, int64_t num_tokens) {
  return {.weight = device_view(shape.weight, place(4096), {shape.num_out, shape.num_in}),
          .x = device_view(shape.weight, place(8192), {num_tokens, shape.num_in}),
          .y = device_view(shape.out, place(16384), {num_tokens, shape.num_out})};
}

std::string weight_error(const ProductShape& shape, const ProductTensors& tensors) {
  return error_of([&] { check_weights(shape, tensors); });
}
std::string activation_error(const ProductShape& shape, const ProductTensors& tensors) {
  return error_of([&] { check_activations(shape, tensors); });
}

TEST(ProductShape, SizesAndDtypesThatNoProductHas) {
  const auto error = [](const ProductShape& shape) {
    return error_of([&] { check_shape(shape); });
  };
  EXPECT_EQ(error(kDown), "");
  ProductShape shape = kDown;
  shape.num_in = 0;
  EXPECT_THAT(error(shape), HasSubstr("num_in: is 0, needs 1 to 2147483647"));
  shape = kDown, shape.num_out = int64_t(1) << 31;
  EXPECT_THAT(error(shape), HasSubstr("num_out"));
  shape = kDown, shape.max_tokens = -1;
  EXPECT_THAT(error(shape), HasSubstr("max_tokens"));
  shape = kDown, shape.weight = Dtype::i8;
  EXPECT_THAT(error(shape), HasSubstr("weight: has dtype"));
  shape = kDown, shape.out = Dtype::f16;
  EXPECT_THAT(error(shape), HasSubstr("out: is f16, needs bf16"));
  shape.out = Dtype::f32;
  EXPECT_EQ(error(shape), "");
}

TEST(ProductTensors, WhatDoesNotFitTheShape) {
  const ProductShape shape = with(96, 64);
  const ProductTensors good = tensors_of(shape, 5);
  EXPECT_EQ(weight_error(shape, good), "");
  EXPECT_EQ(activation_error(shape, good), "");
  ProductTensors bad = good;
  bad.weight.shape[0] = 95;
  EXPECT_THAT(weight_error(shape, bad), HasSubstr("weight: has 95 rows"));
  bad = good, bad.weight.data = place(4098);
  EXPECT_THAT(weight_error(shape, bad), HasSubstr("multiples of 16 bytes"));
  bad = good, bad.bias = place(64);
  EXPECT_THAT(weight_error(shape, bad), HasSubstr("bias: is not in this product's shape"));
  bad = good, bad.x.dtype = Dtype::f16;
  EXPECT_THAT(activation_error(shape, bad), HasSubstr("x: has dtype f16"));
  bad = good, bad.x.strides[0] = 68;
  EXPECT_THAT(activation_error(shape, bad), HasSubstr("x: needs rows that begin at multiples"));
  bad = good, bad.x.strides[0] = 8;
  EXPECT_THAT(activation_error(shape, bad), HasSubstr("x: has rows that overlap"));
  bad = good, bad.x.strides[1] = 2;
  EXPECT_THAT(activation_error(shape, bad),
              HasSubstr("x: needs the numbers of a row side by side"));
  bad = good, bad.y.num_axes = 1;
  EXPECT_THAT(activation_error(shape, bad), HasSubstr("y: needs two axes"));
  bad = good, bad.y.shape[0] = 4;
  EXPECT_THAT(activation_error(shape, bad), HasSubstr("y: has 4 rows, x has 5"));
  bad = good, bad.y.data = nullptr;
  EXPECT_THAT(activation_error(shape, bad), HasSubstr("y: has no memory"));
  EXPECT_THAT(activation_error(shape, tensors_of(shape, 513)),
              HasSubstr("x: has 513 rows, this product takes up to 512"));
  EXPECT_EQ(activation_error(shape, tensors_of(shape, 0)), "");
}

TEST(ProductTensors, AlignedAsPackedOrLess) {
  const ProductTensors good = tensors_of(with(96, 64), 5);
  EXPECT_TRUE(is_aligned_as_packed(good));
  ProductTensors bad = good;
  bad.y.strides[0] = 97;
  EXPECT_FALSE(is_aligned_as_packed(bad));
  bad.y.strides[0] = 104;
  EXPECT_TRUE(is_aligned_as_packed(bad));
  bad = good, bad.x.data = place(8200);
  EXPECT_FALSE(is_aligned_as_packed(bad));
  EXPECT_TRUE(is_aligned_as_packed(tensors_of(with(97, 64), 5)));  // packed rows of 194 bytes
}

TEST(ProductTensors, AnyAlignmentWithoutTensorCores) {
  ProductShape shape = with(96, 63);
  ProductTensors tensors = tensors_of(shape, 5);
  tensors.weight.data = place(4098);
  EXPECT_EQ(weight_error(shape, tensors), "");
  EXPECT_EQ(activation_error(shape, tensors), "");
  EXPECT_FALSE(has_tensor_core_product(shape));
  shape.num_in = 72;
  EXPECT_TRUE(has_tensor_core_product(shape));
  shape.weight = Dtype::f32;
  EXPECT_FALSE(has_tensor_core_product(shape));
}

ProductChoice tile(int32_t columns, int32_t cluster = 1, int32_t token_ctas = 1) {
  return {.kernel = ProductKernel::skinny,
          .columns = columns,
          .cluster = cluster,
          .token_ctas = token_ctas};
}

// Whatever lies behind the last stage's rows: its products of 64 columns of y and the kernel's
// tokens read it. Stages begin at multiples of 1024.
void expect_reads_within(const SkinnyLayout& layout) {
  const int last_stage = (layout.num_stages - 1) * layout.stage_bytes;
  const int last_w = last_stage + (layout.panels - 1) * layout.columns * 128;
  const int first_x = last_stage + layout.panels * layout.columns * 128;
  const int last_x = first_x + (layout.panels - 1) * layout.x_rows * 128;
  const int room = layout.shared_bytes() - 1024;
  for (int row = 0; row < layout.columns; row += kWgmmaRows) {
    EXPECT_LE(last_w + (row + kWgmmaRows) * 128, room);
  }
  EXPECT_LE(last_x + layout.tokens * 128, room);
  EXPECT_LE(last_x + layout.x_rows * 128, last_stage + layout.stage_bytes);
}

// Every layout fits a Hopper CTA, covers K and all columns, and keeps boxes of x to whole eights of
// rows where the kernel has as many.
TEST(SkinnyPlan, LayoutsFit) {
  for (const ProductShape& shape : {kDown, with(128256, 4096), with(16, 8), with(2560, 9728)}) {
    for (const int columns : kSkinnyColumns) {
      for (const int cluster : kSkinnyClusters) {
        for (const int64_t tokens : {1, 8, 9, 31, 32, 33, 64, 65, 128, 129, 512}) {
          const SkinnyLayout layout = skinny_layout(shape, tokens, tile(columns, cluster));
          EXPECT_GE(layout.num_stages, 3);
          EXPECT_LE(layout.num_stages, kMaxSkinnyStages);
          EXPECT_LE(layout.shared_bytes(), kSkinnySharedBytes);
          EXPECT_EQ(layout.columns, columns);
          EXPECT_EQ(layout.columns * 128 % 1024, 0);
          EXPECT_EQ(layout.stage_bytes % 1024, 0);
          EXPECT_EQ(layout.x_rows % cluster, 0);
          EXPECT_TRUE(layout.x_rows % (8 * cluster) == 0 || layout.x_rows == layout.tokens);
          EXPECT_GE(layout.num_steps * layout.panels * kPanelDepth, shape.num_in);
          EXPECT_LT((layout.num_steps - 1) * layout.panels * kPanelDepth, shape.num_in);
          EXPECT_GE(int64_t(layout.num_column_groups) * columns * cluster, shape.num_out);
          EXPECT_GE(layout.num_token_groups * layout.tokens, tokens);
          EXPECT_GE(layout.x_rows, std::min<int64_t>(tokens, layout.tokens));
          EXPECT_LT(layout.x_rows, tokens + 8 * cluster);
          EXPECT_LE(layout.x_rows, layout.tokens);
          expect_reads_within(layout);
        }
      }
    }
  }
}

// The narrowest products that take all tokens at once, and no more threads than they need.
TEST(SkinnyPlan, TokensAndTileNameTheKernel) {
  const auto layout = [](int32_t columns, int64_t tokens) {
    return skinny_layout(kDown, tokens, tile(columns));
  };
  for (const auto& [tokens, of_kernel] : {std::pair{1, 8},
                                          {8, 8},
                                          {9, 32},
                                          {32, 32},
                                          {33, 64},
                                          {64, 64},
                                          {65, 128},
                                          {128, 128},
                                          {129, 128},
                                          {512, 128}}) {
    EXPECT_EQ(layout(64, tokens).tokens, of_kernel) << tokens;
  }
  EXPECT_EQ(layout(64, 512).num_token_groups, 4);
  EXPECT_EQ(layout(64, 9).x_rows, 16);
  EXPECT_EQ(layout(64, 129).x_rows, 128);
  EXPECT_EQ(skinny_layout(kDown, 9, tile(64, 4)).x_rows, 32);
  EXPECT_EQ(layout(256, 64).num_threads(), 192);
  EXPECT_EQ(layout(16, 65).num_threads(), 320);
  EXPECT_EQ(layout(256, 512).num_threads(), 320);
}

// Two CTAs share W: each has the kernel of half the tokens.
TEST(SkinnyPlan, CtasThatShareWeightsDivideTheTokens) {
  const auto layout = [](int64_t tokens) { return skinny_layout(kDown, tokens, tile(64, 2, 2)); };
  EXPECT_EQ(layout(128).tokens, 64);
  EXPECT_EQ(layout(128).num_token_groups, 1);
  EXPECT_EQ(layout(65).tokens, 64);
  EXPECT_EQ(layout(65).x_rows, 64);
  EXPECT_EQ(layout(129).tokens, 128);
  EXPECT_EQ(layout(512).num_token_groups, 2);
  EXPECT_EQ(layout(128).num_column_groups,
            skinny_layout(kDown, 128, tile(64, 2)).num_column_groups);
  EXPECT_TRUE(has_skinny_kernel(tile(64, 4, 2)));
  EXPECT_FALSE(has_skinny_kernel(tile(64, 8, 2)));  // 16 CTAs
  EXPECT_FALSE(has_skinny_kernel(tile(24, 1, 2)));  // 12 rows of W each
  EXPECT_FALSE(has_skinny_kernel(tile(64, 1, 3)));
}

// Where half of the tokens fit into a product of fewer.
TEST(SkinnyPlan, TokensAreDividedWhereProductsOfFewerTakeThem) {
  for (const int64_t tokens : {1, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256}) {
    const auto choices = skinny_choices(with(4096, 4096), tokens, 132);
    const bool divides = (tokens > 8 && tokens <= 16) || (tokens > 32 && tokens <= 64) ||
                         (tokens > 64 && tokens <= 128);
    EXPECT_EQ(std::ranges::count(choices, tile(64, 1, 2)) > 0, divides) << tokens;
    EXPECT_EQ(std::ranges::count(choices, 2, &ProductChoice::token_ctas) > 0, divides) << tokens;
  }
}

// Longer runs of a row for narrow tiles and few tokens, but no stage of more than 40 KB for it.
TEST(SkinnyPlan, PanelsOfAStage) {
  for (const int columns : kSkinnyColumns) {
    for (const int tokens : kWgmmaTokens) {
      const int panels = skinny_panels(columns, tokens);
      EXPECT_TRUE(panels < 4 || panels * (columns + tokens) * 128 <= 40 * 1024);
      EXPECT_TRUE(columns <= 64 || panels == 1);
    }
  }
  EXPECT_EQ(skinny_panels(64, 8), 4);
  EXPECT_EQ(skinny_panels(48, 32), 4);
  EXPECT_EQ(skinny_panels(64, 32), 2);
  EXPECT_EQ(skinny_panels(16, 128), 2);
}

SkinnyParams params_of(int32_t columns, int64_t tokens, const ProductTensors& tensors) {
  const SkinnyLayout layout = skinny_layout(kDown, tokens, tile(columns));
  return skinny_params(kDown, tile(columns), layout, tensors);
}

TEST(SkinnyPlan, AsksAheadForAFewStagesOfW) {
  for (const int32_t columns : kSkinnyColumns) {
    for (const int64_t tokens : {1, 128}) {
      const SkinnyLayout layout = skinny_layout(kDown, tokens, tile(columns));
      const SkinnyParams params = params_of(columns, tokens, tensors_of(kDown, tokens));
      EXPECT_GE(params.num_asked_ahead, 1);
      EXPECT_LE(params.num_asked_ahead, layout.num_stages);
      const int32_t stage_of_w = layout.panels * columns * 128;
      EXPECT_LT((params.num_asked_ahead - 1) * stage_of_w, 48 * 1024);
    }
  }
  EXPECT_EQ(params_of(16, 1, tensors_of(kDown, 1)).num_asked_ahead, 6);
  EXPECT_EQ(params_of(256, 1, tensors_of(kDown, 1)).num_asked_ahead, 2);
}

// A pair of columns is one word only where every row and y begin at one.
TEST(SkinnyPlan, PairsOfColumnsAreWords) {
  const auto in_pairs = [](int64_t tokens, int64_t stride, uintptr_t at) {
    ProductTensors tensors = tensors_of(kDown, tokens);
    tensors.y.strides[0] = stride;
    tensors.y.data = place(at);
    return params_of(64, tokens, tensors).in_pairs;
  };
  EXPECT_TRUE(in_pairs(2, 4096, 16384));
  EXPECT_TRUE(in_pairs(2, 4098, 16388));
  EXPECT_FALSE(in_pairs(2, 4097, 16384));
  EXPECT_FALSE(in_pairs(2, 4096, 16386));
  EXPECT_TRUE(in_pairs(1, 4097, 16384));  // no second row
}

// --- SwiGLU --------------------------------------------------------------------------------------

ProductTensors gated_tensors(const ProductShape& shape, int64_t num_tokens) {
  ProductTensors out = tensors_of(shape, num_tokens);
  out.y = device_view(shape.out, place(16384), {num_tokens, shape.num_out / 2});
  out.is_gated = true;
  return out;
}

TEST(SkinnyPlan, FusesSiluWhereHalvesMeetInEights) {
  const ProductShape shape = with(96, 64);
  const auto fuses = [](const ProductShape& of, const ProductChoice& choice) {
    return fuses_silu(of, choice, gated_tensors(of, 5));
  };
  EXPECT_TRUE(fuses(shape, tile(64)));
  EXPECT_TRUE(fuses(shape, tile(16, 8)));
  EXPECT_TRUE(fuses(with(28672, 4096), tile(224)));
  EXPECT_FALSE(fuses(shape, tile(24)));
  EXPECT_TRUE(fuses(shape, tile(64, 1, 2)));
  EXPECT_FALSE(fuses(shape, tile(48, 1, 2)));  // 24 rows each
  EXPECT_FALSE(fuses(shape, choice_from_text("plain", "")));
  EXPECT_FALSE(fuses(shape, choice_from_text("cublaslt:66/20/36/1/0/0/0/5/0", "")));
  EXPECT_FALSE(fuses(with(104, 64), tile(64)));  // halves of 52
  EXPECT_FALSE(fuses(with(95, 64), tile(64)));
  ProductShape other = shape;
  other.out = Dtype::f32;
  EXPECT_FALSE(fuses(other, tile(64)));
  other = shape, other.has_bias = true;
  EXPECT_FALSE(fuses(other, tile(64)));
  other = shape, other.weight = other.out = Dtype::f16;
  EXPECT_TRUE(fuses(other, tile(64)));
}

TEST(SkinnyPlan, FusesSiluWhereYIsInPairs) {
  const ProductShape shape = with(96, 64);
  ProductTensors tensors = gated_tensors(shape, 5);
  tensors.y.strides[0] = 49;
  EXPECT_FALSE(fuses_silu(shape, tile(64), tensors));
  tensors.y.strides[0] = 50;
  EXPECT_TRUE(fuses_silu(shape, tile(64), tensors));
  tensors.y.data = place(16386);
  EXPECT_FALSE(fuses_silu(shape, tile(64), tensors));
}

TEST(SkinnyPlan, GatedYHasHalfOfTheColumns) {
  const ProductShape shape = with(96, 64);
  const ProductTensors good = gated_tensors(shape, 5);
  EXPECT_EQ(activation_error(shape, good), "");
  ProductTensors bad = good;
  bad.is_gated = false;
  EXPECT_THAT(activation_error(shape, bad), HasSubstr("y: has rows of 48 numbers"));
  EXPECT_THAT(activation_error(shape, tensors_of(shape, 5)), testing::Eq(""));
  bad = tensors_of(shape, 5), bad.is_gated = true;
  EXPECT_THAT(activation_error(shape, bad), HasSubstr("y: has rows of 96 numbers"));
  const SkinnyLayout layout = skinny_layout(shape, 5, tile(64));
  const SkinnyParams params = skinny_params(shape, tile(64), layout, good);
  EXPECT_TRUE(params.is_gated);
  EXPECT_EQ(params.y_columns, 48);
  EXPECT_EQ(layout.num_column_groups, 2);  // of W's rows
}

// One even wave where there is one: the tile is the SM's share of the columns.
TEST(SkinnyPlan, EvenTilesComeFirst) {
  const auto first = [](int64_t num_out, int64_t tokens) {
    return skinny_choices(with(num_out, 4096), tokens, 132)[0].columns;
  };
  EXPECT_EQ(first(6144, 1), 48);
  EXPECT_EQ(first(4096, 1), 32);
  EXPECT_EQ(first(2560, 32), 24);
  EXPECT_EQ(first(28672, 64), 224);
  EXPECT_EQ(first(4096, 128), 32);
  EXPECT_EQ(first(4096, 256), 64);
}

TEST(SkinnyPlan, ChoicesDifferAndHaveKernels) {
  for (const int64_t num_out : {8, 100, 2560, 4096, 128256}) {
    for (const int64_t tokens : {1, 8, 64, 128}) {
      std::set<ProductChoice> seen;
      for (const ProductChoice& choice : skinny_choices(with(num_out, 4096), tokens, 132)) {
        EXPECT_TRUE(seen.insert(choice).second);
        EXPECT_EQ(choice_from_text(to_text(choice), "here"), choice);
        EXPECT_TRUE(tokens > 8 || choice.cluster == 1);
      }
      EXPECT_GE(seen.size(), 3U);
    }
  }
}

TEST(SkinnyPlan, IdleAreTheSmsWithoutATile) {
  const auto idle = [](int64_t num_out, int64_t tokens, const char* choice) {
    const ProductChoice parsed = choice_from_text(choice, "here");
    return skinny_layout(with(num_out, 4096), tokens, parsed).idle_sms(parsed.num_ctas(), 132);
  };
  EXPECT_EQ(idle(28672, 32, "skinny:256:4"), 20);
  EXPECT_EQ(idle(28672, 32, "skinny:224:1"), 4);
  EXPECT_EQ(idle(4096, 128, "skinny:64:1:2"), 4);  // two CTAs a tile
  EXPECT_EQ(idle(28672, 32, "skinny:64:2"), 0);    // several tiles a CTA
}

TEST(SkinnyPlan, ThreadsShareTheResultsOfATile) {
  const auto results = [](int64_t tokens, const char* choice) {
    return skinny_layout(with(28672, 4096), tokens, choice_from_text(choice, "here"))
        .results_of_thread();
  };
  EXPECT_EQ(results(32, "skinny:64:2"), 16);
  EXPECT_EQ(results(64, "skinny:192:1"), 96);
  EXPECT_EQ(results(128, "skinny:192:1"), 96);    // two warpgroups
  EXPECT_EQ(results(128, "skinny:128:1:2"), 64);  // 64 tokens a CTA
}

TEST(ProductPlan, BucketsEndAtTheLargestStep) {
  EXPECT_EQ(token_buckets(1), (std::vector<int64_t>{1}));
  EXPECT_EQ(token_buckets(8), (std::vector<int64_t>{8}));
  EXPECT_EQ(token_buckets(100), (std::vector<int64_t>{8, 16, 32, 64, 100}));
  ProductPlan plan;
  for (const int64_t tokens : token_buckets(100)) plan.push_back({.tokens = tokens});
  EXPECT_EQ(bucket_of(plan, 1).tokens, 8);
  EXPECT_EQ(bucket_of(plan, 8).tokens, 8);
  EXPECT_EQ(bucket_of(plan, 9).tokens, 16);
  EXPECT_EQ(bucket_of(plan, 65).tokens, 100);
  EXPECT_EQ(bucket_of(plan, 100).tokens, 100);
  EXPECT_DEATH(bucket_of(plan, 101), "largest number of tokens");
}

TEST(ProductShape, WhatIsNotTimedAndWhatTheLibraryIsNotAskedFor) {
  EXPECT_TRUE(is_small({.num_out = 512, .num_in = 128}));
  EXPECT_FALSE(is_small({.num_out = 512, .num_in = 128, .weight = Dtype::f32}));
  EXPECT_FALSE(is_small({.num_out = 513, .num_in = 128}));
  for (const int64_t columns : {8, 264, 128256}) {
    EXPECT_TRUE(may_have_bits_of_own({.num_out = columns, .num_in = 64})) << columns;
  }
  for (const int64_t columns : {1, 23, 100, 257}) {
    EXPECT_FALSE(may_have_bits_of_own({.num_out = columns, .num_in = 64})) << columns;
  }
}

TEST(ProductChoice, TextNamesAKernelOfThisBuildOrFails) {
  for (const char* text :
       {"plain", "skinny:32:4", "skinny:64:1:2", "cublaslt:66/20/36/1/0/0/0/5/0"}) {
    EXPECT_EQ(to_text(choice_from_text(text, "file")), text);
  }
  for (const char* text : {"", "skinny", "skinny:33:4", "skinny:32:3", "skinny:32:4:1",
                           "skinny:32:8:2", "skinny:64:1:2:1", "skinny:-16:1",
                           "cublaslt:", "cublaslt:../x", "Plain", "skinny:32:99999999999"}) {
    EXPECT_THAT(error_of([&] { choice_from_text(text, "file"); }),
                HasSubstr("file: names no kernel"))
        << text;
  }
}

// --- the file -----------------------------------------------------------------------------------

ProductCache some_cache() {
  ProductCache cache{.key = {.gpu = "NVIDIA \"H100\"",
                             .driver = "CUDA 13.0",
                             .cublaslt = "13.1.0",
                             .order = "exact",
                             .kernels = kProductKernels}};
  for (ProductShape shape : {kDown, with(24, 8)}) {
    shape.max_tokens = 20;
    shape.has_bias = shape.num_in == 8;
    shape.feeds_silu_mul = !shape.has_bias;
    ProductPlan plan;
    for (const int64_t tokens : token_buckets(20)) {
      plan.push_back({.tokens = tokens,
                      .choice = choice_from_text(
                          tokens == 16 ? "cublaslt:66/20/36/1/0/0/0/5/0" : "skinny:32:1", ""),
                      .before_lora = choice_from_text("skinny:48:1", ""),
                      .us = 12.5,
                      .num_compared = 4096 * tokens});
    }
    cache.plans[shape] = plan;
  }
  return cache;
}

TEST(ProductCache, ComesBackAsItWas) {
  const ProductCache cache = some_cache();
  EXPECT_EQ(parse_product_cache(to_json(cache), "plans.json"), cache);
}

TEST(ProductCache, IsRefusedOnAnythingElse) {
  const ProductKey key = some_cache().key;
  EXPECT_EQ(difference(key, key), "");
  ProductKey other = key;
  other.gpu = "NVIDIA H200";
  EXPECT_EQ(difference(key, other), "was made with GPU NVIDIA \"H100\", this is NVIDIA H200");
  other = key, other.driver = "CUDA 14.0";
  EXPECT_THAT(difference(key, other), HasSubstr("driver"));
  other = key, other.cublaslt = "14.0.0";
  EXPECT_THAT(difference(key, other), HasSubstr("cuBLASLt"));
  other = key, other.order = "fast";
  EXPECT_THAT(difference(key, other), HasSubstr("order"));
  other = key, other.kernels += 1;
  EXPECT_THAT(difference(key, other), HasSubstr("kernels of version"));
}

std::string file_error(std::string text) {
  return error_of([&] { parse_product_cache(text, "plans.json"); });
}
std::string replaced(const std::string& from, const std::string& to) {
  std::string text = to_json(some_cache());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ProductCache, OneLineForWhatItCannotMean) {
  EXPECT_THAT(file_error(""), HasSubstr("plans.json: is not JSON"));
  EXPECT_THAT(file_error("[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(file_error("{}"), HasSubstr("plans.json: gpu"));
  const std::string kernels = "\"kernels\": " + std::to_string(kProductKernels);
  EXPECT_THAT(file_error(replaced(kernels, "\"kernels\": \"1\"")), HasSubstr("kernels"));
  EXPECT_THAT(file_error(replaced("\"plans\": [", "\"planes\": [")), HasSubstr("plans"));
  EXPECT_THAT(file_error(replaced("\"num_in\": 8", "\"num_in\": -8")), HasSubstr("plans.num_in"));
  EXPECT_THAT(file_error(replaced("\"num_in\": 8", "\"num_in\": 9")),
              HasSubstr("cannot compute this shape"));
  EXPECT_THAT(file_error(replaced("\"weight\": \"bf16\"", "\"weight\": \"i8\"")),
              HasSubstr("weight"));
  EXPECT_THAT(file_error(replaced("\"out\": \"bf16\"", "\"out\": \"f16\"")), HasSubstr("out"));
  EXPECT_THAT(file_error(replaced("\"tokens\": 16", "\"tokens\": 17")), HasSubstr("buckets"));
  EXPECT_THAT(file_error(replaced("\"max_tokens\": 20", "\"max_tokens\": 40")),
              HasSubstr("buckets"));
  EXPECT_THAT(file_error(replaced("skinny:32:1", "skinny:31:1")), HasSubstr("names no kernel"));
  EXPECT_THAT(file_error(replaced("skinny:32:1", "plain")), HasSubstr("cannot compute this shape"));
  EXPECT_THAT(file_error(replaced("skinny:48:1", "plain")), HasSubstr("before_lora"));
  EXPECT_THAT(file_error(replaced("12.5", "\"fast\"")), HasSubstr("us"));
  EXPECT_THAT(file_error(replaced("\"bias\": true", "\"bias\": 1")), HasSubstr("bias"));
  EXPECT_THAT(file_error(replaced("\"num_out\": 24,\n   \"num_in\": 8",
                                  "\"num_out\": 4096,\n   \"num_in\": 14336")),
              testing::AnyOf(HasSubstr("twice"), testing::Eq("")));
  EXPECT_THAT(file_error(std::string(100, '[')), HasSubstr("plans.json: "));
}

// Every cut, and every byte made another: one line, or a file that means something.
TEST(ProductCache, AnyDamageIsOneLineOrHarmless) {
  ProductCache cache = some_cache();
  cache.plans.erase(cache.plans.begin());
  const std::string text = to_json(cache);
  int64_t num_errors = 0;
  const auto damage_is_fine = [&](const std::string& damaged) {
    const std::string error = file_error(damaged);
    num_errors += error.empty() ? 0 : 1;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    damage_is_fine(text.substr(0, i));
    for (const char byte : {'\0', '"', ']', '9'}) {
      std::string damaged = text;
      damaged[i] = byte;
      damage_is_fine(damaged);
    }
  }
  EXPECT_GT(num_errors, int64_t(text.size()));
}

// --- the bound ----------------------------------------------------------------------------------

TEST(ProductBound, GrowsWithWhatIsSummedAndCoversOneRounding) {
  const ProductFacts facts{.result = 1, .magnitude = 1, .num_in = 4096};
  const double f32 = product_error_bound(facts, true, Dtype::f32);
  EXPECT_GT(f32, 4096 * 0x1p-23);
  EXPECT_LT(f32, 2 * 4096 * 0x1p-23);
  EXPECT_LT(product_error_bound(facts, false, Dtype::f32), f32 / 2);
  EXPECT_GT(product_error_bound(facts, true, Dtype::bf16), 0x1p-9 + f32 / 2);
}

TEST(Products, WithoutCudaOrAGpuIsOneLine) {
  const auto error = [](const std::string& library) {
    try {
      Products products({.cublaslt = library});
    } catch (const std::runtime_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const std::string missing = error("/nowhere/libcublasLt.so.13");
  EXPECT_EQ(missing.find('\n'), std::string::npos);
  EXPECT_THAT(missing, testing::AnyOf(HasSubstr("no CUDA kernels"),
                                      HasSubstr("not found as /nowhere/libcublasLt.so.13")));
}

}  // namespace
}  // namespace loratory::gpu
