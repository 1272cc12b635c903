#include "reference/model/model_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "reference/base/input_error.hpp"
#include "reference/model/model_presets.hpp"

namespace loratory::reference {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;

json llama() {
  return {{"model_type", "llama"},    {"hidden_size", 32},
          {"intermediate_size", 48},  {"num_hidden_layers", 3},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"vocab_size", 100},        {"rope_theta", 500000.0},
          {"rms_norm_eps", 1e-5},     {"max_position_embeddings", 4096}};
}

json moe(const std::string& type) {
  json config = llama();
  config["model_type"] = type;
  config["num_experts"] = 6;
  config["num_experts_per_tok"] = 2;
  config["moe_intermediate_size"] = 24;
  return config;
}

// `config` with the fields of `changes` put over it.
json with(json config, const json& changes) {
  config.update(changes);
  return config;
}

ModelConfig parse(const json& config) { return parse_model_config(config.dump(), "config.json"); }

std::string refusal_of_text(const std::string& text) {
  try {
    require_computed(parse_model_config(text, "config.json"));
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}
std::string refusal(const json& config) { return refusal_of_text(config.dump()); }

TEST(ModelConfig, ReadsLlama) {
  const ModelConfig c = parse(llama());
  EXPECT_EQ(c.num_layers, 3);
  EXPECT_EQ(c.hidden, 32);
  EXPECT_EQ(c.intermediate, 48);
  EXPECT_EQ(c.num_heads, 4);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_EQ(c.vocab, 100);
  EXPECT_EQ(c.max_position_embeddings, 4096);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.rope.theta, 500000);
  EXPECT_EQ(c.rope.scaling, RopeScaling::none);
  EXPECT_FALSE(c.tied_embeddings || c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
  EXPECT_EQ(c.num_experts, 0);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(2));
}

TEST(ModelConfig, KeepsSwitchesApart) {
  const ModelConfig c = parse(with(llama(), {{"tie_word_embeddings", true},
                                             {"attention_bias", true},
                                             {"mlp_bias", true},
                                             {"head_dim", 10},
                                             {"eos_token_id", {7, 9}}}));
  EXPECT_TRUE(c.tied_embeddings && c.qkv_bias && c.o_bias && c.mlp_bias);
  EXPECT_EQ(c.head_dim, 10);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(7, 9));
  EXPECT_TRUE(parse(with(llama(), {{"eos_token_id", nullptr}})).eos_token_ids.empty());
}

TEST(ModelConfig, FillsInWhatEachFamilyMeansBySilence) {
  json bare = llama();
  for (const char* key : {"num_key_value_heads", "rms_norm_eps", "rope_theta", "head_dim",
                          "max_position_embeddings"}) {
    bare.erase(key);
  }
  bare["num_attention_heads"] = 32;
  bare["hidden_size"] = 128;
  const auto of = [&](const char* type) { return parse(with(bare, {{"model_type", type}})); };
  EXPECT_EQ(of("llama").num_kv_heads, 32);
  EXPECT_EQ(of("llama").max_position_embeddings, 2048);
  EXPECT_EQ(of("llama").head_dim, 4);
  const ModelConfig qwen2 = of("qwen2");
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.qk_norm);
  EXPECT_TRUE(qwen2.eos_token_ids.empty());
  EXPECT_EQ(qwen2.rope.theta, 10000);
  EXPECT_EQ(qwen2.rms_norm_eps, 1e-6);
  const ModelConfig qwen3 = of("qwen3");
  EXPECT_TRUE(!qwen3.qkv_bias && qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128);
  bare["sliding_window"] = nullptr;
  EXPECT_EQ(of("mistral").num_kv_heads, 8);
  bare.update({{"num_local_experts", 4}, {"num_experts_per_tok", 2}});
  EXPECT_EQ(of("mixtral").rope.theta, 1e6);
  EXPECT_EQ(of("mixtral").rms_norm_eps, 1e-5);
}

TEST(ModelConfig, ReadsExperts) {
  const ModelConfig mixtral =
      parse(with(moe("mixtral"),
                 {{"num_experts", nullptr}, {"num_local_experts", 6}, {"intermediate_size", 20}}));
  EXPECT_EQ(mixtral.num_experts, 6);
  EXPECT_EQ(mixtral.experts_per_token, 2);
  EXPECT_EQ(mixtral.expert_intermediate, 20);
  EXPECT_TRUE(mixtral.norm_topk_prob);
  EXPECT_THAT(mixtral.layer_has_experts, ElementsAre(true, true, true));
  EXPECT_EQ(base_model_shapes(mixtral).intermediate, 0);

  const ModelConfig qwen = parse(moe("qwen3_moe"));
  EXPECT_EQ(qwen.expert_intermediate, 24);
  EXPECT_FALSE(qwen.norm_topk_prob);
  EXPECT_TRUE(parse(with(moe("qwen3_moe"), {{"norm_topk_prob", true}})).norm_topk_prob);
  const json sparse = {
      {"decoder_sparse_step", 2}, {"num_hidden_layers", 4}, {"mlp_only_layers", {3}}};
  EXPECT_THAT(parse(with(moe("qwen3_moe"), sparse)).layer_has_experts,
              ElementsAre(false, true, false, false));
  EXPECT_EQ(base_model_shapes(parse(with(moe("qwen3_moe"), sparse))).intermediate, 48);
  const ModelConfig qwen2 = parse(with(moe("qwen2_moe"), {{"shared_expert_intermediate_size", 0}}));
  EXPECT_EQ(qwen2.num_experts, 6);
  EXPECT_FALSE(qwen2.norm_topk_prob);
}

TEST(ModelConfig, ReadsRopeScalingInOldAndNewForm) {
  const json llama3 = {{"factor", 8},
                       {"low_freq_factor", 1},
                       {"high_freq_factor", 4},
                       {"original_max_position_embeddings", 64}};
  const json old_form = {{"rope_scaling", with(llama3, {{"rope_type", "llama3"}})}};
  const json new_form = {
      {"rope_theta", nullptr},
      {"rope_parameters", with(llama3, {{"rope_type", "llama3"}, {"rope_theta", 500000}})}};
  for (const json& form : {old_form, new_form}) {
    const RopeConfig rope = parse(with(llama(), form)).rope;
    EXPECT_EQ(rope.scaling, RopeScaling::llama3);
    EXPECT_EQ(rope.theta, 500000);
    EXPECT_EQ(rope.factor, 8);
    EXPECT_EQ(rope.low_freq_factor, 1);
    EXPECT_EQ(rope.high_freq_factor, 4);
    EXPECT_EQ(rope.original_max_position_embeddings, 64);
  }
  const auto type = [](const char* name) {
    return parse(with(llama(), {{"rope_scaling", {{"type", name}, {"factor", 2}}}})).rope;
  };
  EXPECT_EQ(type("linear").scaling, RopeScaling::linear);
  EXPECT_EQ(type("dynamic").scaling, RopeScaling::dynamic);
  EXPECT_EQ(type("dynamic").original_max_position_embeddings, 4096);
  EXPECT_EQ(type("default").scaling, RopeScaling::none);
}

TEST(ModelConfig, ReadsYarn) {
  const auto yarn = [](const json& fields) {
    return parse(with(llama(), {{"rope_scaling", with({{"rope_type", "yarn"}}, fields)}})).rope;
  };
  EXPECT_EQ(yarn({{"factor", 4}}).beta_fast, 32);
  EXPECT_EQ(yarn({{"factor", 4}}).original_max_position_embeddings, 4096);
  EXPECT_EQ(yarn({{"factor", 4}, {"beta_fast", 0}, {"beta_slow", 2}}).beta_slow, 2);
  EXPECT_EQ(yarn({{"original_max_position_embeddings", 1024}}).factor, 4);
  EXPECT_EQ(yarn({{"factor", 4}, {"attention_factor", 1.25}}).attention_factor, 1.25);
  const double both = yarn({{"factor", 4}, {"mscale", 2}, {"mscale_all_dim", 3}}).attention_factor;
  EXPECT_NEAR(both, (1 + 0.2 * std::log(4.0)) / (1 + 0.3 * std::log(4.0)), 0x1p-50);
}

struct BadField {
  json changes;
  std::string error;
};

TEST(ModelConfig, NamesFileKeyAndRule) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 2}};
  const auto scaling = [](const json& fields) -> json { return {{"rope_scaling", fields}}; };
  const std::vector<BadField> cases{
      {{{"model_type", "gpt2"}}, "config.json: model_type: 'gpt2' is not a supported model"},
      {{{"model_type", nullptr}}, "model_type: ''"},
      {{{"hidden_size", nullptr}}, "hidden_size: is missing"},
      {{{"hidden_size", 0}}, "hidden_size: must be an integer from 1"},
      {{{"hidden_size", -4}}, "hidden_size: must be"},
      {{{"hidden_size", 4.5}}, "hidden_size: must be"},
      {{{"hidden_size", "32"}}, "hidden_size: must be"},
      {{{"hidden_size", 1e300}}, "hidden_size: must be"},
      {{{"hidden_size", 18446744073709551615U}}, "hidden_size: must be"},
      {{{"hidden_size", 30}}, "hidden_size: is not a multiple"},
      {{{"vocab_size", 0}}, "vocab_size: must be"},
      {{{"intermediate_size", 0}}, "intermediate_size: must be"},
      {{{"num_hidden_layers", 5000}}, "num_hidden_layers: must be an integer from 1 to 4096"},
      {{{"num_attention_heads", 0}}, "num_attention_heads: must be"},
      {{{"num_key_value_heads", 3}}, "num_key_value_heads: 3 does not divide"},
      {{{"head_dim", 7}}, "head_dim: 7 is odd"},
      {{{"max_position_embeddings", 0}}, "max_position_embeddings: must be"},
      {{{"rms_norm_eps", 0}}, "rms_norm_eps: must be a number above 0"},
      {{{"rms_norm_eps", "x"}}, "rms_norm_eps: must be"},
      {{{"rope_theta", 1}}, "rope_theta: must be a number above 1"},
      {{{"rope_theta", 1e31}}, "rope_theta: must be"},
      {{{"tie_word_embeddings", 1}}, "tie_word_embeddings: must be true or false"},
      {{{"hidden_act", "gelu"}}, "hidden_act: only silu"},
      {{{"hidden_act", 3}}, "hidden_act: must be a string"},
      {{{"quantization_config", json::object()}},
       "quantization_config.quant_method: '' is not supported"},
      {{{"layer_types", {"full_attention", "sliding_attention"}}}, "layer_types: only"},
      {{{"layer_types", 3}}, "layer_types: only"},
      {{{"eos_token_id", 100}}, "eos_token_id: must be an integer from 0 to 99"},
      {{{"eos_token_id", {1, "x"}}}, "eos_token_id: must be"},
      {{{"rope_scaling", 3}}, "rope_scaling: must be an object"},
      {scaling({{"rope_type", "longrope"}}), "rope_scaling.rope_type: 'longrope'"},
      {scaling({{"rope_type", "linear"}}), "rope_scaling.factor: is missing"},
      {scaling({{"rope_type", "linear"}, {"factor", 0}}), "rope_scaling.factor: must be"},
      {scaling({{"rope_type", "llama3"}, {"factor", 2}}),
       "rope_scaling.low_freq_factor: is missing"},
      {scaling({{"rope_type", "llama3"},
                {"factor", 2},
                {"low_freq_factor", 4},
                {"high_freq_factor", 4}}),
       "high_freq_factor: must be above"},
      {scaling({{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}),
       "partial_rotary_factor: only 1"},
      {{{"partial_rotary_factor", 0.5}}, "partial_rotary_factor: only 1"},
      {scaling(with(yarn, {{"truncate", false}})), "truncate: only true"},
      {scaling(with(yarn, {{"beta_fast", 1}})), "beta_fast: must be above beta_slow"},
      {scaling(with(yarn, {{"attention_factor", 0}})), "attention_factor: must be"},
      {{{"rope_parameters", {{"full_attention", json::object()}}}},
       "rope_parameters.full_attention: RoPE of its own"},
      {{{"hidden_size", 1 << 24},
        {"vocab_size", 1 << 24},
        {"num_hidden_layers", 4096},
        {"intermediate_size", 1 << 24}},
       "hidden_size: the sizes together"},
  };
  for (const BadField& bad : cases) {
    EXPECT_THAT(refusal(with(llama(), bad.changes)),
                testing::AllOf(testing::StartsWith("config.json: "), testing::HasSubstr(bad.error)))
        << bad.changes;
  }
}

// What transformers 5 takes: a window of Mistral unless it says null, one of Mixtral if it says so,
// one of Qwen if it says use_sliding_window, none of Llama.
TEST(ModelConfig, SlidingWindows) {
  const auto window = [](const char* type, const json& changes) {
    json config = llama();
    config["model_type"] = type;
    if (std::string_view(type) == "mixtral") config = with(moe(type), json::object());
    return parse(with(config, changes)).sliding_window;
  };
  EXPECT_EQ(window("mistral", json::object()), 4096);
  EXPECT_EQ(window("mistral", {{"sliding_window", nullptr}}), 0);
  EXPECT_EQ(window("mistral", {{"sliding_window", 8}}), 8);
  EXPECT_EQ(window("mixtral", json::object()), 0);
  EXPECT_EQ(window("mixtral", {{"sliding_window", 8}}), 8);
  EXPECT_EQ(window("qwen2", {{"sliding_window", 8}}), 0);
  EXPECT_EQ(window("qwen2", {{"use_sliding_window", true}}), 4096);
  EXPECT_EQ(window("qwen3", {{"use_sliding_window", true}, {"sliding_window", 8}}), 8);
  EXPECT_EQ(window("qwen3", {{"use_sliding_window", true}, {"sliding_window", nullptr}}), 0);
  EXPECT_EQ(window("llama", {{"sliding_window", 8}}), 0);
  const json mixed{"full_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(window("qwen2", {{"use_sliding_window", true}, {"layer_types", mixed}}), 4096);
}

TEST(ModelConfig, RefusesWhatOneFamilyDoesNotHave) {
  const auto error = [](const char* type, const json& changes) {
    return refusal(with(with(moe(type), {{"sliding_window", nullptr}}), changes));
  };
  using testing::HasSubstr;
  EXPECT_THAT(error("mistral", {{"sliding_window", 0}}), HasSubstr("sliding_window: must be"));
  EXPECT_THAT(error("mistral", {{"attention_bias", true}}), HasSubstr("attention_bias"));
  EXPECT_THAT(error("qwen3", {{"mlp_bias", true}}), HasSubstr("mlp_bias"));
  EXPECT_THAT(error("qwen2_moe", {{"shared_expert_intermediate_size", -1}}),
              HasSubstr("shared_expert_intermediate_size"));
  EXPECT_THAT(error("qwen3_moe", {{"num_experts_per_tok", 7}}), HasSubstr("7 of 6 experts"));
  EXPECT_THAT(error("qwen3_moe", {{"num_local_experts", 5}}), HasSubstr("differs from"));
  EXPECT_THAT(error("qwen3_moe", {{"num_experts", nullptr}}), HasSubstr("is missing"));
  EXPECT_THAT(error("qwen3_moe", {{"mlp_only_layers", {3}}}), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(error("qwen3_moe", {{"mlp_only_layers", 1}}), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(error("qwen3_moe", {{"decoder_sparse_step", 0}}), HasSubstr("decoder_sparse_step"));
}

// [1.53]: transformers' default is 5632; 0 says that there is none, and no other family has one.
TEST(ModelConfig, SharedExpertsOfQwen2Moe) {
  const auto size = [](const char* type, const json& changes) {
    return parse(with(moe(type), changes)).shared_expert_intermediate;
  };
  EXPECT_EQ(size("qwen2_moe", {{"shared_expert_intermediate_size", 20}}), 20);
  EXPECT_EQ(size("qwen2_moe", json::object()), 5632);
  EXPECT_EQ(size("qwen2_moe", {{"shared_expert_intermediate_size", 0}}), 0);
  EXPECT_EQ(size("qwen3_moe", {{"shared_expert_intermediate_size", 20}}), 0);
  const ModelConfig config =
      parse(with(moe("qwen2_moe"), {{"shared_expert_intermediate_size", 20}}));
  EXPECT_EQ(base_model_shapes(config).shared_expert_intermediate, 20);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.norm_topk_prob);
}

TEST(ModelConfig, SizesAreKnownOfModelsThatCannotBeComputed) {
  const auto parse_as = [](const char* type, const json& changes) {
    return parse(with(with(llama(), {{"model_type", type}}), changes));
  };
  const ModelConfig gemma = parse_as("gemma", {{"hidden_act", "gelu"}});
  EXPECT_EQ(gemma.not_computed,
            "config.json: model_type: only the sizes of 'gemma' are known, not its arithmetic");
  EXPECT_EQ(gemma.head_dim, 256);
  EXPECT_TRUE(gemma.tied_embeddings);
  EXPECT_THAT(parse_as("phi3", json::object()).not_computed, testing::HasSubstr("model_type"));
  const ModelConfig longrope = parse_as("llama", {{"rope_scaling", {{"rope_type", "longrope"}}}});
  EXPECT_EQ(longrope.hidden, 32);
  EXPECT_THAT(longrope.not_computed, testing::StartsWith("config.json: rope_scaling.rope_type: "));
  EXPECT_EQ(parse(llama()).not_computed, "");
}

TEST(ModelConfig, TheLanguageModelOfAMultimodalOneGivesSizes) {
  const ModelConfig config = parse({{"text_config", llama()}, {"vision_config", json::object()}});
  EXPECT_EQ(config.hidden, 32);
  EXPECT_THAT(config.not_computed, testing::StartsWith("config.json: text_config: "));
  EXPECT_THAT(refusal({{"text_config", with(llama(), {{"vocab_size", 0}})}}),
              testing::StartsWith("config.json: text_config.vocab_size: must be"));
}

TEST(ModelConfig, ReadsTheDtypeInOldAndNewForm) {
  EXPECT_EQ(parse(llama()).dtype, Dtype::bf16);
  EXPECT_EQ(parse(with(llama(), {{"torch_dtype", "float16"}})).dtype, Dtype::f16);
  EXPECT_EQ(parse(with(llama(), {{"dtype", "float32"}})).dtype, Dtype::f32);
  EXPECT_THAT(refusal(with(llama(), {{"dtype", "int3"}})),
              testing::StartsWith("config.json: dtype: unknown type 'int3'"));
}

// Every preset is a model that the reference can compute, down to its RoPE.
TEST(ModelPresets, AreConfigsOfComputableModels) {
  for (const ModelPreset& preset : model_presets()) {
    const ModelConfig config = parse_model_config(preset.config, std::string(preset.name));
    EXPECT_EQ(config.not_computed, "") << preset.name;
    EXPECT_FALSE(config.eos_token_ids.empty()) << preset.name;
  }
}

TEST(ModelConfig, SurvivesHostileText) {
  EXPECT_EQ(refusal_of_text("{"), "config.json: is not JSON (byte 2)");
  EXPECT_EQ(refusal_of_text("[]"), "config.json: must be a JSON object");
  EXPECT_EQ(refusal_of_text(R"({"a": 1e999})"),
            "config.json: has a number outside the range of a double");
  EXPECT_EQ(refusal_of_text("{\"a\":" + std::string(100000, '[')),
            "config.json: nests deeper than 32");
  EXPECT_EQ(refusal_of_text(std::string((4 << 20) + 1, ' ')), "config.json: exceeds 4194304 bytes");
}

TEST(BaseModelShapes, AreThoseOfTheWeights) {
  const BaseModelShapes shapes =
      base_model_shapes(parse(with(moe("qwen3_moe"), {{"head_dim", 10}})));
  EXPECT_EQ(shapes.num_layers, 3);
  EXPECT_EQ(shapes.hidden, 32);
  EXPECT_EQ(shapes.q_size, 40);
  EXPECT_EQ(shapes.kv_size, 20);
  EXPECT_EQ(shapes.o_input, 40);
  EXPECT_EQ(shapes.vocab, 100);
  EXPECT_EQ(shapes.num_experts, 6);
  EXPECT_EQ(shapes.expert_intermediate, 24);
  EXPECT_EQ(base_model_shapes(parse(llama())).expert_intermediate, 0);
  EXPECT_TRUE(
      base_model_shapes(parse(with(llama(), {{"tie_word_embeddings", true}}))).tied_embeddings);
}

// As TensorRT Model Optimizer writes it: nvidia/Llama-3.1-8B-Instruct-FP8, hf_quant_config.json.
class QuantizationBeside : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / "quantization_beside";
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  ModelConfig read(const json& config, const std::string& beside) const {
    std::ofstream(path("config.json")) << config.dump();
    std::ofstream(path("hf_quant_config.json")) << beside;
    return read_model_config(path("config.json"), "give it");
  }
  fs::path folder_;
};

const std::string kModelOpt =
    R"({"producer": {"name": "modelopt", "version": "0.19.0"}, "quantization": {)"
    R"("quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}})";

TEST_F(QuantizationBeside, CountsWithoutOneInTheConfig) {
  const ModelConfig config = read(llama(), kModelOpt);
  EXPECT_EQ(config.quantization.method, "modelopt");
  EXPECT_EQ(config.quantization.bits, 8);
  EXPECT_TRUE(config.quantization.activations);
  EXPECT_TRUE(config.quantization.has_kv_scheme);
  EXPECT_THAT(config.quantization.ignored, ElementsAre("lm_head"));
  EXPECT_THAT(config.not_computed, testing::StartsWith(path("hf_quant_config.json") + ": "));
}

TEST_F(QuantizationBeside, YieldsToTheConfig) {
  const json awq = {{"quantization_config", {{"quant_method", "awq"}, {"bits", 4}}}};
  const ModelConfig config = read(with(llama(), awq), kModelOpt);
  EXPECT_EQ(config.quantization.method, "awq");
  EXPECT_EQ(config.quantization.bits, 4);
}

TEST_F(QuantizationBeside, IsNamedWhenItIsBad) {
  const auto error = [&](const std::string& beside) {
    try {
      read(llama(), beside);
    } catch (const InputError& thrown) {
      return std::string(thrown.what());
    }
    return std::string("no error");
  };
  const std::string file = path("hf_quant_config.json");
  EXPECT_THAT(error(R"({"quantization": {"quant_algo": "W4A8"}})"),
              testing::StartsWith(file + ": quantization.quant_algo: 'W4A8' is not supported"));
  EXPECT_EQ(error(R"({"producer": {"name": "modelopt"}})"),
            file +
                ": does not say how weights are quantised: 'quantization' is missing; take the "
                "file away if they are not");
  EXPECT_THAT(error("{"), testing::StartsWith(file));
  EXPECT_THAT(error("[]"), testing::StartsWith(file));
}

}  // namespace
}  // namespace loratory::reference
