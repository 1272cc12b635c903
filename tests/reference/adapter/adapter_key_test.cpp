// Appendix B: which key becomes which matrix, or which error.
#include "reference/adapter/adapter_key.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/adapter/adapter_error.hpp"
#include "tests/reference/adapter/adapter_files.hpp"

namespace loratory::reference {
namespace {

using testing::HasSubstr;

std::string packing_word(const ModuleRef& ref) {
  switch (ref.packing) {
    case Packing::single:
      return ref.expert >= 0 ? fmt::format(" of expert {}", ref.expert) : "";
    case Packing::qkv:
      return " k v";
    case Packing::gate_up:
      return " up_proj";
    case Packing::experts:
      return " of all experts";
    case Packing::inner_parameter:
      return " up_proj of all experts";
    case Packing::outer_parameter:
      return " of all experts or the only parameter";
  }
  return "?";
}

std::string role_word(TensorRole role) {
  constexpr std::array<const char*, 8> kWords{"A",       "B",       "embedding A", "embedding B",
                                              "A scale", "B scale", "base copy",   "whole weight"};
  return kWords[size_t(role)];
}

// "layer 3 q_proj: A", "E_KEY"
std::string reading_of(const std::string& key, const BaseModelShapes& shapes = small_model()) {
  try {
    const AdapterKey parsed = parse_adapter_key(key);
    const ModuleRef ref = parse_module_path(parsed.path, key, shapes);
    const std::string layer = ref.layer >= 0 ? fmt::format("layer {} ", ref.layer) : "";
    return fmt::format("{}{}{}: {}", layer, projection_name(ref.projection), packing_word(ref),
                       role_word(parsed.role));
  } catch (const AdapterError& error) {
    EXPECT_EQ(error.key(), key);
    const std::string code(code_word(error.code()));
    return error.detail().empty() ? code : code + "(" + error.detail() + ")";
  }
}

struct KeyRow {
  const char* key;  // without "base_model.model." if it begins with '~'
  const char* reading;
};

std::string full_key(const KeyRow& row) {
  const std::string key(row.key);
  return key.starts_with('~') ? key.substr(1) : "base_model.model." + key;
}

constexpr KeyRow kAppendixB[] = {
    {"model.layers.3.self_attn.q_proj.lora_A.weight", "layer 3 q_proj: A"},
    {"model.layers.3.mlp.up_proj.lora_B.weight", "layer 3 up_proj: B"},
    {"model.layers.0.mlp.experts.5.down_proj.lora_A.weight", "layer 0 down_proj of expert 5: A"},
    {"model.layers.0.mlp.experts.w1.lora_A.weight", "layer 0 gate_proj of all experts: A"},
    {"model.layers.0.mlp.shared_expert.up_proj.lora_A.weight", "layer 0 shared_expert.up_proj: A"},
    {"model.layers.0.mlp.shared_expert_gate.lora_B.weight", "layer 0 shared_expert_gate: B"},
    {"lm_head.lora_A.weight", "lm_head: A"},
    {"lm_head.lora_embedding_A", "lm_head: embedding A"},
    {"model.embed_tokens.lora_embedding_A", "embed_tokens: embedding A"},
    {"model.language_model.layers.1.self_attn.o_proj.lora_B.weight", "E_KEY"},
    {"~model.layers.0.self_attn.q_proj.lora_A.weight", "E_KEY"},
    {"model.layers.0.self_attn.q_proj.lora_A.default.weight", "E_KEY"},
    {"model.layers.99.self_attn.q_proj.lora_A.weight", "E_KEY"},
    {"model.layers.0.self_attn.q_proj.lora_magnitude_vector", "E_UNSUPPORTED(dora)"},
    {"model.layers.0.self_attn.q_proj.bias", "E_UNSUPPORTED(bias)"},
    {"score.weight", "E_UNSUPPORTED(modules_to_save)"},
    {"score.modules_to_save.weight", "E_UNSUPPORTED(modules_to_save)"},
    {"model.layers.0.mlp.experts.base_layer.lora_A.weight",
     "layer 0 gate_proj up_proj of all experts: A"},
    {"model.layers.0.mlp.experts.lora_A.weight",
     "layer 0 down_proj of all experts or the only parameter: A"},
    {"model.layers.0.block_sparse_moe.experts.3.w3.lora_B.weight",
     "layer 0 up_proj of expert 3: B"},
    {"model.embed_tokens.base_layer.weight", "embed_tokens: base copy"},
    {"lm_head.weight", "lm_head: whole weight"},
    {"model.layers.0.block_sparse_moe.gate.lora_A.weight", "E_UNSUPPORTED(router)"},
};

constexpr KeyRow kMoreKeys[] = {
    {"model.layers.31.self_attn.qkv_proj.lora_B.weight", "layer 31 q_proj k v: B"},
    {"model.layers.0.mlp.gate_up_proj.lora_A.weight", "layer 0 gate_proj up_proj: A"},
    {"model.layers.0.mlp.experts.w2.lora_B.weight", "layer 0 down_proj of all experts: B"},
    {"model.layers.0.block_sparse_moe.experts.0.w2.lora_A.weight",
     "layer 0 down_proj of expert 0: A"},
    {"model.layers.0.mlp.down_proj.lora_A.weight_scale", "layer 0 down_proj: A scale"},
    {"lm_head.base_layer.weight", "lm_head: base copy"},
    {"model.embed_tokens.weight", "embed_tokens: whole weight"},
    {"my_lm_head.weight", "E_UNSUPPORTED(modules_to_save)"},
    {"model.norm.weight", "E_UNSUPPORTED(modules_to_save)"},
    {"model.norm.base_layer.weight", "E_UNSUPPORTED(modules_to_save)"},
    {"model.layers.32.self_attn.q_proj.lora_A.weight", "E_KEY"},
    {"model.layers.03.self_attn.q_proj.lora_A.weight", "E_KEY"},
    {"model.layers.-1.self_attn.q_proj.lora_A.weight", "E_KEY"},
    {"model.layers.99999999999999999999.self_attn.q_proj.lora_A.weight", "E_KEY"},
    {"model.layers.0.mlp.experts.6.down_proj.lora_A.weight", "E_KEY"},
    {"model.layers.0.mlp.experts.w4.lora_A.weight", "E_KEY"},
    {"model.layers.0.mlp.shared_expert.o_proj.lora_A.weight", "E_KEY"},
    {"model.layers.0.mlp.shared_expert.gate_up_proj.lora_A.weight", "E_KEY"},
    {"model.layers.0.mlp.shared_expert.0.up_proj.lora_A.weight", "E_KEY"},
    {"model.layers.0.self_attn.shared_expert_gate.lora_A.weight", "E_KEY"},
    {"model.layers.0.self_attn.x_proj.lora_A.weight", "E_KEY"},
    {"model.layers.0.lora_A.weight", "E_KEY"},
    {"model.layers.0.self_attn.q_proj.lora_A", "E_KEY"},
    {"model.embed_tokens.lora_embedding_A.default", "E_KEY"},
    {"model.layers.0.self_attn.q_proj.lora_B.bias", "E_UNSUPPORTED(bias)"},
    {"model.layers.0.self_attn.q_proj.lora_magnitude_vector.default.weight", "E_UNSUPPORTED(dora)"},
    {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "E_KEY"},
    {"x.layers.0.self_attn.q_proj.lora_A.weight", "E_KEY"},
    {"transformer.model.layers.0.self_attn.q_proj.lora_A.weight", "E_KEY"},
    {"model.lm_head.lora_A.weight", "E_KEY"},
    {"~", "E_KEY"},
    {"~base_model.model.", "E_KEY"},
    {"~base_model.model..lora_A.weight", "E_KEY"},
};

// [1.23] [1.35] [1.38] [1.52] [1.53] [4.9]-[4.11]
TEST(AdapterKey, AppendixB) {
  for (const KeyRow& row : kAppendixB) EXPECT_EQ(reading_of(full_key(row)), row.reading) << row.key;
}

// [4.9]-[4.11]
TEST(AdapterKey, MoreKeys) {
  for (const KeyRow& row : kMoreKeys) EXPECT_EQ(reading_of(full_key(row)), row.reading) << row.key;
}

// [4.10]
TEST(AdapterKey, PrefixMapsBelongToTheModel) {
  BaseModelShapes shapes = small_model();
  shapes.decoder_prefixes = {"model.language_model."};
  EXPECT_EQ(
      reading_of("base_model.model.model.language_model.layers.1.self_attn.o_proj.lora_B.weight",
                 shapes),
      "layer 1 o_proj: B");
  EXPECT_EQ(reading_of("base_model.model.model.layers.1.self_attn.o_proj.lora_B.weight", shapes),
            "E_KEY");
}

// [1.35]
TEST(AdapterKey, ARouterMayBeDeclared) {
  BaseModelShapes shapes = small_model();
  shapes.router_has_lora = true;
  EXPECT_EQ(reading_of("base_model.model.model.layers.0.mlp.gate.lora_A.weight", shapes),
            "layer 0 router: A");
}

// [4.11]
TEST(AdapterKey, AModelWithoutExpertsHasNoneOfTheirKeys) {
  BaseModelShapes shapes = small_model();
  shapes.num_experts = 0;
  for (const char* path : {"experts.0.up_proj", "experts", "experts.w1", "gate"}) {
    const auto key = fmt::format("base_model.model.model.layers.0.mlp.{}.lora_A.weight", path);
    EXPECT_EQ(reading_of(key, shapes), "E_KEY") << path;
  }
}

// [1.53] [4.11]
TEST(AdapterKey, AModelWithoutASharedExpertHasNoneOfItsKeys) {
  BaseModelShapes shapes = small_model();
  shapes.shared_expert_intermediate = 0;
  for (const char* path : {"shared_expert.up_proj", "shared_expert_gate"}) {
    const auto key = fmt::format("base_model.model.model.layers.0.mlp.{}.lora_A.weight", path);
    EXPECT_EQ(reading_of(key, shapes), "E_KEY") << path;
  }
}

// [4.9]
TEST(AdapterKey, HintsSayWhatToDo) {
  const auto line = [](const char* key) -> std::string {
    try {
      parse_adapter_key(key);
    } catch (const AdapterError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(line("model.layers.0.self_attn.q_proj.lora_A.weight"), HasSubstr("save_pretrained"));
  EXPECT_THAT(
      line("base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"),
      HasSubstr("call it 'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight'"));
  EXPECT_THAT(line("base_model.model.model.embed_tokens.lora_embedding_A.my_lora"),
              HasSubstr("call it 'base_model.model.model.embed_tokens.lora_embedding_A'"));
}

// [4.9]: what another layer of the model has would load here, and then do nothing.
TEST(AdapterKey, ALayerHasExpertsOrADenseMlp) {
  BaseModelShapes shapes = small_model();
  shapes.layer_has_experts = std::vector<bool>(size_t(shapes.num_layers), true);
  shapes.layer_has_experts[1] = false;
  const auto reading = [&](const std::string& module) {
    return reading_of("base_model.model.model.layers." + module + ".lora_A.weight", shapes);
  };
  EXPECT_EQ(reading("1.mlp.up_proj"), "layer 1 up_proj: A");
  EXPECT_EQ(reading("0.mlp.up_proj"), "E_KEY");
  EXPECT_EQ(reading("0.mlp.experts.2.up_proj"), "layer 0 up_proj of expert 2: A");
  EXPECT_EQ(reading("1.mlp.experts.2.up_proj"), "E_KEY");
  EXPECT_EQ(reading("0.mlp.shared_expert.up_proj"), "layer 0 shared_expert.up_proj: A");
  EXPECT_EQ(reading("1.mlp.shared_expert.up_proj"), "E_KEY");
  EXPECT_EQ(reading("1.self_attn.q_proj"), "layer 1 q_proj: A");
}

}  // namespace
}  // namespace loratory::reference
