// Adapters that PEFT wrote: what the loader makes of them, and which it refuses.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <filesystem>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "reference/adapter/adapter.hpp"
#include "reference/adapter/adapter_error.hpp"
#include "reference/base/files.hpp"
#include "reference/model/adapter_options.hpp"
#include "reference/model/model.hpp"
#include "reference/model/model_config.hpp"
#include "reference/model/oracle.hpp"
#include "tests/golden/fixture.hpp"

namespace loratory::reference {
namespace {

BaseModelShapes shapes_of(const std::string& model) {
  const std::string path = kFixtures + model + "/config.json";
  return base_model_shapes(parse_model_config(read_file(path), path));
}

// "E_KEY", "E_UNSUPPORTED(dora)", or "accepted".
template <typename Load>
std::string refusal(const Load& load) {
  try {
    load();
  } catch (const AdapterError& error) {
    const std::string code(code_word(error.code()));
    return error.detail().empty() ? code : code + "(" + error.detail() + ")";
  }
  return "accepted";
}

std::vector<Case> all_adapters() {
  std::vector<Case> cases;
  for (const std::string& model : kModels) {
    for (const std::string& adapter : Fixture(model).adapters()) cases.push_back({model, adapter});
  }
  return cases;
}

class RealAdapter : public testing::TestWithParam<Case> {
 protected:
  Adapter load() const {
    return load_adapter(directory_, base_model_shapes(model_.config), adapter_options(model_));
  }

  const Fixture fixture_{GetParam().model};
  const Model model_ = load_model(fixture_.directory());
  const std::string directory_ = fixture_.adapter_directory(GetParam().adapter);
};

INSTANTIATE_TEST_SUITE_P(Golden, RealAdapter, testing::ValuesIn(all_adapters()), test_name);

// [1.10] [1.12] [1.38] [4.4] [4.5] [4.7] [4.8] [4.9] [4.11] P18: alpha / r and alpha / sqrt(r) with
// the rank and alpha of each module after the patterns, bit for bit those that PEFT computes with.
// Files of PEFT 0.21 on disk: lists, regular expressions, all-linear, layers_to_transform,
// exclude_modules, target_parameters, pairs for each expert.
TEST_P(RealAdapter, HasTheModulesRanksAndScalingsOfPeft) {
  const Adapter adapter = load();
  const nlohmann::json& expected = fixture_.modules(GetParam().adapter);
  EXPECT_EQ(adapter.modules.size(), expected.size());
  for (const LoraModule& module : adapter.modules) {
    const std::string name = to_string(module.id);
    ASSERT_TRUE(expected.contains(name)) << name;
    EXPECT_EQ(module.rank, expected[name][0].get<int64_t>()) << name;
    EXPECT_EQ(module.scaling, float(expected[name][1].get<double>())) << name;
  }
}

// [4.6] PEFT writes more fields than an adapter is made of; none of them is news.
TEST_P(RealAdapter, WarnsOfNothingButCopiesOfBaseWeights) {
  const Adapter adapter = load();
  for (const std::string& warning : adapter.warnings) {
    EXPECT_TRUE(warning.ends_with("a copy of the base weights, ignored")) << warning;
  }
}

// [4.9] An engine whose weights are on a GPU compares the copies with those in the model's folder.
TEST_P(RealAdapter, IsComparedWithTheModelsFolderAlike) {
  const auto options = adapter_options(fixture_.directory(), model_.config);
  EXPECT_EQ(load_adapter(directory_, base_model_shapes(model_.config), options).warnings,
            load().warnings);
  for (const Projection which : {Projection::embed_tokens, Projection::lm_head}) {
    const ConstTensorView stored = options.base_weights(which),
                          loaded = adapter_options(model_).base_weights(which);
    ASSERT_EQ(stored.shape, loaded.shape);
    for (int64_t row = 0; row < stored.shape[0]; ++row) {
      std::vector<float> left(size_t(stored.shape[1])), right = left;
      read_row(stored, row, 0, std::span(left)), read_row(loaded, row, 0, std::span(right));
      ASSERT_EQ(left, right) << projection_name(which) << " row " << row;
    }
  }
}

// --- refusals -------------------------------------------------------------------------------

struct Refused {
  const char* name;
  const char* model;
  const char* by_config;  // as PEFT wrote it
  const char* by_keys;    // the same tensors under a configuration that says nothing of them
};

// [1.35] [1.52] [4.9] P37: features that would change the result if they were dropped. Each adapter
// was written by PEFT; the configuration alone gives it away, and so do the names of its tensors
// (where there are other tensors at all).
TEST(RejectedAdapter, EachFeatureHasItsCode) {
  for (const auto& [name, model, by_config, by_keys] : std::initializer_list<Refused>{
           {"dora", "llama3_tied_bias", "E_UNSUPPORTED(dora)", "E_UNSUPPORTED(dora)"},
           {"bias_all", "llama3_tied_bias", "E_UNSUPPORTED(bias)", "E_UNSUPPORTED(bias)"},
           {"bias_lora_only", "llama3_tied_bias", "E_UNSUPPORTED(bias)", "E_UNSUPPORTED(bias)"},
           {"lora_bias", "llama3_tied_bias", "E_UNSUPPORTED(bias)", "E_UNSUPPORTED(bias)"},
           {"modules_to_save", "llama3_tied_bias", "E_UNSUPPORTED(modules_to_save)",
            "E_UNSUPPORTED(modules_to_save)"},
           {"trainable_tokens", "llama3_tied_bias", "E_UNSUPPORTED(trainable_token_indices)",
            "E_KEY"},
           {"layer_replication", "llama3_tied_bias", "E_UNSUPPORTED(layer_replication)", "E_KEY"},
           {"pissa", "llama3_tied_bias", "E_UNSUPPORTED(init)", "accepted"},
           {"ia3", "llama3_tied_bias", "E_UNSUPPORTED(peft_type)", "E_KEY"},
           {"loha", "llama3_tied_bias", "E_UNSUPPORTED(peft_type)", "E_KEY"},
           {"lokr", "llama3_tied_bias", "E_UNSUPPORTED(peft_type)", "E_KEY"},
           {"adalora", "llama3_tied_bias", "E_UNSUPPORTED(peft_type)", "E_KEY"},
           {"vera", "llama3_tied_bias", "E_UNSUPPORTED(peft_type)", "E_KEY"},
           {"router", "qwen3_moe", "E_UNSUPPORTED(router)", "E_UNSUPPORTED(router)"},
       }) {
    const std::string directory = kFixtures + "rejected/" + name;
    const BaseModelShapes shapes = shapes_of(model);
    EXPECT_EQ(refusal([&] { load_adapter(directory, shapes); }), by_config) << name;
    const AdapterConfig plain = parse_adapter_config(
        R"({"r": 1, "lora_alpha": 1, "target_modules": ".*",
            "target_parameters": ["gate_up_proj", "down_proj"]})");
    const auto file = SafetensorsFile::open(directory + "/adapter_model.safetensors");
    EXPECT_EQ(refusal([&] { load_adapter(plain, file, shapes); }), by_keys) << name;
  }
}

// PEFT's file with other numbers in every B, which it leaves at 0: 1/8, 2/8, 3/8, 0, 1/8, ...
std::string with_numbers_in_b(const SafetensorsFile& file) {
  std::deque<std::vector<std::byte>> bytes;
  std::vector<StoredTensor> tensors(file.tensors().begin(), file.tensors().end());
  for (StoredTensor& tensor : tensors) {
    if (tensor.name.find("lora_B") == std::string::npos) continue;
    auto& numbers = bytes.emplace_back(tensor.bytes.begin(), tensor.bytes.end());
    for (size_t i = 0; i < numbers.size() / 2; ++i) {
      store(Dtype::f16, numbers.data() + 2 * i, double((i + 1) % 4) / 8);
    }
    tensor.bytes = numbers;
  }
  return write_safetensors(tensors);
}

// [1.35]: what PEFT wrote for the router, a parameter since transformers 5, is loaded where the
// model declares LoRA there, and computed: its logits are those of the merged weights.
TEST(DeclaredRouter, PeftsAdapterIsComputed) {
  const std::string directory = kFixtures + "rejected/router/";
  Model model = load_model(kFixtures + "qwen3_moe");
  model.config.router_has_lora = true;
  const std::string bytes =
      with_numbers_in_b(SafetensorsFile::open(directory + "adapter_model.safetensors"));
  const Adapter adapter =
      load_adapter(parse_adapter_config(read_file(directory + "adapter_config.json")),
                   SafetensorsFile::view(std::as_bytes(std::span(bytes)), "router"),
                   base_model_shapes(model.config));
  const LoraModule* const router = adapter.find({1, -1, Projection::router});
  ASSERT_NE(router, nullptr);
  EXPECT_EQ(router->a.shape, (Extents{1, model.config.hidden}));
  EXPECT_EQ(router->b.shape, (Extents{model.config.num_experts, 1}));
  EXPECT_EQ(router->scaling, 8);
  const std::vector<int32_t> tokens{3, 1, 4, 1, 5, 9, 2, 6};
  const auto bounded = bounded_logits(model, &adapter, tokens);
  const auto merged = sequence_logits<float>(merge(model, adapter), nullptr, tokens);
  Model deaf = model;  // the same adapter, and nothing added to the router
  deaf.config.router_has_lora = false;
  const auto without = sequence_logits<float>(deaf, &adapter, tokens);
  int64_t num_off = 0;
  for (Eigen::Index i = 0; i < merged.size(); ++i) {
    EXPECT_LE(std::fabs(merged(i) - bounded(i).value), bounded(i).error);
    num_off += std::fabs(without(i) - bounded(i).value) > bounded(i).error;
  }
  EXPECT_GT(num_off, 0);
}

// [1.52]: the base model of a PiSSA adapter is a residual; who has it may say so.
TEST(RejectedAdapter, PissaIsAcceptedForAResidualBase) {
  LoadOptions options;
  options.assume_residual_base = true;
  EXPECT_NO_THROW(
      load_adapter(kFixtures + "rejected/pissa", shapes_of("llama3_tied_bias"), options));
}

// [4.10] [4.12] [4.13] P36: adapters of one model are refused by every other, and none by its own.
TEST(RejectedAdapter, AdaptersFitTheirOwnModelAlone) {
  const std::map<std::string, std::string> adapters{{"llama_gqa", "patterns"},
                                                    {"llama3_tied_bias", "all_r8"},
                                                    {"qwen2_linear", "qkv_r5_f32"},
                                                    {"mixtral", "parameters_r3"},
                                                    {"qwen3_moe", "per_expert_rslora"}};
  for (const auto& [trained_on, adapter] : adapters) {
    const std::string directory = Fixture(trained_on).adapter_directory(adapter);
    for (const auto& [model, other] : adapters) {
      const std::string code = refusal([&] { load_adapter(directory, shapes_of(model)); });
      EXPECT_EQ(code == "accepted", model == trained_on)
          << trained_on << " on " << model << ": " << code;
    }
  }
}

// The tensors of one real file under other names.
std::string renamed(const SafetensorsFile& file, const std::string& from, const std::string& to) {
  std::vector<StoredTensor> tensors = file.tensors();
  for (StoredTensor& tensor : tensors) {
    const size_t at = tensor.name.find(from);
    if (at != std::string::npos) tensor.name.replace(at, from.size(), to);
  }
  return write_safetensors(tensors);
}

// [4.9] [4.10] [4.11] [4.13] [4.16] P36: a wrong prefix, an adapter's name left in the key, a layer
// or module that the model lacks, half a pair: an error, never a silent no-op.
TEST(RejectedAdapter, RealTensorsUnderWrongNames) {
  struct Row {
    const char* from;
    const char* to;
    const char* code;
  };
  const std::string directory = Fixture("llama_gqa").adapter_directory("qv_r4");
  const auto file = SafetensorsFile::open(directory + "/adapter_model.safetensors");
  const AdapterConfig config = parse_adapter_config(read_file(directory + "/adapter_config.json"));
  for (const auto& [from, to, code] : std::initializer_list<Row>{
           {"", "", "accepted"},
           {"base_model.model.", "", "E_KEY"},
           {"base_model.model.model.", "base_model.model.", "E_KEY"},
           {"base_model.model.model.", "base_model.model.language_model.", "E_KEY"},
           {"base_model.model.", "base_model.model.base_model.model.", "E_KEY"},
           {"lora_A.weight", "lora_A.default.weight", "E_KEY"},
           {"layers.1.", "layers.2.", "E_KEY"},
           {"layers.1.", "layers.01.", "E_KEY"},
           {"self_attn", "attention", "E_KEY"},
           {"q_proj", "query", "E_KEY"},
           {"q_proj", "o_proj", "E_TARGET"},
           {"1.self_attn.q_proj.lora_B", "1.self_attn.q_proj.lora_C",
            "E_UNSUPPORTED(modules_to_save)"},
           {"1.self_attn.q_proj.lora_B", "1.self_attn.k_proj.lora_B", "E_PAIR"},
       }) {
    const std::string bytes = renamed(file, from, to);
    const std::string got = refusal([&] {
      load_adapter(config, SafetensorsFile::view(std::as_bytes(std::span(bytes)), "renamed"),
                   shapes_of("llama_gqa"));
    });
    EXPECT_EQ(got, code) << "'" << from << "' -> '" << to << "'";
  }
}

// [4.13]: in lenient mode unmatched keys are warnings; an adapter of which nothing is left is not.
TEST(RejectedAdapter, LenientModeStillWantsOneModule) {
  const std::string directory = Fixture("llama_gqa").adapter_directory("qv_r4");
  const auto file = SafetensorsFile::open(directory + "/adapter_model.safetensors");
  const AdapterConfig config = parse_adapter_config(read_file(directory + "/adapter_config.json"));
  LoadOptions lenient;
  lenient.strict = false;
  const std::string some = renamed(file, "layers.1.", "layers.2.");
  const Adapter half =
      load_adapter(config, SafetensorsFile::view(std::as_bytes(std::span(some)), "some"),
                   shapes_of("llama_gqa"), lenient);
  EXPECT_EQ(half.modules.size(), 2u);
  EXPECT_EQ(half.warnings.size(), 4u);
  const std::string none = renamed(file, "layers.", "blocks.");
  EXPECT_EQ(refusal([&] {
              load_adapter(config, SafetensorsFile::view(std::as_bytes(std::span(none)), "none"),
                           shapes_of("llama_gqa"), lenient);
            }),
            "E_EMPTY");
}

}  // namespace
}  // namespace loratory::reference
