#include "scheduler_sim/cost/model_spec.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/cost/lora_shapes.hpp"
#include "tests/scheduler_sim/cost/cost_testing.hpp"

namespace loratory::sim {
namespace {

using ::testing::HasSubstr;

// "total_parameters" / total_size of the published safetensors checkpoints.
TEST(ModelPresets, ParameterCountsAreThePublishedOnes) {
  EXPECT_EQ(load_model_spec("Llama-3.1-8B").num_parameters(), 8'030'261'248);
  EXPECT_EQ(load_model_spec("Llama-3-70B").num_parameters(), 70'553'706'496);
  EXPECT_EQ(load_model_spec("Llama-3.2-1B").num_parameters(), 1'235'814'400);
  EXPECT_EQ(load_model_spec("Llama-3.2-3B").num_parameters(), 3'212'749'824);
  EXPECT_EQ(load_model_spec("Llama-2-7B").num_parameters(), 6'738'415'616);
  EXPECT_EQ(load_model_spec("Llama-2-13B").num_parameters(), 13'015'864'320);
  EXPECT_EQ(load_model_spec("Mistral-7B").num_parameters(), 7'248'023'552);
  EXPECT_EQ(load_model_spec("Qwen2.5-7B").num_parameters(), 7'615'616'512);
  EXPECT_EQ(load_model_spec("Qwen2.5-14B").num_parameters(), 14'770'033'664);
  EXPECT_EQ(load_model_spec("Qwen2.5-32B").num_parameters(), 32'763'876'352);
  EXPECT_EQ(load_model_spec("Qwen3-4B").num_parameters(), 4'022'468'096);
  EXPECT_EQ(load_model_spec("Qwen3-8B").num_parameters(), 8'190'735'360);
  EXPECT_EQ(load_model_spec("Qwen3-32B").num_parameters(), 32'762'123'264);
}

TEST(ModelPresets, KvBytesPerToken) {
  EXPECT_EQ(load_model_spec("Llama-3.1-8B").kv_bytes_per_token(), 131072);
  EXPECT_EQ(load_model_spec("Qwen2.5-7B").kv_bytes_per_token(), 57344);
  EXPECT_EQ(load_model_spec("qwen3-8b").kv_bytes_per_token(), 147456);
}

TEST(ModelSpec, TensorParallelSharesMatricesAndReplicatesFewKvHeads) {
  const ModelSpec model = load_model_spec("Qwen2.5-7B");  // 28 heads, 4 KV heads
  EXPECT_EQ(model.kv_size(4), 128);
  EXPECT_EQ(model.kv_bytes_per_token(4), model.kv_bytes_per_token() / 4);
  EXPECT_GT(4 * model.weight_bytes(4), model.weight_bytes());  // norms are replicated
  const ModelSpec llama = load_model_spec("Llama-3.1-8B");
  EXPECT_EQ(llama.kv_size(16), 128);  // 8 KV heads on 16 GPUs: one each
  EXPECT_EQ(llama.kv_bytes_per_token(16), llama.kv_bytes_per_token(8));
}

TEST(ModelSpec, TpThatDoesNotDivideTheHeadsIsAnError) {
  const ModelSpec model = load_model_spec("Qwen2.5-7B");
  EXPECT_NO_THROW(model.require_divisible(4));
  EXPECT_THROW(model.require_divisible(3), InputError);
  EXPECT_THROW(model.require_divisible(8), InputError);  // 28 heads
}

constexpr const char* kLlamaConfig = R"({"model_type": "llama", "hidden_size": 4096,
  "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": false,
  "head_dim": null, "rope_theta": 5e5, "rope_scaling": {"factor": 8.0}, "torch_dtype": "bfloat16"})";

std::string error_of(const std::string& text) {
  try {
    spec_of(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelSpecOf, ReadsLlama) {
  const ModelSpec model = spec_of(kLlamaConfig);
  EXPECT_EQ(model.num_parameters(), 8'030'261'248);
  EXPECT_EQ(model.head_dim, 128);
  EXPECT_EQ(model.dtype_bytes, 2);
  EXPECT_EQ(model.name, "config.json");
}

TEST(ModelSpecOf, DefaultsThatDependOnTheFile) {
  const std::string no_kv =
      with(kLlamaConfig, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": null");
  EXPECT_EQ(spec_of(no_kv).num_kv_heads, 32);
  const std::string new_dtype =
      with(kLlamaConfig, "\"torch_dtype\": \"bfloat16\"", "\"dtype\": \"float32\"");
  EXPECT_EQ(spec_of(new_dtype).dtype_bytes, 4);
  const std::string own_head = with(kLlamaConfig, "\"head_dim\": null", "\"head_dim\": 64");
  EXPECT_EQ(spec_of(own_head).q_size(), 2048);
  const std::string qwen2 = with(kLlamaConfig, "\"llama\"", "\"qwen2\"");
  EXPECT_TRUE(spec_of(qwen2).qkv_bias);
  EXPECT_FALSE(spec_of(qwen2).o_bias);
  const std::string nested = std::string("{\"text_config\": ") + kLlamaConfig + "}";
  EXPECT_EQ(spec_of(nested).hidden, 4096);
}

// The reference cannot compute these; their memory and time follow from their sizes alone.
TEST(ModelSpecOf, ModelsThatTheReferenceDoesNotCompute) {
  const auto windowed = [](const char* type) {
    return spec_of(
        with(kLlamaConfig, "\"llama\"", fmt::format("\"{}\", \"sliding_window\": 4096", type)));
  };
  EXPECT_EQ(windowed("mistral").kv_size(), 8 * 128);
  EXPECT_EQ(windowed("phi3").kv_size(), 8 * 128);
  EXPECT_EQ(windowed("gemma").kv_size(), 8 * 256);  // its heads have 256 unless the file says else
  const std::string longrope = with(kLlamaConfig, "\"factor\": 8.0", "\"rope_type\": \"longrope\"");
  EXPECT_EQ(spec_of(longrope).num_parameters(), 8'030'261'248);
}

TEST(ModelSpecOf, MlpBiasesAreParameters) {
  const std::string biased = with(kLlamaConfig, "\"head_dim\": null", "\"mlp_bias\": true");
  EXPECT_EQ(spec_of(biased).num_parameters(), 8'030'261'248 + 32 * (2 * 14336 + 4096));
}

constexpr const char* kMixtral = R"({"model_type": "mixtral", "hidden_size": 4096,
  "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
  "num_experts_per_tok": 2, "torch_dtype": "bfloat16"})";

TEST(ModelSpecOf, MixtureOfExperts) {
  EXPECT_EQ(spec_of(kMixtral).num_parameters(), 46'702'792'704);
}

// Qwen1.5-MoE-A2.7B, 14.3 B parameters with its shared expert.
TEST(ModelSpecOf, TheSharedExpertIsCounted) {
  const ModelSpec model = spec_of(R"({"model_type": "qwen2_moe", "hidden_size": 2048,
    "intermediate_size": 5632, "moe_intermediate_size": 1408, "num_experts": 60,
    "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936})");
  EXPECT_EQ(model.shared_intermediate, 5632);
  EXPECT_EQ(model.num_parameters(), 14'315'784'192);
}

TEST(ModelSpecOf, DenseLayersAmongExpertLayers) {
  const std::string mixed =
      with(with(kMixtral, "mixtral", "qwen3_moe"), "\"vocab_size\"",
           "\"moe_intermediate_size\": 768, \"mlp_only_layers\": [3], \"vocab_size\"");
  const ModelSpec all = spec_of(with(mixed, "[3]", "[]")), one_dense = spec_of(mixed);
  EXPECT_EQ(one_dense.num_dense_layers, 1);
  const int64_t experts = 8 * (3 * 4096 * 768 + 4096), dense = 3 * 4096 * 14336;
  EXPECT_EQ(one_dense.num_parameters() - all.num_parameters(), dense - experts);
  EXPECT_EQ(lora_parameters_per_rank(one_dense, LoraTargets("up")) -
                lora_parameters_per_rank(all, LoraTargets("up")),
            (4096 + 14336) - 8 * (4096 + 768));
}

TEST(ModelSpecOf, ErrorsNameFileAndKey) {
  EXPECT_THAT(error_of("{"), HasSubstr("config.json: is not JSON"));
  EXPECT_THAT(error_of(with(kLlamaConfig, "\"hidden_size\": 4096,", "")),
              HasSubstr("config.json: hidden_size: is missing"));
  EXPECT_THAT(error_of(with(kLlamaConfig, "\"llama\"", "\"gpt2\"")),
              HasSubstr("if its layers have Llama's form, write \"llama\""));
  EXPECT_THAT(error_of(with(kLlamaConfig, "bfloat16", "int3")), HasSubstr("torch_dtype"));
  EXPECT_THAT(error_of(with(kLlamaConfig, "\"head_dim\": null", "\"quantization_config\": {}")),
              HasSubstr("quantization_config"));
  EXPECT_THAT(error_of(with(kLlamaConfig, "\"head_dim\": null", "\"kv_lora_rank\": 512")),
              HasSubstr("config.json: kv_lora_rank: "));
}

TEST(ModelSpec, UnknownNameListsThePresets) {
  EXPECT_THROW(load_model_spec("no/such/config.json"), InputError);
  try {
    load_model_spec("Llama-9");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Qwen2.5-7B"));
  }
}

}  // namespace
}  // namespace loratory::sim
