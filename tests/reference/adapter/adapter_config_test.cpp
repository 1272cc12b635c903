// adapter_config.json: required, used, ignored and rejected fields; patterns against paths.
#include "reference/adapter/adapter_config.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "reference/adapter/adapter_error.hpp"

namespace loratory::reference {
namespace {

using Code = AdapterErrorCode;

constexpr const char* kQ = "model.layers.1.self_attn.q_proj";

// A valid configuration with `fields` in front: "\"r\": 4," and the like.
AdapterConfig parse(const std::string& fields, const ConfigOptions& options = {}) {
  return parse_adapter_config(
      "{" + fields +
          R"("peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]})",
      options);
}

std::string refusal(const std::string& text, const ConfigOptions& options = {}) {
  try {
    parse_adapter_config(text, options);
  } catch (const AdapterError& error) {
    return fmt::format("{}({})", code_word(error.code()), error.detail());
  }
  return "accepted";
}

std::string refusal_of(const std::string& fields) {
  return refusal("{" + fields + R"("r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]})");
}

RankAndAlpha rank_and_alpha(const AdapterConfig& config, std::string_view path) {
  StepBudget budget = step_budget(1);
  return config.rank_and_alpha_of(path, budget);
}

int64_t rank_of(const AdapterConfig& config, std::string_view path = kQ) {
  return rank_and_alpha(config, path).rank;
}

float scaling_of(const AdapterConfig& config, std::string_view path = kQ) {
  return config.scaling_of(path, rank_and_alpha(config, path));
}

bool targets(const AdapterConfig& config, std::string_view path, bool is_linear = true) {
  StepBudget budget = step_budget(1);
  return config.targets(path, is_linear, budget);
}

// [4.4]
TEST(AdapterConfig, RequiredFields) {
  EXPECT_EQ(refusal("{}"), "E_CONFIG(r, lora_alpha, target_modules)");
  EXPECT_EQ(refusal(R"({"r": 8, "target_modules": "all-linear"})"), "E_CONFIG(lora_alpha)");
  EXPECT_EQ(refusal(R"({"r": 8, "lora_alpha": 1, "target_modules": []})"),
            "E_CONFIG(target_modules)");
  EXPECT_EQ(refusal(R"({"r": 8, "lora_alpha": 1, "target_modules": null})"),
            "E_CONFIG(target_modules)");
  EXPECT_EQ(refusal(R"({"r": 8, "lora_alpha": 1, "target_modules": null,
                        "target_parameters": ["mlp.experts.gate_up_proj"]})"),
            "accepted");
  for (const char* rank : {"0", "-1", "1.5", "\"8\"", "true", "1e30", "[8]"}) {
    EXPECT_EQ(
        refusal(fmt::format(R"({{"r": {}, "lora_alpha": 1, "target_modules": ["q"]}})", rank)),
        "E_CONFIG(r)")
        << rank;
  }
  for (const char* alpha : {"\"16\"", "true", "[]"}) {
    EXPECT_EQ(
        refusal(fmt::format(R"({{"r": 8, "lora_alpha": {}, "target_modules": ["q"]}})", alpha)),
        "E_CONFIG(lora_alpha)");
  }
}

// [1.10] [4.7] [4.8]
TEST(AdapterConfig, ScalingIsAlphaOverTheRankOfTheModule) {
  EXPECT_EQ(scaling_of(parse("")), 2.0F);
  EXPECT_EQ(scaling_of(parse("\"use_rslora\": true,")), float(16 / std::sqrt(8.0)));
  const auto patterned = parse(R"("use_rslora": true, "rank_pattern": {"q_proj": 4},)");
  EXPECT_EQ(scaling_of(patterned), 8.0F);
  const auto both = parse(R"("rank_pattern": {"q_proj": 4}, "alpha_pattern": {"layers.1.*": 3},)");
  EXPECT_EQ(scaling_of(both), 0.75F);
  EXPECT_EQ(scaling_of(both, "model.layers.2.self_attn.q_proj"), 4.0F);
}

// [1.12] [4.8]
TEST(AdapterConfig, AlphaMayBeZeroOrNegativeNotInfinite) {
  const char* text = R"({{"r": 1, "lora_alpha": {}, "target_modules": ["q_proj"]}})";
  const auto scaling = [&](const char* alpha) {
    return scaling_of(parse_adapter_config(fmt::format(fmt::runtime(text), alpha)));
  };
  EXPECT_EQ(scaling("0"), 0.0F);
  EXPECT_EQ(scaling("-2.5"), -2.5F);
  EXPECT_THROW(scaling("1e300"), AdapterError);
}

// [4.7]
TEST(AdapterConfig, PatternsMatchTheEndOfAPathFromAComponentOn) {
  struct Row {
    const char* pattern;
    bool matches;
  };
  for (const auto& [text, matches] : std::initializer_list<Row>{
           {"q_proj", true},
           {"q_proj|k_proj", true},
           {"k_proj|q_proj", true},
           {"self_attn.q_proj", true},
           {"self_attn\\\\.q_proj", true},
           {"model.layers.1.self_attn.q_proj", true},
           {"^model.layers.1.self_attn.q_proj", true},
           {"layers.\\\\d+.self_attn.(q|k)_proj", true},
           {".*proj", true},
           {"[^.]*", true},
           {"proj", false},
           {"layers.1", false},
           {"^layers.1.self_attn.q_proj", false},
           {"attn.q_proj", false},
           {"xmodel.layers.1.self_attn.q_proj", false},
           {"q_proj.", false},
           {"", false},
       }) {
    const auto config = parse(fmt::format(R"("rank_pattern": {{"{}": 3}},)", text));
    EXPECT_EQ(rank_of(config), matches ? 3 : 8) << text;
    EXPECT_EQ(rank_and_alpha(config, kQ).rank_field, matches ? "rank_pattern" : "r") << text;
  }
}

// [4.7]
TEST(AdapterConfig, TheFirstMatchInFileOrderCounts) {
  EXPECT_EQ(rank_of(parse(R"("rank_pattern": {"q_proj": 3, ".*q_proj": 4},)")), 3);
  EXPECT_EQ(rank_of(parse(R"("rank_pattern": {".*q_proj": 4, "q_proj": 3},)")), 4);
  EXPECT_EQ(rank_of(parse(R"("rank_pattern": {"z": 1, "q_proj": 3, "a": 2},)")), 3);
}

// [4.7]
TEST(AdapterConfig, PatternsThatDoNotCompileOrMeanSomethingElse) {
  for (const char* pattern : {"(", "a)(b", "*a", "(q)\\\\1", "(?R)", "[[:alpha:]]+"}) {
    EXPECT_EQ(refusal_of(fmt::format(R"("rank_pattern": {{"{}": 3}},)", pattern)),
              "E_CONFIG(rank_pattern)")
        << pattern;
  }
}

// [4.7] [4.19] 2^20 steps, 2^15 more for each module, 2^26 at most.
TEST(AdapterConfig, TheBudgetOfItsPatterns) {
  EXPECT_EQ(step_budget(0).steps_left, 1 << 20);
  EXPECT_EQ(step_budget(140).steps_left, (1 << 20) + 140 * (1 << 15));
  EXPECT_EQ(step_budget(2016).steps_left, 1 << 26);
  EXPECT_EQ(step_budget(2017).steps_left, 1 << 26);
  EXPECT_EQ(step_budget(SIZE_MAX).steps_left, 1 << 26);
}

// [4.4] [4.7]
TEST(AdapterConfig, TargetModules) {
  const auto targets = [](const std::string& selection, const char* path, bool is_linear = true) {
    const AdapterConfig config =
        parse_adapter_config(R"({"r": 8, "lora_alpha": 16, "target_modules": )" + selection + "}");
    return reference::targets(config, path, is_linear);
  };
  EXPECT_TRUE(targets(R"(["v_proj", "q_proj"])", kQ));
  EXPECT_TRUE(targets(R"(["self_attn.q_proj"])", kQ));
  EXPECT_TRUE(targets(R"(["model.layers.1.self_attn.q_proj"])", kQ));
  EXPECT_FALSE(targets(R"(["proj"])", kQ));
  EXPECT_FALSE(targets(R"([".*"])", kQ)) << "entries of a list are names, not patterns";
  EXPECT_TRUE(targets(R"(".*q_proj")", kQ));
  EXPECT_TRUE(targets(R"(".*(q|v)_proj")", kQ));
  EXPECT_FALSE(targets(R"("q_proj")", kQ)) << "a string is one full match";
  EXPECT_TRUE(targets(R"("all-linear")", kQ));
  EXPECT_FALSE(targets(R"("all-linear")", "lm_head", false));
}

// [1.52] [4.5]
TEST(AdapterConfig, ExcludedModulesAndChosenLayers) {
  const char* path2 = "model.layers.2.self_attn.q_proj";
  EXPECT_FALSE(targets(parse(R"("exclude_modules": ["q_proj"],)"), kQ));
  EXPECT_FALSE(targets(parse(R"("exclude_modules": ".*layers.1.*",)"), kQ));
  EXPECT_TRUE(targets(parse(R"("exclude_modules": ".*layers.1.*",)"), path2));
  EXPECT_TRUE(targets(parse(R"("layers_to_transform": [1, 3],)"), kQ));
  EXPECT_FALSE(targets(parse(R"("layers_to_transform": [1, 3],)"), path2));
  EXPECT_TRUE(targets(parse(R"("layers_to_transform": 2, "layers_pattern": "layers",)"), path2));
  EXPECT_FALSE(targets(parse(R"("layers_to_transform": 2, "layers_pattern": ["h"],)"), path2));
}

// [4.5]
// As PEFT's regular expressions do it: the last number that follows a name.
TEST(AdapterConfig, TheLayerOfAPath) {
  const char* expert = "model.layers.2.mlp.experts.5.q_proj";
  EXPECT_TRUE(targets(parse(R"("layers_to_transform": [5],)"), expert));
  EXPECT_FALSE(targets(parse(R"("layers_to_transform": [2],)"), expert));
  const std::string layers = R"("layers_pattern": ["h", "layers"],)";
  EXPECT_TRUE(targets(parse(layers + R"("layers_to_transform": [2],)"), expert));
  EXPECT_FALSE(targets(parse(layers + R"("layers_to_transform": [5],)"), expert));
  EXPECT_FALSE(targets(parse(R"("layers_to_transform": [0],)"), "lm_head.q_proj"));
  EXPECT_FALSE(targets(parse(R"("layers_to_transform": [1],)"), "layers.1.q_proj"));
  EXPECT_TRUE(targets(parse(R"("layers_to_transform": [7],)"), "q_proj")) << "named in full";
  EXPECT_EQ(refusal_of(R"("layers_pattern": "l.*",)"), "E_CONFIG(layers_pattern)");
  EXPECT_EQ(refusal(R"({"r": 1, "lora_alpha": 1, "target_modules": ".*",
                        "layers_to_transform": 1})"),
            "E_CONFIG(layers_to_transform)");
}

// [1.52] P37
TEST(AdapterConfig, FieldsThatWouldChangeTheResultAreRefused) {
  struct Row {
    const char* field;
    const char* refusal;
  };
  for (const auto& [field, expected] : std::initializer_list<Row>{
           {R"("use_dora": true,)", "E_UNSUPPORTED(dora)"},
           {R"("bias": "some",)", "E_UNSUPPORTED(bias)"},
           {R"("lora_bias": true,)", "E_UNSUPPORTED(bias)"},
           {R"("modules_to_save": ["lm_head"],)", "E_UNSUPPORTED(modules_to_save)"},
           {R"("fan_in_fan_out": true,)", "E_UNSUPPORTED(fan_in_fan_out)"},
           {R"("peft_type": "LOHA",)", "E_UNSUPPORTED(peft_type)"},
           {R"("layer_replication": [[0, 4]],)", "E_UNSUPPORTED(layer_replication)"},
           {R"("megatron_config": {"a": 1},)", "E_UNSUPPORTED(megatron_config)"},
           {R"("trainable_token_indices": [1],)", "E_UNSUPPORTED(trainable_token_indices)"},
           {R"("alora_invocation_tokens": [1],)", "E_UNSUPPORTED(alora)"},
           {R"("use_qalora": true,)", "E_UNSUPPORTED(qalora)"},
           {R"("use_bdlora": 1,)", "E_UNSUPPORTED(bdlora)"},
           {R"("velora_config": {"a": 1},)", "E_UNSUPPORTED(velora)"},
           {R"("kasa_config": {"a": 1},)", "E_UNSUPPORTED(kasa)"},
           {R"("arrow_config": {"a": 1},)", "E_UNSUPPORTED(arrow)"},
           {R"("ensure_weight_tying": true,)", "E_UNSUPPORTED(ensure_weight_tying)"},
           {R"("init_lora_weights": "pissa_niter_4",)", "E_UNSUPPORTED(init)"},
           {R"("init_lora_weights": "something",)", "E_UNSUPPORTED(init)"},
       }) {
    EXPECT_EQ(refusal_of(field), expected) << field;
  }
}

// [1.52] The values of init_lora_weights; those that leave the base a residual need a promise.
TEST(AdapterConfig, InitialWeights) {
  ConfigOptions residual;
  residual.assume_residual_base = true;
  const auto refusal_with = [](const std::string& value, const ConfigOptions& options) {
    return refusal(R"({"r": 8, "lora_alpha": 16, "target_modules": ["q"], "init_lora_weights": )" +
                       value + "}",
                   options);
  };
  for (const char* harmless :
       {"true", "false", "null", "\"gaussian\"", "\"eva\"", "\"orthogonal\""}) {
    EXPECT_EQ(refusal_with(harmless, {}), "accepted") << harmless;
  }
  for (const char* kind :
       {"\"pissa\"", "\"pissa_niter_16\"", "\"corda\"", "\"olora\"", "\"lora_ga\"", "\"loftq\""}) {
    EXPECT_EQ(refusal_with(kind, {}), "E_UNSUPPORTED(init)") << kind;
    EXPECT_EQ(refusal_with(kind, residual), "accepted") << kind;
  }
  EXPECT_EQ(refusal_with("\"unheard of\"", residual), "E_UNSUPPORTED(init)");
  EXPECT_EQ(refusal_with("3", residual), "E_CONFIG(init_lora_weights)");
}

// [1.52]
TEST(AdapterConfig, OtherMethodsThanLora) {
  for (const char* type : {"LOHA", "LOKR", "ADALORA", "VERA", "IA3", "lora", ""}) {
    EXPECT_EQ(refusal_of(fmt::format(R"("peft_type": "{}",)", type)), "E_UNSUPPORTED(peft_type)");
  }
  EXPECT_EQ(refusal_of("\"exclude_modules\": \"(?R)\","), "E_CONFIG(exclude_modules)");
}

// [1.52] [4.6]
TEST(AdapterConfig, TheSameFieldsWithoutEffectPass) {
  const auto config = parse(
      R"("use_dora": false, "bias": "none", "lora_bias": false, "modules_to_save": null,
         "fan_in_fan_out": false, "layer_replication": null, "megatron_config": {},
         "megatron_core": "megatron.core", "loftq_config": {}, "eva_config": null,
         "lora_dropout": 0.1, "init_lora_weights": "gaussian", "inference_mode": true,
         "task_type": "CAUSAL_LM", "revision": null, "auto_mapping": null,
         "qalora_group_size": 16, "corda_config": null, "of_tomorrow": null, "new": 1,)");
  EXPECT_EQ(config.warnings, std::vector<std::string>{"adapter_config.json: unknown field 'new'"});
  ConfigOptions residual;
  residual.assume_residual_base = true;
  EXPECT_EQ(parse(R"("init_lora_weights": "olora",)", residual).rank, 8);
}

// [4.19]
TEST(AdapterConfig, BrokenFiles) {
  for (const char* text :
       {"", "[]", "{", "null", "{\"r\": 1e999}", "{\"r\": NaN}", "{\"\xff\": 1}"}) {
    EXPECT_EQ(refusal(text), "E_CONFIG()") << text;
  }
  EXPECT_EQ(refusal(std::string(5 << 20, ' ')), "E_CONFIG()");
  EXPECT_EQ(refusal(std::string(1 << 20, '[')), "E_CONFIG()");
  EXPECT_EQ(refusal_of(R"("r": 4,)"), "E_CONFIG(r)") << "twice";
  EXPECT_EQ(refusal_of(R"("rank_pattern": {"q": 1, "q": 2},)"), "E_CONFIG(rank_pattern)");
  EXPECT_EQ(refusal_of(R"("rank_pattern": {"q": 0},)"), "E_CONFIG(rank_pattern)");
  EXPECT_EQ(refusal_of(R"("rank_pattern": [1],)"), "E_CONFIG(rank_pattern)");
}

TEST(AdapterConfig, WhatIsWrittenIsReadAgain) {
  const auto config = parse(
      R"("rank_pattern": {"z": 2, "a.*": 3}, "alpha_pattern": {"q_proj": -1.25}, "use_rslora": true,
         "layers_to_transform": [4, 2], "layers_pattern": ["layers"], "exclude_modules": "x|y",
         "target_parameters": ["mlp.experts.down_proj"], "base_model_name_or_path": "a/b",)");
  const std::string text = adapter_config_text(config);
  const auto again = parse_adapter_config(text);
  EXPECT_EQ(adapter_config_text(again), text);
  EXPECT_EQ(again.rank_pattern[0].pattern.text(), "z");
  EXPECT_EQ(again.alpha_pattern[0].alpha, -1.25);
  EXPECT_TRUE(again.warnings.empty());
}

}  // namespace
}  // namespace loratory::reference
