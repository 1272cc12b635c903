// Hugging Face config.json -> ModelConfig. Defaults are those of transformers 5.
#include "reference/model/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "reference/base/files.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/json_fields.hpp"
#include "reference/model/model_config_parts.hpp"

namespace loratory::reference {
namespace {

using nlohmann::json;

constexpr int64_t kMostLayers = 4096;
constexpr int64_t kDefaultWindow = 4096;  // of Mistral, and of Qwen with use_sliding_window
constexpr size_t kLargestModelConfig = size_t{4} << 20;
constexpr double kMostParameters = 0x1p50;

// What would change the result without a sign of it.
void reject_uncomputed(const JsonFields& fields, const ModelFamily& family,
                       const ModelConfig& config) {
  if (config.quantization.bits > 0) {
    fields.fail("quantization_config", "only its sizes are known, not its arithmetic",
                "use an unquantised checkpoint");
  }
  if (!family.is_computed) {
    fields.fail("model_type",
                fmt::format("only the sizes of '{}' are known, not its arithmetic", family.type));
  }
  if (fields.text_or("hidden_act", "silu") != "silu") {
    fields.fail("hidden_act", "only silu is supported");
  }
  if (family.type.starts_with("mi") && fields.flag_or("attention_bias", false)) {
    fields.fail("attention_bias", fmt::format("{} has no biases", family.type));
  }
}

/// Which layers have the window does not matter to contexts within it.
void read_sliding_window(const JsonFields& fields, const ModelFamily& family, ModelConfig& config) {
  const bool is_qwen = family.type.starts_with("qwen");
  const bool may_slide =
      is_qwen ? fields.flag_or("use_sliding_window", false) : family.type.starts_with("mi");
  if (may_slide && !fields.is_null("sliding_window")) {
    const bool has_default = family.type != "mixtral";
    if (has_default || fields.has("sliding_window")) {
      config.sliding_window = fields.size_or("sliding_window", kDefaultWindow, kLargestSize);
    }
  }
  const json* const types = fields.find("layer_types");
  if (types == nullptr) return;
  const auto is_known = [&](const json& type) {
    return type == "full_attention" || (config.sliding_window > 0 && type == "sliding_attention");
  };
  if (!types->is_array() || !std::all_of(types->begin(), types->end(), is_known)) {
    fields.fail("layer_types",
                "only full_attention is supported, and sliding_attention with a sliding_window");
  }
}

void read_biases(const JsonFields& fields, const ModelFamily& family, ModelConfig& config) {
  const bool attention_bias = fields.flag_or("attention_bias", false);
  if (family.type == "qwen2") {
    config.qkv_bias = true;  // it has them without saying so
  } else if (family.type == "qwen2_moe") {
    config.qkv_bias = fields.flag_or("qkv_bias", true);
  } else {
    config.qkv_bias = config.o_bias = family.has(kAttentionBias) || attention_bias;
  }
  config.mlp_bias = fields.flag_or("mlp_bias", false);
  if (config.mlp_bias && family.type != "llama") {
    fields.fail("mlp_bias", fmt::format("{} has no biases there", family.type));
  }
  config.qk_norm = family.has(kQkNorm);
}

RopeScaling rope_scaling(const JsonFields& rope) {
  const std::string type = rope.text_or("rope_type", rope.text_or("type", "default"));
  if (type == "default") return RopeScaling::none;
  if (type == "linear") return RopeScaling::linear;
  if (type == "dynamic") return RopeScaling::dynamic;
  if (type == "llama3") return RopeScaling::llama3;
  if (type == "yarn") return RopeScaling::yarn;
  rope.fail("rope_type", fmt::format("'{}' is not supported", type.substr(0, 64)),
            "supported are default, linear, dynamic, llama3 and yarn");
}

// 0.1·m·ln(factor) + 1, the temperature of YaRN.
double yarn_mscale(double factor, double m) {
  return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1;
}

void read_yarn(const JsonFields& rope, RopeConfig& config) {
  const double fast = rope.number_or("beta_fast", 0, -1), slow = rope.number_or("beta_slow", 0, -1);
  config.beta_fast = fast == 0 ? 32 : fast;  // transformers takes 0 as absent
  config.beta_slow = slow == 0 ? 1 : slow;
  if (!(config.beta_fast > config.beta_slow && config.beta_slow > 0)) {
    rope.fail("beta_fast", "must be above beta_slow, and both above 0");
  }
  if (!rope.flag_or("truncate", true)) rope.fail("truncate", "only true is supported");
  config.attention_factor = rope.number_or("attention_factor", 0, 0);
  const double m = rope.number_or("mscale", 0, -1), all = rope.number_or("mscale_all_dim", 0, -1);
  if (config.attention_factor == 0 && m > 0 && all > 0) {
    config.attention_factor = yarn_mscale(config.factor, m) / yarn_mscale(config.factor, all);
  }
}

void read_llama3(const JsonFields& rope, RopeConfig& config) {
  for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
    if (!rope.has(key)) rope.fail(key, "is missing");
  }
  config.low_freq_factor = rope.number_or("low_freq_factor", 1, 0);
  config.high_freq_factor = rope.number_or("high_freq_factor", 4, 0);
  if (config.high_freq_factor <= config.low_freq_factor) {
    rope.fail("high_freq_factor", "must be above low_freq_factor");
  }
}

// `root` the whole config, `rope` its rope_parameters or rope_scaling.
void read_scaling(const JsonFields& root, const JsonFields& rope, ModelConfig& config) {
  RopeConfig& out = config.rope;
  out.scaling = rope_scaling(rope);
  if (rope.number_or("partial_rotary_factor", root.number_or("partial_rotary_factor", 1, 0), 0) !=
      1) {
    rope.fail("partial_rotary_factor", "only 1 is supported");
  }
  if (out.scaling == RopeScaling::none) return;
  const int64_t max_position = config.max_position_embeddings;
  out.original_max_position_embeddings = max_position;
  if (out.scaling == RopeScaling::llama3 || out.scaling == RopeScaling::yarn) {
    const char* const key = "original_max_position_embeddings";
    const JsonFields& from = root.has(key) ? root : rope;
    out.original_max_position_embeddings = from.size_or(key, max_position, kLargestSize);
  }
  const double implied = double(max_position) / double(out.original_max_position_embeddings);
  out.factor = rope.number_or("factor", out.scaling == RopeScaling::yarn ? implied : 0, 0);
  if (out.factor == 0) rope.fail("factor", "is missing");
  if (out.scaling == RopeScaling::llama3) read_llama3(rope, out);
  if (out.scaling == RopeScaling::yarn) read_yarn(rope, out);
}

void read_rope(const JsonFields& fields, const ModelFamily& family, ModelConfig& config) {
  if (config.head_dim % 2 != 0) {
    fields.fail("head_dim", fmt::format("{} is odd, RoPE needs pairs", config.head_dim));
  }
  const char* const key = fields.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const json* const object = fields.find(key);
  static const json kNothing = json::object();
  if (object != nullptr && !object->is_object()) fields.fail(key, "must be an object");
  const JsonFields rope(object == nullptr ? kNothing : *object, fields.file(),
                        fmt::format("{}.", key));
  for (const char* nested : {"full_attention", "sliding_attention"}) {
    if (rope.has(nested)) rope.fail(nested, "RoPE of its own for some layers is not supported");
  }
  const double theta = fields.number_or("rope_theta", family.rope_theta, 1);
  config.rope.theta = rope.number_or("rope_theta", theta, 1);
  read_scaling(fields, rope, config);
}

void read_eos(const JsonFields& fields, const ModelFamily& family, ModelConfig& config) {
  const char* const key = "eos_token_id";
  const json* const value = fields.find(key);
  const auto add = [&](const json& id) {
    config.eos_token_ids.push_back(int32_t(fields.integer(key, id, 0, config.vocab - 1)));
  };
  if (value != nullptr && value->is_array()) {
    for (const json& id : *value) add(id);
  } else if (value != nullptr) {
    add(*value);
  } else if (!fields.is_null(key) && family.eos_token_id >= 0 &&
             family.eos_token_id < config.vocab) {
    config.eos_token_ids.push_back(family.eos_token_id);
  }
}

// Every entry is compared with the modules of every layer.
void require_short_list(const JsonFields& fields, const ModelConfig& config) {
  constexpr size_t kMostComparisons = 4'000'000;
  if (config.quantization.ignored.size() * size_t(config.num_layers) > kMostComparisons) {
    fields.fail("quantization_config", "lists too many modules that are not quantised",
                "name them by patterns");
  }
}

// What takes memory or changes it and is not in the sizes.
void note_ignored(const JsonFields& fields, const JsonFields& root, ModelConfig& config) {
  const auto note = [&](std::string line) { config.ignored.push_back(std::move(line)); };
  if (root.has("audio_config")) note("audio_config: its weights and its tokens are not counted");
  if (fields.has("num_nextn_predict_layers")) {
    note("num_nextn_predict_layers: layers for speculative decoding are not counted");
  }
  if (config.latent.kv_rank > 0 && fields.has("index_topk")) {
    note("index_topk: the sparse indexer is not counted");
  }
  if (config.quantization.has_kv_scheme) {
    note("the checkpoint has factors for an FP8 KV cache: --kv-cache-dtype fp8 counts it so");
  }
  for (const std::string& pattern : config.quantization.not_understood) {
    note(fmt::format("quantization_config: '{}' is taken to ignore no module", pattern));
  }
}

// Products of sizes as doubles first: a hostile file must not overflow the integers.
void require_plausible(const JsonFields& fields, const ModelConfig& config) {
  const double attention = double(config.num_heads) * double(config.head_dim);
  const double mlp = double(config.intermediate) + double(config.shared_expert_intermediate) +
                     double(config.num_experts) * double(config.expert_intermediate);
  const LatentAttention& latent = config.latent;
  const double ranks = double(latent.q_rank) + double(latent.kv_rank) + double(latent.rope_dim);
  const double heads = attention + double(config.num_heads) * double(latent.v_dim);
  const double per_layer =
      4 * double(config.hidden) * (heads + mlp + ranks) + 2 * ranks * (attention + heads);
  const double total =
      double(config.num_layers) * per_layer + 2 * double(config.hidden) * double(config.vocab);
  if (total > kMostParameters) {
    fields.fail("hidden_size", "the sizes together give more than 2^50 parameters");
  }
}

// Older files say torch_dtype.
Dtype read_dtype(const JsonFields& fields) {
  const char* const key = fields.has("torch_dtype") ? "torch_dtype" : "dtype";
  const std::string dtype = fields.text_or(key, "bfloat16");
  if (dtype == "bfloat16") return Dtype::bf16;
  if (dtype == "float16") return Dtype::f16;
  if (dtype == "float32") return Dtype::f32;
  fields.fail(key, fmt::format("unknown type '{}'", dtype.substr(0, 64)),
              "use bfloat16, float16 or float32");
}

// All that sizes depend on; `root` is the whole file.
ModelConfig read_sizes(const JsonFields& fields, const JsonFields& root,
                       const ModelFamily& family) {
  ModelConfig config;
  config.name = fields.text_or("_name_or_path", "");
  config.hidden = fields.size("hidden_size", kLargestSize);
  const char* const dense = family.has(kLlama4) ? "intermediate_size_mlp" : "intermediate_size";
  config.intermediate = fields.size(dense, kLargestSize);
  config.num_layers = fields.size("num_hidden_layers", kMostLayers);
  config.vocab = family.vocab > 0 ? fields.size_or("vocab_size", family.vocab, kLargestSize)
                                  : fields.size("vocab_size", kLargestSize);
  config.tied_embeddings = fields.flag_or("tie_word_embeddings", family.tied_embeddings);
  config.dtype = read_dtype(fields.has("torch_dtype") || fields.has("dtype") ? fields : root);
  config.fused_projections = family.has(kFused);
  config.has_llama_code = family.has(kLlamaCode);
  config.post_norms = family.has(kPostNorms);
  config.attention_sinks = family.has(kSinks);
  read_attention(fields, family, config);
  read_biases(fields, family, config);
  read_experts(fields, family, config);
  read_layer_windows(fields, family, config);
  config.quantization = read_quantization(fields.has("quantization_config") ? fields : root);
  require_short_list(fields, config);
  read_vision(root, family, config);
  note_ignored(fields, root, config);
  require_plausible(fields, config);
  return config;
}

// All that is needed beside the sizes to compute the model.
void read_arithmetic(const JsonFields& fields, const ModelFamily& family, ModelConfig& config) {
  reject_uncomputed(fields, family, config);
  config.max_position_embeddings =
      fields.size_or("max_position_embeddings", family.max_position_embeddings, kLargestSize);
  read_sliding_window(fields, family, config);
  config.rms_norm_eps = fields.number_or("rms_norm_eps", family.rms_norm_eps, 0);
  read_rope(fields, family, config);
  read_eos(fields, family, config);
}

}  // namespace

ModelConfig parse_model_config(std::string_view text, const std::string& file) {
  const json parsed = parse_json_object(text, file, kLargestModelConfig);
  const auto language_model = parsed.find("text_config");
  const bool is_nested = language_model != parsed.end() && language_model->is_object();
  const JsonFields root(parsed, file);
  const JsonFields fields(is_nested ? *language_model : parsed, file,
                          is_nested ? "text_config." : "");
  const ModelFamily& family = family_of(fields);
  ModelConfig config = read_sizes(fields, root, family);
  try {
    if (is_nested) root.fail("text_config", "a part of a model is not computed");
    read_arithmetic(fields, family, config);
  } catch (const InputError& error) {
    config.not_computed = error.what();
  }
  return config;
}

ModelConfig read_model_config(const std::string& path, std::string_view remedy) {
  ModelConfig config = parse_model_config(read_text_file(path, kLargestModelConfig, remedy), path);
  const auto beside = std::filesystem::path(path).parent_path() / "hf_quant_config.json";
  std::error_code ignored;
  if (config.quantization.bits > 0 || !std::filesystem::is_regular_file(beside, ignored)) {
    return config;
  }
  const std::string file = beside.string();
  const json parsed = parse_json_object(read_text_file(file, kLargestModelConfig, remedy), file);
  config.quantization = read_quantization(JsonFields(parsed, file));
  if (config.quantization.bits == 0) {
    throw InputError(file, "does not say how weights are quantised: 'quantization' is missing",
                     "take the file away if they are not");
  }
  config.not_computed =
      fmt::format("{}: quantised weights are not computed: use an unquantised checkpoint", file);
  return config;
}

void require_computed(const ModelConfig& config) {
  if (!config.not_computed.empty()) throw InputError("", config.not_computed);
}

}  // namespace loratory::reference
