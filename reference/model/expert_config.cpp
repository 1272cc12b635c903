// Of a config.json: experts, shared experts, and which layers have them.
#include <fmt/format.h>

#include "reference/base/json_fields.hpp"
#include "reference/model/model_config_parts.hpp"

namespace loratory::reference {
namespace {

using nlohmann::json;

constexpr int64_t kDefaultSharedExpert = 5632;  // of Qwen2-MoE

// Layers named in mlp_only_layers are dense.
std::vector<bool> dense_layers(const JsonFields& fields, int64_t num_layers) {
  std::vector<bool> dense(size_t(num_layers), false);
  const json* const listed = fields.find("mlp_only_layers");
  if (listed == nullptr) return dense;
  if (!listed->is_array()) fields.fail("mlp_only_layers", "must be a list of layers");
  for (const json& layer : *listed) {
    dense[size_t(fields.integer("mlp_only_layers", layer, 0, num_layers - 1))] = true;
  }
  return dense;
}

int64_t read_num_experts(const JsonFields& fields) {
  const char* const key = fields.has("num_local_experts") ? "num_local_experts" : "num_experts";
  const int64_t count = fields.size(key, kLargestSize);
  if (fields.has("num_experts") && fields.size("num_experts", kLargestSize) != count) {
    fields.fail("num_experts", "differs from num_local_experts");
  }
  return count;
}

int64_t non_negative(const JsonFields& fields, const char* key, int64_t fallback) {
  const json* const value = fields.find(key);
  return value == nullptr ? fallback : fields.integer(key, *value, 0, kLargestSize);
}

void read_qwen(const JsonFields& fields, const ModelFamily& family, ModelConfig& config) {
  if (family.type == "qwen2_moe") {
    const char* const key = "shared_expert_intermediate_size";
    config.shared_expert_intermediate = non_negative(fields, key, kDefaultSharedExpert);
    config.shared_expert_gate = true;
  }
  config.expert_intermediate = fields.size("moe_intermediate_size", kLargestSize);
  config.norm_topk_prob = fields.flag_or("norm_topk_prob", false);
  const int64_t step = fields.size_or("decoder_sparse_step", 1, kLargestSize);
  for (const bool dense : dense_layers(fields, config.num_layers)) {
    const auto layer = int64_t(config.layer_has_experts.size());
    config.layer_has_experts.push_back(!dense && (layer + 1) % step == 0);
  }
}

void read_deepseek(const JsonFields& fields, const ModelFamily& family, ModelConfig& config) {
  config.expert_intermediate = fields.size("moe_intermediate_size", kLargestSize);
  const int64_t shared = non_negative(fields, "n_shared_experts", 0);
  config.shared_expert_intermediate = shared * config.expert_intermediate;
  config.router_bias = family.type != "deepseek_v2";  // e_score_correction_bias
  const int64_t first = non_negative(fields, "first_k_dense_replace", 0);
  const int64_t step = fields.size_or("moe_layer_freq", 1, kLargestSize);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    config.layer_has_experts.push_back(i >= first && i % step == 0);
  }
}

void read_llama4(const JsonFields& fields, ModelConfig& config) {
  config.expert_intermediate = fields.size("intermediate_size", kLargestSize);
  config.shared_expert_intermediate = config.expert_intermediate;
  const int64_t step = fields.size_or("interleave_moe_layer_step", 1, kLargestSize);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    config.layer_has_experts.push_back((i + 1) % step == 0);
  }
}

}  // namespace

void read_experts(const JsonFields& fields, const ModelFamily& family, ModelConfig& config) {
  if (!family.has(kExperts)) return;
  const bool latent = family.has(kLatent);
  config.num_experts =
      latent ? fields.size("n_routed_experts", kLargestSize) : read_num_experts(fields);
  config.experts_per_token = fields.size("num_experts_per_tok", kLargestSize);
  if (config.experts_per_token > config.num_experts) {
    fields.fail("num_experts_per_tok",
                fmt::format("{} of {} experts", config.experts_per_token, config.num_experts));
  }
  if (latent) return read_deepseek(fields, family, config);
  if (family.has(kLlama4)) return read_llama4(fields, config);
  if (family.type.starts_with("qwen")) return read_qwen(fields, family, config);
  config.expert_bias = config.router_bias = family.has(kSinks);
  config.expert_intermediate = config.intermediate;  // Mixtral, gpt-oss
  config.layer_has_experts.assign(size_t(config.num_layers), true);
}

}  // namespace loratory::reference
