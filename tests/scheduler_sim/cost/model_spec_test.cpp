#include "scheduler_sim/cost/model_spec.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "reference/base/input_error.hpp"

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

constexpr const char* kLlama = R"({"model_type": "llama", "hidden_size": 4096,
  "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": false,
  "head_dim": null, "rope_theta": 5e5, "rope_scaling": {"factor": 8.0}, "torch_dtype": "bfloat16"})";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string error_of(const std::string& text) {
  try {
    parse_model_config(text, "config.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelConfig, ReadsLlama) {
  const ModelSpec model = parse_model_config(kLlama, "config.json");
  EXPECT_EQ(model.num_parameters(), 8'030'261'248);
  EXPECT_EQ(model.head_dim, 128);
  EXPECT_EQ(model.dtype_bytes, 2);
}

TEST(ModelConfig, DefaultsThatDependOnTheFile) {
  const std::string no_kv =
      with(kLlama, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": null");
  EXPECT_EQ(parse_model_config(no_kv, "c").num_kv_heads, 32);
  const std::string new_dtype =
      with(kLlama, "\"torch_dtype\": \"bfloat16\"", "\"dtype\": \"float32\"");
  EXPECT_EQ(parse_model_config(new_dtype, "c").dtype_bytes, 4);
  const std::string own_head = with(kLlama, "\"head_dim\": null", "\"head_dim\": 64");
  EXPECT_EQ(parse_model_config(own_head, "c").q_size(), 2048);
  const std::string qwen2 = with(kLlama, "\"llama\"", "\"qwen2\"");
  EXPECT_TRUE(parse_model_config(qwen2, "c").qkv_bias);
  EXPECT_FALSE(parse_model_config(qwen2, "c").o_bias);
  const std::string nested = std::string("{\"text_config\": ") + kLlama + "}";
  EXPECT_EQ(parse_model_config(nested, "c").hidden, 4096);
}

TEST(ModelConfig, MixtureOfExperts) {
  const std::string mixtral = R"({"model_type": "mixtral", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "torch_dtype": "bfloat16"})";
  EXPECT_EQ(parse_model_config(mixtral, "c").num_parameters(), 46'702'792'704);
}

TEST(ModelConfig, ErrorsNameFileAndKey) {
  EXPECT_THAT(error_of("{"), HasSubstr("config.json: is not JSON"));
  EXPECT_THAT(error_of("{\"a\": 1e400}"), HasSubstr("config.json: has a number outside"));
  EXPECT_THAT(error_of("[]"), HasSubstr("config.json: must be a JSON object"));
  EXPECT_THAT(error_of(with(kLlama, "\"hidden_size\": 4096,", "")),
              HasSubstr("config.json: hidden_size: is missing"));
  for (const char* bad : {"-1", "0", "4096.5", "\"4096\"", "1e40", "true", "[1]"}) {
    EXPECT_THAT(error_of(with(kLlama, "4096", bad)), HasSubstr("config.json: hidden_size: must be"))
        << bad;
  }
  EXPECT_THAT(error_of(with(kLlama, "\"llama\"", "\"gpt2\"")), HasSubstr("model_type"));
  EXPECT_THAT(error_of(with(kLlama, "bfloat16", "int3")), HasSubstr("torch_dtype"));
  EXPECT_THAT(error_of(with(kLlama, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 5")),
              HasSubstr("num_key_value_heads"));
  EXPECT_THAT(error_of(with(kLlama, "\"head_dim\": null", "\"quantization_config\": {}")),
              HasSubstr("quantization_config"));
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
