// Hugging Face config.json -> ModelSpec.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "reference/base/input_error.hpp"
#include "scheduler_sim/cost/model_spec.hpp"

namespace loratory::sim {
namespace {

using nlohmann::json;

// Far above any model; low enough that no product of sizes overflows 64 bits.
constexpr int64_t kLargestSize = 1 << 24;
constexpr int64_t kMostLayers = 4096;
constexpr int64_t kMostParameters = int64_t{1} << 50;

constexpr std::array<std::string_view, 8> kModelTypes{"llama", "mistral",   "mixtral", "qwen2",
                                                      "qwen3", "qwen3_moe", "gemma",   "phi3"};

/// The fields of one config, with errors that name the file and the key.
class Config {
 public:
  Config(const json& object, std::string_view place) : object_(object), place_(place) {}

  bool has(const char* key) const {
    const auto it = object_.find(key);
    return it != object_.end() && !it->is_null();
  }

  int64_t size(const char* key, int64_t largest = kLargestSize) const {
    if (!has(key)) fail(key, "is missing", "this field of a Hugging Face config.json is needed");
    const json& value = object_[key];
    const bool in_range = value.is_number_integer() && value.get<double>() >= 1 &&
                          value.get<double>() <= double(largest);
    if (!in_range) fail(key, fmt::format("must be an integer from 1 to {}", largest));
    return value.get<int64_t>();
  }

  int64_t size_or(const char* key, int64_t fallback) const {
    return has(key) ? size(key) : fallback;
  }

  bool flag_or(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!object_[key].is_boolean()) fail(key, "must be true or false");
    return object_[key].get<bool>();
  }

  std::optional<std::string> text(const char* key) const {
    if (!has(key)) return std::nullopt;
    if (!object_[key].is_string()) fail(key, "must be a string");
    return object_[key].get<std::string>();
  }

  const json& operator[](const char* key) const { return object_[key]; }

  [[noreturn]] void fail(std::string_view key, std::string_view rule,
                         std::string_view remedy = {}) const {
    throw InputError(fmt::format("{}: {}", place_, key), rule, remedy);
  }

 private:
  const json& object_;
  std::string_view place_;
};

json parse_json(std::string_view text, std::string_view place) {
  try {
    json value = json::parse(text);
    if (!value.is_object()) throw InputError(place, "must be a JSON object");
    return value;
  } catch (const json::parse_error& error) {
    throw InputError(place, fmt::format("is not JSON (byte {})", error.byte));
  } catch (const json::out_of_range&) {
    throw InputError(place, "has a number outside the range of a double");
  }
}

int64_t dtype_bytes(const Config& config) {
  const char* key = config.has("torch_dtype") ? "torch_dtype" : "dtype";
  const std::string dtype = config.text(key).value_or("bfloat16");
  if (dtype == "bfloat16" || dtype == "float16") return 2;
  if (dtype == "float32") return 4;
  config.fail(key, fmt::format("unknown type '{}'", dtype), "use bfloat16, float16 or float32");
}

std::string model_type(const Config& config) {
  const std::string type = config.text("model_type").value_or("");
  if (std::ranges::find(kModelTypes, type) == kModelTypes.end()) {
    config.fail("model_type", fmt::format("'{}' is not a model whose layers are known", type),
                fmt::format("known are {}; if its layers have Llama's form, write \"llama\"",
                            fmt::join(kModelTypes, ", ")));
  }
  return type;
}

/// What would make the sizes wrong without a sign of it.
void reject_unmodelled(const Config& config) {
  for (const char* key : {"quantization_config", "kv_lora_rank"}) {
    if (config.has(key)) config.fail(key, "is not modelled", "use an unquantised config");
  }
  if (config.flag_or("mlp_bias", false)) config.fail("mlp_bias", "is not modelled");
  const bool some_dense = (config.has("mlp_only_layers") && !config["mlp_only_layers"].empty()) ||
                          config.size_or("decoder_sparse_step", 1) != 1;
  if (some_dense) config.fail("mlp_only_layers", "mixed dense and expert layers are not modelled");
}

void read_experts(const Config& config, ModelSpec& spec) {
  const char* key = config.has("num_local_experts") ? "num_local_experts" : "num_experts";
  if (!config.has(key)) return;
  spec.num_experts = config.size(key);
  spec.experts_per_token = config.size("num_experts_per_tok");
  if (spec.experts_per_token > spec.num_experts) {
    config.fail("num_experts_per_tok", fmt::format("must be at most {}", spec.num_experts));
  }
  spec.intermediate = config.size_or("moe_intermediate_size", spec.intermediate);
}

void read_attention(const Config& config, ModelSpec& spec) {
  spec.num_heads = config.size("num_attention_heads");
  spec.num_kv_heads = config.size_or("num_key_value_heads", spec.num_heads);
  if (spec.num_heads % spec.num_kv_heads != 0) {
    config.fail("num_key_value_heads",
                fmt::format("must divide num_attention_heads = {}", spec.num_heads));
  }
  if (!config.has("head_dim") && spec.hidden % spec.num_heads != 0) {
    config.fail("hidden_size", "must be a multiple of num_attention_heads without head_dim");
  }
  spec.head_dim = config.size_or("head_dim", std::max<int64_t>(spec.hidden / spec.num_heads, 1));
}

/// Products of sizes as doubles first: a hostile file must not overflow the integers.
void require_plausible(const Config& config, const ModelSpec& spec) {
  const double experts = double(std::max<int64_t>(spec.num_experts, 1));
  const double width = double(spec.num_heads) * double(spec.head_dim) +
                       experts * double(spec.intermediate) + double(spec.vocab);
  const double parameters = 4 * double(spec.num_layers) * double(spec.hidden) * width;
  if (parameters > double(kMostParameters)) {
    config.fail("hidden_size", "the sizes together give more than 2^50 parameters");
  }
}

}  // namespace

ModelSpec parse_model_config(std::string_view text, std::string_view place) {
  const json root = parse_json(text, place);
  const bool nested = root.contains("text_config") && root["text_config"].is_object();
  const Config config(nested ? root["text_config"] : root, place);

  ModelSpec spec;
  const std::string type = model_type(config);
  reject_unmodelled(config);
  spec.name = config.text("_name_or_path").value_or("");
  if (spec.name.empty()) spec.name = std::string(place);
  spec.source = std::string(place);
  spec.hidden = config.size("hidden_size");
  spec.intermediate = config.size("intermediate_size");
  spec.num_layers = config.size("num_hidden_layers", kMostLayers);
  spec.vocab = config.size("vocab_size");
  read_attention(config, spec);
  read_experts(config, spec);
  spec.tied_embeddings = config.flag_or("tie_word_embeddings", type == "gemma");
  spec.o_bias = config.flag_or("attention_bias", false);
  spec.qkv_bias = spec.o_bias || type == "qwen2";  // qwen2 has it without saying so
  spec.qk_norm = type.starts_with("qwen3");
  spec.dtype_bytes = dtype_bytes(config);
  require_plausible(config, spec);
  return spec;
}

}  // namespace loratory::sim
