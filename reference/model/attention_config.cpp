// Of a config.json: heads, latent attention, and which layers keep only a window of tokens.
#include <fmt/format.h>

#include "reference/base/json_fields.hpp"
#include "reference/model/model_config_parts.hpp"

namespace loratory::reference {
namespace {

using nlohmann::json;

void read_latent(const JsonFields& fields, ModelConfig& config) {
  LatentAttention& latent = config.latent;
  latent.kv_rank = fields.size("kv_lora_rank", kLargestSize);
  latent.q_rank = fields.has("q_lora_rank") ? fields.size("q_lora_rank", kLargestSize) : 0;
  latent.nope_dim = fields.size("qk_nope_head_dim", kLargestSize);
  latent.rope_dim = fields.size("qk_rope_head_dim", kLargestSize);
  latent.v_dim = fields.size("v_head_dim", kLargestSize);
  config.num_kv_heads = config.num_heads;
  config.head_dim = latent.nope_dim + latent.rope_dim;
}

// The window of every layer that has one; 0 = none has.
int64_t window_of(const JsonFields& fields, const ModelFamily& family) {
  if (family.has(kLlama4))
    return fields.size_or("attention_chunk_size", family.window, kLargestSize);
  if (family.has(kWindowByFlag) && !fields.flag_or("use_sliding_window", false)) return 0;
  const bool may_slide = family.window > 0 || family.has(kWindowAlways);
  if (!may_slide || fields.is_null("sliding_window")) return 0;
  if (!fields.has("sliding_window")) return family.window;
  return fields.size("sliding_window", kLargestSize);
}

// Without layer_types: does layer `i` have the window?
bool slides(const JsonFields& fields, const ModelFamily& family, int64_t i) {
  if (family.has(kAlternates)) return i % 2 == 0;
  if (family.has(kFivePerFull)) {
    return (i + 1) % fields.size_or("sliding_window_pattern", 6, kLargestSize) != 0;
  }
  if (family.has(kWindowByFlag)) {
    const json* const first = fields.find("max_window_layers");
    return i >=
           (first == nullptr ? 28 : fields.integer("max_window_layers", *first, 0, kLargestSize));
  }
  if (!family.has(kLlama4)) return true;
  const json* const ropes = fields.find("no_rope_layers");  // 1 = the layer has RoPE, and chunks
  if (ropes == nullptr || !ropes->is_array() || ropes->empty()) return (i + 1) % 4 != 0;
  if (size_t(i) >= ropes->size()) fields.fail("no_rope_layers", "has fewer entries than layers");
  return fields.integer("no_rope_layers", (*ropes)[size_t(i)], 0, 1) == 1;
}

bool listed_slides(const JsonFields& fields, const json& types, int64_t i) {
  const bool has_entry = types.is_array() && size_t(i) < types.size();
  const json type = has_entry ? types[size_t(i)] : json();
  if (type == "sliding_attention" || type == "chunked_attention") return true;
  if (type == "full_attention") return false;
  fields.fail("layer_types",
              "only full_attention, sliding_attention and chunked_attention have known sizes, and "
              "every layer needs one");
}

}  // namespace

void read_attention(const JsonFields& fields, const ModelFamily& family, ModelConfig& config) {
  const char* const heads = "num_attention_heads";
  config.num_heads = family.num_heads > 0 ? fields.size_or(heads, family.num_heads, kLargestSize)
                                          : fields.size(heads, kLargestSize);
  if (family.has(kLatent)) return read_latent(fields, config);
  if (fields.has("kv_lora_rank")) {
    fields.fail("kv_lora_rank", fmt::format("{} has no latent attention", family.type),
                "write the model_type that it has, such as deepseek_v3");
  }
  const bool one_each = family.num_kv_heads == 0 || fields.is_null("num_key_value_heads");
  const int64_t fallback = one_each ? config.num_heads : family.num_kv_heads;
  config.num_kv_heads = fields.size_or("num_key_value_heads", fallback, kLargestSize);
  if (config.num_heads % config.num_kv_heads != 0) {
    fields.fail("num_key_value_heads", fmt::format("{} does not divide num_attention_heads = {}",
                                                   config.num_kv_heads, config.num_heads));
  }
  config.head_dim = fields.size_or("head_dim", family.head_dim, kLargestSize);
  if (config.head_dim == 0) config.head_dim = config.hidden / config.num_heads;
  if (!fields.has("head_dim") && family.head_dim == 0 && config.hidden % config.num_heads != 0) {
    fields.fail("hidden_size", "is not a multiple of num_attention_heads, and head_dim is missing");
  }
}

void read_layer_windows(const JsonFields& fields, const ModelFamily& family, ModelConfig& config) {
  const int64_t window = window_of(fields, family);
  const json* const types = fields.find("layer_types");
  if (window == 0 && types == nullptr) return;
  bool any = false;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const bool has_window =
        types != nullptr ? listed_slides(fields, *types, i) : slides(fields, family, i);
    config.layer_windows.push_back(has_window ? window : 0);
    any = any || (has_window && window > 0);
  }
  if (!any) config.layer_windows.clear();
}

}  // namespace loratory::reference
