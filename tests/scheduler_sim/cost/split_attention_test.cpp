#include "scheduler_sim/cost/split_attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler_sim/cost/engine_preset.hpp"
#include "scheduler_sim/cost/operator_model.hpp"

namespace loratory::sim {
namespace {

// Llama-3.1-8B: 4 queries a KV head.
AttentionCall llama_call(int64_t rows, int64_t longest_query, int64_t longest_context) {
  return {32, 8, rows, longest_query, longest_context};
}

// By hand from hopper/heuristics.h.
TEST(SplitAttention, TheLongestRowAloneDecides) {
  // 225 x 4 queries are 8 tiles of 128, with 8 KV heads 64 of 132 multiprocessors: two parts fill
  // 128 of them.
  EXPECT_EQ(num_kv_splits(llama_call(500, 225, 2000)), 2);
  EXPECT_EQ(num_kv_splits(llama_call(2, 225, 2000)), 2);
  // Four tiles of 128 keys are never cut.
  EXPECT_EQ(num_kv_splits(llama_call(500, 225, 512)), 1);
  EXPECT_EQ(num_kv_splits(llama_call(500, 225, 513)), 2);
  // 104 tiles are under 0.8 x 132 and 112 above.
  EXPECT_EQ(num_kv_splits(llama_call(500, 416, 2000)), 5);
  EXPECT_EQ(num_kv_splits(llama_call(500, 417, 2000)), 1);
  // Decoding rows: a tile of 64 for each KV head. 14 of 16 parts fill 112 of 132.
  EXPECT_EQ(num_kv_splits(llama_call(500, 1, 2000)), 14);
  // 16 queries are a tile of 64, 17 one of 128: both one tile.
  EXPECT_EQ(num_kv_splits(llama_call(500, 16, 2000)), num_kv_splits(llama_call(500, 17, 2000)));
  EXPECT_EQ(num_kv_splits({28, 4, 500, 475, 2000}), 5);  // Qwen2.5-7B: 104 tiles
  EXPECT_EQ(num_kv_splits({28, 4, 500, 476, 2000}), 1);  // 108
}

TEST(SplitAttention, ManyRowsAreNotLookedAtOneByOne) {
  EXPECT_EQ(num_kv_splits(llama_call(992, 225, 2000)), 2);
  EXPECT_EQ(num_kv_splits(llama_call(993, 225, 2000)), 1);
}

TEST(SplitAttention, EveryRowGetsTheBlocksOfTheLongestQuery) {
  EXPECT_EQ(combine_blocks(llama_call(500, 225, 2000)), 500 * 225 * 32 / 8);
  EXPECT_EQ(combine_blocks({28, 4, 3, 101, 2000}), 3 * 354);  // ceil(101 x 28 / 8)
  EXPECT_EQ(combine_blocks(llama_call(500, 417, 2000)), 0);
  EXPECT_EQ(combine_blocks(llama_call(500, 225, 512)), 0);
}

BatchShape mixed_step(int64_t prompt) {
  BatchShape shape;
  shape.num_seqs = shape.num_sampled = 500 + (prompt > 0 ? 1 : 0);
  shape.num_prefill_tokens = shape.longest_prefill = shape.prefill_context_tokens = prompt;
  shape.num_tokens = 500 + prompt;
  shape.prefill_pairs = prompt * (prompt + 1) / 2;
  shape.decode_context_tokens = 500 * 340;
  shape.longest_decode_context = 2000;
  return shape;
}

double attention_ns(const StepOverheads& overheads, int64_t prompt, int tp = 1) {
  const GpuSpec gpu = parse_gpu_spec("H100-80");
  RooflineOptions options;
  options.tp = tp;
  const OperatorModel model(load_model_spec("Llama-3.1-8B"), gpu,
                            operator_table(operator_table_of(gpu)), options, overheads);
  return model.parts(mixed_step(prompt)).attention;
}

TEST(SplitAttention, MixedStepsPayForTheBlocksOfEveryLayer) {
  StepOverheads o;
  const double alone = attention_ns(o, 225), tp2 = attention_ns(o, 225, 2);
  const double decode = attention_ns(o, 0), long_prompt = attention_ns(o, 417);
  o.combine_block_ns = 1.5;
  EXPECT_NEAR(attention_ns(o, 225) - alone, 32 * 1.5 * 501 * 900, 1e-3);
  // A GPU of two has half of the heads.
  EXPECT_NEAR(attention_ns(o, 225, 2) - tp2, 32 * 1.5 * 501 * 450, 1e-3);
  EXPECT_EQ(attention_ns(o, 0), decode);
  EXPECT_EQ(attention_ns(o, 417), long_prompt);
}

TEST(SplitAttention, ThePromptDecidesHowWideTheTilesAre) {
  // Not cut: by its queries. Cut: by those of all heads of a KV head.
  EXPECT_FALSE(has_wide_tiles(llama_call(500, 64, 512)));
  EXPECT_TRUE(has_wide_tiles(llama_call(500, 65, 512)));
  EXPECT_FALSE(has_wide_tiles(llama_call(500, 16, 513)));
  EXPECT_TRUE(has_wide_tiles(llama_call(500, 17, 513)));
  EXPECT_FALSE(has_wide_tiles({28, 4, 500, 9, 2000}));
  EXPECT_TRUE(has_wide_tiles({28, 4, 500, 10, 2000}));
}

TEST(SplitAttention, WideTilesCostEveryRowAndKvHead) {
  StepOverheads o;
  const double narrow = attention_ns(o, 16), wide = attention_ns(o, 17);
  const double tp2 = attention_ns(o, 17, 2), decode = attention_ns(o, 0);
  o.wide_tile_ns = 2;
  EXPECT_NEAR(attention_ns(o, 17) - wide, 32 * 500 * 8 * 2, 1e-3);
  EXPECT_NEAR(attention_ns(o, 17, 2) - tp2, 32 * 500 * 4 * 2, 1e-3);  // half of the KV heads
  EXPECT_EQ(attention_ns(o, 16), narrow);
  EXPECT_EQ(attention_ns(o, 0), decode);
}

TEST(SplitAttention, OneCallIsShorterThanTwoButNotThanEither) {
  StepOverheads o;
  const double both = attention_ns(o, 225), decode = attention_ns(o, 0);
  o.shared_call_ns = 1000;
  EXPECT_NEAR(both - attention_ns(o, 225), 32 * 1000, 1e-3);
  EXPECT_EQ(attention_ns(o, 0), decode);
  o.shared_call_ns = 1e9;
  EXPECT_NEAR(attention_ns(o, 225), std::max(decode, both - decode), 1e-3);
}

TEST(SplitAttention, OnlyVllm085OnHopperHasThem) {
  const auto block_ns = [](std::string_view engine, std::string_view gpu) {
    const StepOverheads o = engine_preset(engine, parse_gpu_spec(gpu), 1).overheads;
    EXPECT_EQ(o.wide_tile_ns > 0, o.combine_block_ns > 0);
    EXPECT_EQ(o.shared_call_ns > 0, o.combine_block_ns > 0);
    return o.combine_block_ns;
  };
  EXPECT_GT(block_ns("vllm-0.8", "H100-80"), 0);
  EXPECT_GT(block_ns("vllm-0.8", "H200"), 0);
  EXPECT_GT(block_ns("vllm-0.8", "mem=63.4GiB,bw=1.63TB/s,flops=989T,host=64GB/s"), 0);
  EXPECT_EQ(block_ns("vllm-0.8", "A100-80"), 0);
  EXPECT_EQ(block_ns("vllm-0.12", "H100-80"), 0);
  EXPECT_EQ(block_ns("vllm", "H100-80"), 0);
  EXPECT_EQ(block_ns("ideal", "H100-80"), 0);
}

}  // namespace
}  // namespace loratory::sim
