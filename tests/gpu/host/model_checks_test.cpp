// What the kernels of a model refuse before anything is launched.
#include <gtest/gtest.h>

#include <cmath>

#include "error_of.hpp"
#include "gpu/model/activation.hpp"
#include "gpu/model/embedding.hpp"
#include "gpu/model/embedding_lora.hpp"
#include "gpu/model/lora_bias.hpp"
#include "gpu/model/model_launch.hpp"
#include "gpu/model/norm.hpp"
#include "gpu/model/rotary.hpp"
#include "gpu/model/sampler.hpp"
#include "reference/model/rope.hpp"
#include "reference/model/sampling.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;

// An address that nothing reads: every call here ends before a launch.
void* address(uintptr_t v = 0x1000) { return reinterpret_cast<void*>(v); }

DeviceView matrix(int64_t rows, int64_t columns, Dtype dtype = Dtype::bf16) {
  return device_view(dtype, address(), {rows, columns});
}

RmsNormArgs norm_args() {
  return {.x = matrix(4, 64),
          .weight = device_view(Dtype::bf16, address(), {64}),
          .y = matrix(4, 64),
          .eps = 1e-6};
}
std::string norm_error(const RmsNormArgs& args) {
  return error_of([&] { rms_norm(args, nullptr); });
}

TEST(ModelChecks, NormNamesWhatDoesNotFit) {
  RmsNormArgs args = norm_args();
  args.y = matrix(4, 32);
  EXPECT_EQ(norm_error(args), "rms_norm: y: has shape [4, 32], not [4, 64]");
  args = norm_args();
  args.y = matrix(3, 64);
  EXPECT_EQ(norm_error(args), "rms_norm: y: has shape [3, 64], not [4, 64]");
  args = norm_args();
  args.x.dtype = Dtype::i8;
  EXPECT_EQ(norm_error(args), "rms_norm: x: has dtype i8, not f32, f16 or bf16");
  args = norm_args();
  args.y.dtype = Dtype::f16;
  EXPECT_EQ(norm_error(args), "rms_norm: y: has dtype f16, not bf16");
  args = norm_args();
  args.x.strides = {32, 1, 0};
  EXPECT_EQ(norm_error(args), "rms_norm: x: its rows overlap");
  args.x.strides = {64, 2, 0};
  EXPECT_EQ(norm_error(args), "rms_norm: x: its columns do not lie side by side");
  args = norm_args();
  args.weight = device_view(Dtype::bf16, address(), {63});
  EXPECT_EQ(norm_error(args), "rms_norm: weight: is not [hidden] of x's dtype");
  args = norm_args();
  args.eps = -1;
  EXPECT_EQ(norm_error(args), "rms_norm: eps: is negative");
  args = norm_args();
  args.x.data = nullptr;
  EXPECT_EQ(norm_error(args), "rms_norm: x: is null");
  EXPECT_EQ(error_of([&] { add_rms_norm(norm_args(), matrix(4, 63), nullptr); }),
            "add_rms_norm: delta: has shape [4, 63], not [4, 64]");
}

TEST(ModelChecks, NormOfChosenRowsHasAsManyRowsAsAreChosen) {
  RmsNormArgs args = norm_args();
  args.rows = static_cast<const int32_t*>(address());
  args.y = matrix(0, 64);  // so that nothing is launched
  EXPECT_EQ(norm_error(args), "");
}

TEST(ModelChecks, ActivationWantsGateAndUp) {
  EXPECT_EQ(error_of([&] { silu_mul(matrix(2, 7), matrix(2, 3), nullptr); }),
            "silu_mul: gate_up: has an odd number of columns");
  EXPECT_EQ(error_of([&] { silu_mul(matrix(2, 8), matrix(2, 8), nullptr); }),
            "silu_mul: y: has shape [2, 8], not [2, 4]");
  EXPECT_EQ(error_of([&] { gpt_oss_mul(matrix(2, 7), matrix(2, 3), nullptr); }),
            "gpt_oss_mul: gate_up: has an odd number of columns");
}

BatchView batch_view() {
  const auto* const numbers = static_cast<const int32_t*>(address());
  return {.num_tokens = 3,
          .num_rows = 2,
          .token_ids = numbers,
          .last_sampled = numbers,
          .positions = numbers,
          .token_rows = numbers,
          .row_starts = numbers,
          .contexts = numbers,
          .block_tables = numbers,
          .max_blocks = 4,
          .block_size = 16};
}

TEST(ModelChecks, EmbeddingWantsARowForEachToken) {
  const auto error = [](const BatchView& batch, const EmbedArgs& args) {
    return error_of([&] { embed(batch, args, nullptr); });
  };
  EXPECT_EQ(error(batch_view(), {.table = matrix(10, 8), .x = matrix(2, 8)}),
            "embed: x: has shape [2, 8], not [3, 8]");
  BatchView batch = batch_view();
  batch.token_rows = nullptr;
  EXPECT_EQ(error(batch, {.table = matrix(10, 8), .x = matrix(3, 8)}),
            "embed: batch: token_rows is null");
  batch.num_tokens = -1;
  EXPECT_EQ(error(batch, {.table = matrix(10, 8), .x = matrix(3, 8)}),
            "embed: batch: a count is negative");
}

EmbeddingShrinkArgs embedding_shrink_args() {
  const auto* const numbers = static_cast<const int32_t*>(address());
  return {.a = device_view(Dtype::bf16, address(), {2, 16, 100}),
          .ranks = numbers,
          .slots = numbers,
          .ids = numbers,
          .h = device_view(Dtype::f32, address(), {1, 3, 16})};
}
std::string shrink_error(const EmbeddingShrinkArgs& args) {
  return error_of([&] { shrink_embedding(args, nullptr); });
}

TEST(ModelChecks, EmbeddingShrinkNamesWhatDoesNotFit) {
  EmbeddingShrinkArgs args = embedding_shrink_args();
  args.a.num_axes = 2;
  EXPECT_EQ(shrink_error(args), "shrink_embedding: a: has 2 axes, not 3");
  args = embedding_shrink_args();
  args.a.dtype = Dtype::i8;
  EXPECT_EQ(shrink_error(args), "shrink_embedding: a: has dtype i8, not f32, f16 or bf16");
  args = embedding_shrink_args();
  args.a.strides = {1600, 1, 16};  // transposed, as vLLM keeps it
  EXPECT_EQ(shrink_error(args), "shrink_embedding: a: its columns do not lie side by side");
  args = embedding_shrink_args();
  args.h = device_view(Dtype::f32, address(), {1, 3, 15});
  EXPECT_EQ(shrink_error(args), "shrink_embedding: h: is not [1, tokens, at least 16]");
  args.h = device_view(Dtype::bf16, address(), {1, 3, 16});
  EXPECT_EQ(shrink_error(args), "shrink_embedding: h: has dtype bf16, not f32");
  for (const auto array :
       {&EmbeddingShrinkArgs::ranks, &EmbeddingShrinkArgs::slots, &EmbeddingShrinkArgs::ids}) {
    args = embedding_shrink_args();
    args.*array = nullptr;
    EXPECT_NE(shrink_error(args).find("is null"), std::string::npos);
  }
  args = embedding_shrink_args();
  args.a.dtype = Dtype::f8_e4m3fn;
  const std::string rule = "shrink_embedding: factors: belong to a of f8_e4m3fn, and to no other";
  EXPECT_EQ(shrink_error(args), rule);
  args = embedding_shrink_args();
  args.factors = static_cast<const float*>(address());
  EXPECT_EQ(shrink_error(args), rule);
  args = embedding_shrink_args();
  args.h.shape[1] = 0;  // no tokens: nothing is launched
  args.ids = nullptr;
  EXPECT_EQ(shrink_error(args), "");
}

// Every token is one warp's.
TEST(ModelChecks, EmbeddingShrinkHasAWarpForEachToken) {
  for (const int64_t num_tokens : {1, 7, 8, 9, 64, 8191}) {
    std::vector<int> threads(size_t(num_tokens), 0);
    for (int cta = 0; cta < num_shrink_ctas(num_tokens); ++cta) {
      for (int thread = 0; thread < 32 * kShrinkTokens; ++thread) {
        const int token = shrink_token(cta, thread);
        EXPECT_EQ(token, shrink_token(cta, thread / 32 * 32));
        if (token < num_tokens) ++threads[size_t(token)];
      }
    }
    EXPECT_EQ(threads, std::vector<int>(size_t(num_tokens), 32));
  }
}

LoraBiasArgs bias_args() {
  const auto* const numbers = static_cast<const int32_t*>(address());
  return {.slices = {{matrix(4, 24), numbers}, {matrix(4, 8), numbers}},
          .slots = numbers,
          .offset_start = 8,
          .y = matrix(3, 40)};
}
std::string bias_error(const LoraBiasArgs& args) {
  return error_of([&] { add_lora_bias(args, nullptr); });
}

TEST(ModelChecks, LoraBiasNamesWhatDoesNotFit) {
  LoraBiasArgs args = bias_args();
  args.y = matrix(3, 39);
  EXPECT_EQ(bias_error(args), "add_lora_bias: y: has 39 columns, the slices end at 40");
  args = bias_args();
  args.slices[1].bias.dtype = Dtype::f16;
  EXPECT_EQ(bias_error(args), "add_lora_bias: slices[1].bias: has dtype f16, y has bf16");
  args = bias_args();
  args.slices[0].ranks = nullptr;
  EXPECT_EQ(bias_error(args), "add_lora_bias: slices[0].ranks: is null");
  args.slices[0].bias.data = nullptr;  // without a bias it needs none
  args.y = matrix(0, 40);              // no tokens: nothing is launched
  EXPECT_EQ(bias_error(args), "");
  args = bias_args();
  args.slices.clear();
  EXPECT_EQ(bias_error(args), "add_lora_bias: slices: are 0, not 1 to 8");
  args = bias_args();
  args.slots = nullptr;
  EXPECT_EQ(bias_error(args), "add_lora_bias: slots: is null");
  args = bias_args();
  args.offset_start = -1;
  EXPECT_EQ(bias_error(args), "add_lora_bias: offset_start: is negative");
}

// Every eight columns are one thread's.
TEST(ModelChecks, LoraBiasHasAThreadForEveryEightColumns) {
  for (const int64_t columns :
       {1, 8, 9, kBiasColumns - 1, kBiasColumns, kBiasColumns + 1, 262144}) {
    std::vector<int> threads(size_t(columns + 7) / 8, 0);
    for (int cta = 0; cta < num_bias_ctas(columns); ++cta) {
      for (int thread = 0; thread < kBiasThreads; ++thread) {
        const int first = bias_column(cta, thread);
        if (first < columns) ++threads[size_t(first) / 8];
      }
    }
    EXPECT_EQ(threads, std::vector<int>(threads.size(), 1)) << columns;
  }
}

RotaryArgs rotary_args() {
  return {.qkv = matrix(3, (4 + 2 * 2) * 64),
          .num_heads = 4,
          .cos = matrix(100, 32, Dtype::f32),
          .sin = matrix(100, 32, Dtype::f32),
          .kv = {.dtype = Dtype::bf16,
                 .k = address(),
                 .v = address(),
                 .num_blocks = 8,
                 .kv_heads = 2,
                 .block_size = 16,
                 .head_dim = 64}};
}
std::string rotary_error(const RotaryArgs& args, const BatchView& batch = batch_view()) {
  return error_of([&] { rotary(batch, args, nullptr); });
}

TEST(ModelChecks, RotaryNamesWhatDoesNotFit) {
  RotaryArgs args = rotary_args();
  args.kv.head_dim = 81;
  EXPECT_EQ(rotary_error(args), "rotary: head_dim: is 81, not even, or not of 2 to 1024");
  args.kv.head_dim = 1026;
  EXPECT_EQ(rotary_error(args), "rotary: head_dim: is 1026, not even, or not of 2 to 1024");
  args = rotary_args();
  args.num_heads = 5;
  EXPECT_EQ(rotary_error(args), "rotary: qkv: has shape [3, 512], not [3, 576]");
  args = rotary_args();
  args.qkv.data = address(0x1008);
  EXPECT_EQ(rotary_error(args), "rotary: qkv: rows are not aligned to 16 bytes");
  args = rotary_args();
  args.sin = matrix(99, 32, Dtype::f32);
  EXPECT_EQ(rotary_error(args), "rotary: cos and sin: has shape [99, 32], not [100, 32]");
  args = rotary_args();
  args.k_norm = address();
  EXPECT_EQ(rotary_error(args), "rotary: q_norm and k_norm: one of them is null");
}

TEST(ModelChecks, RotaryWantsTheBlocksOfTheBatch) {
  RotaryArgs args = rotary_args();
  args.kv.block_size = 32;
  EXPECT_EQ(rotary_error(args), "rotary: kv: the KV has blocks of 32 tokens, the batch of 16");
  BatchView batch = batch_view();
  batch.block_size = 12;
  EXPECT_EQ(rotary_error(rotary_args(), batch), "rotary: kv: block_size 12 is not a power of two");
  args = rotary_args();
  args.kv.v = address(0x1004);
  EXPECT_EQ(rotary_error(args), "rotary: kv: keys or values are not aligned to 16 bytes");
  args = rotary_args();
  args.kv.k = nullptr;
  EXPECT_EQ(rotary_error(args), "rotary: kv: keys or values are null");
}

TEST(ModelChecks, SamplerNamesWhatDoesNotFit) {
  const auto error = [](const SampleArgs& args) {
    return error_of([&] { sample(args, nullptr); });
  };
  EXPECT_EQ(error({.logits = matrix(2, 100)}), "sample: logits: has dtype bf16, not f32");
  EXPECT_EQ(error({.logits = matrix(2, 262145, Dtype::f32)}),
            "sample: logits: 262145 tokens are more than 262144");
  EXPECT_EQ(error({.logits = matrix(2, 100, Dtype::f32)}), "sample: rows or tokens is null");
  EXPECT_EQ(error({.logits = matrix(2, 100, Dtype::f32),
                   .rows = static_cast<const SamplingRow*>(address()),
                   .tokens = static_cast<int32_t*>(address()),
                   .max_top = 5}),
            "sample: max_top: has no room: logprobs, top_tokens or top_logprobs is null");
}

TEST(ModelChecks, SamplingRowRefusesWhatTheReferenceRefuses) {
  const auto error = [](const reference::SamplingParams& params, int32_t num_top = -1) {
    return error_of([&] { sampling_row(params, 0, num_top); });
  };
  EXPECT_EQ(error({}), "");
  EXPECT_EQ(error({.temperature = NAN}), "sample: temperature: nan is not a finite number >= 0");
  EXPECT_EQ(error({.top_k = -1}), "sample: top_k: -1 is negative");
  EXPECT_EQ(error({.top_p = 0}), "sample: top_p: 0 is not in (0, 1]");
  EXPECT_EQ(error({}, 1025), "sample: num_top: 1025 is not in [-1, 1024]");
  EXPECT_EQ(sampling_row({.top_k = int64_t{1} << 40}, 7).top_k, 262144) << "all, for any vocab";
}

TEST(RopeTables, AreTheAnglesOfTheReferenceRoundedOnce) {
  const reference::RopeConfig config{.theta = 10000,
                                     .scaling = reference::RopeScaling::yarn,
                                     .factor = 4,
                                     .original_max_position_embeddings = 64};
  const RopeTables tables = make_rope_tables(config, 8, 100);
  const std::vector<int64_t> position{77};
  const auto exact = reference::rotations<double>(config, 8, position);
  ASSERT_EQ(tables.cos.size(), 400U);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(tables.cos[size_t(77 * 4 + i)], float(exact.cos(i, 0)));
    EXPECT_EQ(tables.sin[size_t(77 * 4 + i)], float(exact.sin(i, 0)));
  }
  EXPECT_FLOAT_EQ(tables.cos[0], float(0.1 * std::log(4.0) + 1)) << "the factor is in the tables";
}

TEST(RopeTables, HaveNoPositionWhoseFrequenciesWouldChange) {
  const reference::RopeConfig config{.scaling = reference::RopeScaling::dynamic,
                                     .factor = 2,
                                     .original_max_position_embeddings = 64};
  EXPECT_EQ(error_of([&] { make_rope_tables(config, 8, 64); }), "");
  EXPECT_NE(error_of([&] { make_rope_tables(config, 8, 65); }), "");
}

}  // namespace
}  // namespace loratory::gpu
