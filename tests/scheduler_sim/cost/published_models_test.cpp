// The sizes of published models: config.json cut to the fields that sizes depend on, against the
// number of parameters of the published checkpoint.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/cost/lora_shapes.hpp"
#include "scheduler_sim/cost/model_spec.hpp"
#include "tests/scheduler_sim/cost/cost_testing.hpp"

namespace loratory::sim {
namespace {

using ::testing::HasSubstr;

struct Published {
  std::string_view repository;
  int64_t parameters;  // of the safetensors files, as the model's card counts them
  std::string_view config;
};

// All exact, vision towers included.
constexpr Published kPublished[] = {
    // repository, parameters, config.json
    {"meta-llama/Llama-3.1-405B", 405'853'388'800,
     R"({"model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248,
     "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8,
     "vocab_size": 128256, "tie_word_embeddings": false})"},
    {"mistralai/Mistral-7B-v0.1", 7'241'732'096,
     R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
     "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
     "vocab_size": 32000, "sliding_window": 4096, "tie_word_embeddings": false})"},
    {"mistralai/Mistral-Nemo-Base-2407", 12'247'782'400,
     R"({"model_type": "mistral", "hidden_size": 5120, "intermediate_size": 14336,
     "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
     "vocab_size": 131072, "sliding_window": null, "tie_word_embeddings": false})"},
    {"mistralai/Mixtral-8x7B-v0.1", 46'702'792'704,
     R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
     "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
     "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2})"},
    {"mistralai/Mixtral-8x22B-Instruct-v0.1", 140'630'071'296,
     R"({"model_type": "mixtral", "hidden_size": 6144, "intermediate_size": 16384,
     "num_hidden_layers": 56, "num_attention_heads": 48, "num_key_value_heads": 8,
     "vocab_size": 32768, "num_local_experts": 8, "num_experts_per_tok": 2})"},
    {"Qwen/Qwen2.5-0.5B", 494'032'768,
     R"({"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
     "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
     "vocab_size": 151936, "use_sliding_window": false, "tie_word_embeddings": true})"},
    {"Qwen/Qwen2.5-72B", 72'706'203'648,
     R"({"model_type": "qwen2", "hidden_size": 8192, "intermediate_size": 29568,
     "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
     "vocab_size": 152064, "use_sliding_window": false, "tie_word_embeddings": false})"},
    {"Qwen/Qwen1.5-MoE-A2.7B", 14'315'784'192,
     R"({"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632,
     "moe_intermediate_size": 1408, "num_experts": 60, "shared_expert_intermediate_size": 5632,
     "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_attention_heads": 16,
     "num_key_value_heads": 16, "vocab_size": 151936})"},
    {"Qwen/Qwen3-30B-A3B", 30'532'122'624,
     R"({"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
     "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
     "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
     "vocab_size": 151936, "mlp_only_layers": []})"},
    {"Qwen/Qwen3-235B-A22B", 235'093'634'560,
     R"({"model_type": "qwen3_moe", "hidden_size": 4096, "intermediate_size": 12288,
     "moe_intermediate_size": 1536, "num_experts": 128, "num_experts_per_tok": 8,
     "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
     "vocab_size": 151936, "mlp_only_layers": []})"},
    {"google/gemma-7b", 8'537'680'896,
     R"({"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576,
     "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
     "head_dim": 256, "vocab_size": 256000})"},
    {"google/gemma-2-2b", 2'614'341'888,
     R"({"model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216,
     "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
     "vocab_size": 256000, "sliding_window": 4096})"},
    {"google/gemma-2-9b", 9'241'705'984,
     R"({"model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336,
     "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
     "head_dim": 256, "vocab_size": 256000, "sliding_window": 4096})"},
    {"google/gemma-2-27b", 27'227'128'320,
     R"({"model_type": "gemma2", "hidden_size": 4608, "intermediate_size": 36864,
     "num_hidden_layers": 46, "num_attention_heads": 32, "num_key_value_heads": 16,
     "head_dim": 128, "vocab_size": 256000, "sliding_window": 4096})"},
    {"google/gemma-3-1b-it", 999'885'952,
     R"({"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912,
     "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
     "vocab_size": 262144, "sliding_window": 512, "sliding_window_pattern": 6})"},
    {"google/gemma-3-4b-it", 4'300'079'472,
     R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560,
     "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}, "vision_config": {"hidden_size": 1152}})"},
    {"google/gemma-3-27b-it", 27'432'406'640,
     R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 5376,
     "intermediate_size": 21504, "num_hidden_layers": 62, "num_attention_heads": 32,
     "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024}, "vision_config": {"hidden_size": 1152}})"},
    {"microsoft/Phi-3-mini-4k-instruct", 3'821'079'552,
     R"({"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
     "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
     "vocab_size": 32064, "sliding_window": 2047, "tie_word_embeddings": false})"},
    {"microsoft/phi-4", 14'659'507'200,
     R"({"model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920,
     "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 10,
     "vocab_size": 100352, "sliding_window": null, "tie_word_embeddings": false})"},
    {"deepseek-ai/DeepSeek-V2-Lite", 15'706'484'224,
     R"({"model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944,
     "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
     "num_experts_per_tok": 6, "first_k_dense_replace": 1, "num_hidden_layers": 27,
     "num_attention_heads": 16, "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
     "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400})"},
    {"deepseek-ai/DeepSeek-V2", 235'741'434'880,
     R"({"model_type": "deepseek_v2", "hidden_size": 5120, "intermediate_size": 12288,
     "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 2,
     "num_experts_per_tok": 6, "first_k_dense_replace": 1, "num_hidden_layers": 60,
     "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
     "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400})"},
    // The published 671 B are the model without its layer for speculative decoding.
    {"deepseek-ai/DeepSeek-V3", 671'026'419'200,
     R"({"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
     "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
     "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_hidden_layers": 61,
     "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
     "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
     "num_nextn_predict_layers": 1, "quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
     "activation_scheme": "dynamic", "weight_block_size": [128, 128]}})"},
    {"openai/gpt-oss-20b", 20'914'757'184,
     R"({"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
     "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
     "vocab_size": 201088, "num_local_experts": 32, "num_experts_per_tok": 4,
     "sliding_window": 128, "quantization_config": {"quant_method": "mxfp4",
     "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
     "model.embed_tokens", "lm_head"]}})"},
    {"openai/gpt-oss-120b", 116'829'156'672,
     R"({"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
     "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
     "vocab_size": 201088, "num_local_experts": 128, "num_experts_per_tok": 4,
     "sliding_window": 128, "quantization_config": {"quant_method": "mxfp4",
     "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
     "model.embed_tokens", "lm_head"]}})"},
    {"meta-llama/Llama-4-Scout-17B-16E", 108'641'793'536,
     R"({"model_type": "llama4", "text_config": {"model_type": "llama4_text", "hidden_size": 5120,
     "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48,
     "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048,
     "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
     "attention_chunk_size": 8192}, "vision_config": {"hidden_size": 1408}})"},
    {"meta-llama/Llama-4-Maverick-17B-128E", 401'583'781'376,
     R"({"model_type": "llama4", "text_config": {"model_type": "llama4_text", "hidden_size": 5120,
     "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48,
     "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048,
     "num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
     "attention_chunk_size": 8192}, "vision_config": {"hidden_size": 1408}})"},
};

ModelSpec published(std::string_view repository) {
  for (const Published& model : kPublished) {
    if (model.repository == repository) return spec_of(model.config);
  }
  ADD_FAILURE() << repository;
  return {};
}

TEST(PublishedModels, HaveThePublishedNumberOfParameters) {
  EXPECT_GE(std::size(kPublished), 25u);
  for (const Published& model : kPublished) {
    EXPECT_EQ(spec_of(model.config).num_parameters(), model.parameters) << model.repository;
  }
}

// "Insights into DeepSeek-V3" (arXiv 2505.09343), table 1, KB of 1,000 bytes; gpt-oss's layers with
// a window hold 128 tokens.
TEST(PublishedModels, KvBytesPerToken) {
  EXPECT_EQ(published("deepseek-ai/DeepSeek-V3").kv_bytes_per_token(), 70'272);
  EXPECT_EQ(published("deepseek-ai/DeepSeek-V3").kv_bytes_per_token(8), 70'272);  // on every GPU
  EXPECT_EQ(published("Qwen/Qwen2.5-72B").kv_bytes_per_token(), 327'680);
  EXPECT_EQ(published("meta-llama/Llama-3.1-405B").kv_bytes_per_token(), 516'096);
  const ModelSpec oss = published("openai/gpt-oss-20b");
  EXPECT_EQ(oss.kv_bytes_per_token(), 24 * 2 * 512 * 2);
  EXPECT_EQ(oss.kv_bytes_per_token(1, {.context_tokens = 1024}), (12 + 12 / 8.0) * 2048);
  EXPECT_EQ(oss.kv_bytes_per_token(1, {.context_tokens = 100}), 24 * 2048);  // shorter than it
  EXPECT_EQ(oss.kv_bytes_per_token(1, {.context_tokens = 1024, .least_share = 0.5}), 18 * 2048);
}

TEST(PublishedModels, LayersWithWindows) {
  const auto windows = [](std::string_view repository) {
    std::string text;
    for (const KvWindow& w : published(repository).windows) {
      text += fmt::format("{}x{} ", w.num_layers, w.tokens);
    }
    return text;
  };
  EXPECT_EQ(windows("mistralai/Mistral-7B-v0.1"), "32x4096 ");
  EXPECT_EQ(windows("mistralai/Mistral-Nemo-Base-2407"), "");
  EXPECT_EQ(windows("mistralai/Mixtral-8x7B-v0.1"), "");
  EXPECT_EQ(windows("Qwen/Qwen2.5-72B"), "");
  EXPECT_EQ(windows("google/gemma-2-9b"), "21x4096 ");
  EXPECT_EQ(windows("google/gemma-3-27b-it"), "52x1024 ");  // every sixth of 62 is full
  EXPECT_EQ(windows("openai/gpt-oss-120b"), "18x128 ");
  EXPECT_EQ(windows("meta-llama/Llama-4-Scout-17B-16E"), "36x8192 ");
  EXPECT_EQ(windows("microsoft/Phi-3-mini-4k-instruct"), "32x2047 ");
}

// "gpt-oss-120b & gpt-oss-20b Model Card" (OpenAI, 2025), table 1: checkpoints of 60.8 and 12.8
// GiB. DeepSeek-V3's card gives 671 B weights, mostly of one byte.
TEST(PublishedModels, QuantisedCheckpointsAreAsLargeAsPublished) {
  const auto gib = [](std::string_view repository) {
    return fmt::format("{:.1f}", double(published(repository).weight_bytes()) / (1 << 30));
  };
  EXPECT_EQ(gib("openai/gpt-oss-20b"), "12.8");
  EXPECT_EQ(gib("openai/gpt-oss-120b"), "60.8");
  const ModelSpec v3 = published("deepseek-ai/DeepSeek-V3");
  const double per_weight = double(v3.weight_bytes()) / double(v3.num_parameters());
  EXPECT_GT(per_weight, 1);
  EXPECT_LT(per_weight, 1.01);
}

// Llama-3.1-8B with a quantization_config.
ModelSpec llama(std::string_view quantization) {
  return spec_of(fmt::format(R"({{"model_type": "llama", "hidden_size": 4096,
     "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
     "num_key_value_heads": 8, "vocab_size": 128256, "quantization_config": {}}})",
                             quantization));
}

constexpr int64_t kLlamaLinear = 32 * (4096 * (2 * 4096 + 2 * 1024) + int64_t{3} * 4096 * 14336);
constexpr int64_t kLlamaOutputs = 32 * (4096 + 1024 + 1024 + 4096 + 14336 + 14336 + 4096);
constexpr int64_t kLlamaInputs = 32 * (5 * 4096 + 4096 + 14336);
constexpr int64_t kLlamaRest = (8'030'261'248 - kLlamaLinear) * 2;  // embeddings, norms, lm_head

struct Quantised {
  const char* config;
  int64_t linear_bytes;
};

TEST(QuantisedWeights, BytesOfEveryFormat) {
  const Quantised cases[] = {
      // quantization_config, bytes of the linear layers
      {R"({"quant_method": "fp8"})", kLlamaLinear + 4 * 7 * 32},
      {R"({"quant_method": "fp8", "weight_block_size": [128, 128]})",
       kLlamaLinear + kLlamaLinear / (128 * 128) * 4},
      {R"({"quant_method": "fbgemm_fp8"})", kLlamaLinear + kLlamaOutputs * 4},
      {R"({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]})",
       kLlamaLinear + 4 * 7 * 32},
      {R"({"quant_algo": "NVFP4", "group_size": 16})", kLlamaLinear / 2 + kLlamaLinear / 16},
      {R"({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true})",
       kLlamaLinear / 2 + kLlamaLinear / 128 * 5 / 2},
      {R"({"quant_method": "gptq", "bits": 8, "group_size": -1})",
       kLlamaLinear + kLlamaOutputs * 3 + kLlamaInputs * 4},
      {R"({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights":
          {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true},
          "input_activations": {"num_bits": 8}}}, "ignore": ["lm_head"]})",
       kLlamaLinear + kLlamaOutputs * 2},
      {R"({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights":
          {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}}}})",
       kLlamaLinear / 2 + kLlamaLinear / 128 * 2},
  };
  for (const Quantised& c : cases) {
    EXPECT_EQ(llama(c.config).weight_bytes(), kLlamaRest + c.linear_bytes) << c.config;
    EXPECT_EQ(llama(c.config).num_parameters(), 8'030'261'248) << c.config;
  }
}

// hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4: 5.73 GB.
TEST(QuantisedWeights, AwqLlamaIsAsLargeAsPublished) {
  const ModelSpec awq = llama(R"({"quant_method": "awq", "bits": 4, "group_size": 128})");
  EXPECT_EQ(fmt::format("{:.2f}", double(awq.weight_bytes()) / 1e9), "5.73");
}

TEST(QuantisedWeights, IgnoredModulesKeepTheirType) {
  const int64_t all = llama(R"({"quant_method": "fp8"})").weight_bytes();
  const auto extra = [&](std::string_view list) {
    return llama(fmt::format(R"({{"quant_method": "fp8", "modules_to_not_convert": {}}})", list))
               .weight_bytes() -
           all;
  };
  const int64_t q = 4096 * 4096 - 4, down = 4096 * 14336 - 4, attention = 4096 * 10240 - 16;
  EXPECT_EQ(extra(R"(["lm_head", "model.layers.0.mlp.gate", "input_layernorm"])"), 0);
  EXPECT_EQ(extra(R"(["model.layers.3.self_attn.q_proj"])"), q);
  EXPECT_EQ(extra(R"(["language_model.model.layers.3.self_attn"])"), attention);
  EXPECT_EQ(extra(R"(["model.layers.1"])"), attention + 3 * down);  // not 10 to 19
  EXPECT_EQ(extra(R"(["re:.*down_proj$", "re:model\\.layers\\.0\\.mlp.*"])"), 34 * down);
  const ModelSpec odd = llama(R"x({"quant_method": "fp8", "ignored_layers": ["re:(a|b)"]})x");
  EXPECT_THAT(odd.notes, ::testing::ElementsAre(HasSubstr("'re:(a|b)' is taken to ignore no")));
}

TEST(QuantisedWeights, WhatIsUnknownNamesTheRemedy) {
  try {
    llama(R"({"quant_method": "bitsandbytes"})");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("config.json: quantization_config.quant_method: 'bits"));
    EXPECT_THAT(error.what(), HasSubstr("config.json of the unquantised checkpoint"));
  }
}

TEST(Dtypes, Fp8WeightsAndKv) {
  ModelSpec model = load_model_spec("Llama-3.1-8B");
  apply_dtypes(model, "fp8", "fp8");
  EXPECT_EQ(model.weight_bytes(), kLlamaRest + kLlamaLinear + 4 * 7 * 32);
  EXPECT_EQ(model.kv_bytes_per_token(), 65536);
  EXPECT_EQ(adapter_bytes(model, LoraTargets("q"), 8), 8 * 32 * 8192 * 2);  // adapters stay
  EXPECT_THROW(apply_dtypes(model, "fp8", "auto"), InputError);
  apply_dtypes(model, "float32", "auto");
  EXPECT_EQ(model.kv_bytes_per_token(), 262144);
}

TEST(LoraShapes, ModulesOfPhi3AndDeepSeek) {
  const ModelSpec phi = published("microsoft/phi-4");
  EXPECT_EQ(lora_parameters_per_rank(phi, LoraTargets()),
            40 * (5120 + 7680 + 2 * 5120 + 5120 + 2 * 17920 + 17920 + 5120));
  EXPECT_EQ(lora_parameters_per_rank(phi, LoraTargets("qkv_proj"), 2), 40 * (5120 + 3840));
  try {
    LoraTargets("q,o").require_modules_of(phi);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("has no module 'q_proj'; it has qkv_proj, o_proj, gate_up"));
  }
  EXPECT_NO_THROW(LoraTargets("all-linear,lm_head").require_modules_of(phi));
  const ModelSpec v3 = published("deepseek-ai/DeepSeek-V3");
  EXPECT_EQ(lora_parameters_per_rank(v3, LoraTargets("q_b_proj,kv_b_proj"), 8),
            61 * (1536 + 128 * 192 / 8 + 512 + 128 * 256 / 8));
  EXPECT_EQ(lora_parameters_per_rank(v3, LoraTargets("q_a_proj,kv_a_proj_with_mqa"), 8),
            61 * (7168 + 1536 + 7168 + 576));  // whole on every GPU
}

}  // namespace
}  // namespace loratory::sim
