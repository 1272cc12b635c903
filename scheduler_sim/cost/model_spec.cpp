#include "scheduler_sim/cost/model_spec.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/integers.hpp"
#include "reference/base/text.hpp"
#include "reference/model/model_presets.hpp"

namespace loratory::sim {
namespace {

bool looks_like_path(std::string_view name) {
  return name.ends_with(".json") || name.find('/') != std::string_view::npos;
}

// The MLP of every layer, or all experts: one size for the whole model.
void read_mlp(const reference::ModelConfig& config, ModelSpec& spec) {
  spec.intermediate = config.intermediate;
  if (config.num_experts == 0) return;
  if (std::ranges::find(config.layer_has_experts, false) != config.layer_has_experts.end()) {
    throw InputError(fmt::format("{}: mlp_only_layers", spec.source),
                     "mixed dense and expert layers are not modelled");
  }
  spec.intermediate = config.expert_intermediate;
  spec.num_experts = config.num_experts;
  spec.experts_per_token = config.experts_per_token;
  spec.shared_intermediate = config.shared_expert_intermediate;
}

ModelSpec preset_spec(const reference::ModelPreset& preset) {
  const std::string source = fmt::format("config.json of {}", preset.repository);
  ModelSpec spec = model_spec_of(reference::parse_model_config(preset.config, source), source);
  spec.name = preset.name;
  return spec;
}

}  // namespace

int64_t ModelSpec::kv_size(int tp) const {
  return std::max<int64_t>(num_kv_heads / tp, 1) * head_dim;
}

int64_t ModelSpec::attention_parameters(int tp) const {
  return hidden * (2 * q_size(tp) + 2 * kv_size(tp));
}

int64_t ModelSpec::expert_parameters(int tp) const { return 3 * hidden * (intermediate / tp); }

int64_t ModelSpec::shared_expert_parameters(int tp) const {
  return shared_intermediate == 0 ? 0 : 3 * hidden * (shared_intermediate / tp) + hidden;
}

int64_t ModelSpec::lm_head_parameters(int tp) const {
  return ceil_div<int64_t>(vocab, tp) * hidden;
}

int64_t ModelSpec::num_parameters(int tp) const {
  const int64_t num_mlps = std::max<int64_t>(num_experts, 1);
  int64_t layer = attention_parameters(tp) + num_mlps * expert_parameters(tp);
  layer += shared_expert_parameters(tp);
  layer += num_experts * hidden;  // the router, replicated
  layer += 2 * hidden;            // norms, replicated
  if (qkv_bias) layer += q_size(tp) + 2 * kv_size(tp);
  if (o_bias) layer += hidden;
  if (mlp_bias) layer += 2 * (intermediate / tp) + hidden;
  if (qk_norm) layer += 2 * head_dim;
  const int64_t num_tables = tied_embeddings ? 1 : 2;
  return num_layers * layer + num_tables * lm_head_parameters(tp) + hidden;
}

int64_t ModelSpec::kv_bytes_per_token(int tp) const {
  return num_layers * 2 * kv_size(tp) * dtype_bytes;
}

void ModelSpec::require_divisible(int tp) const {
  LORATORY_ASSERT(tp >= 1, "a tensor-parallel size counts GPUs");
  const bool kv_divides = num_kv_heads % tp == 0 || tp % num_kv_heads == 0;
  if (num_heads % tp != 0 || !kv_divides || intermediate % tp != 0 ||
      shared_intermediate % tp != 0) {
    throw InputError("--tp",
                     fmt::format("{} GPUs cannot share the {} heads, {} KV heads and intermediate "
                                 "size {} of {} equally",
                                 tp, num_heads, num_kv_heads, intermediate, name),
                     "choose a power of two not above the number of heads");
  }
}

ModelSpec model_spec_of(const reference::ModelConfig& config, std::string source) {
  ModelSpec spec;
  spec.name = config.name.empty() ? source : config.name;
  spec.source = std::move(source);
  spec.hidden = config.hidden;
  spec.num_layers = config.num_layers;
  spec.num_heads = config.num_heads;
  spec.num_kv_heads = config.num_kv_heads;
  spec.head_dim = config.head_dim;
  spec.vocab = config.vocab;
  spec.tied_embeddings = config.tied_embeddings;
  spec.qkv_bias = config.qkv_bias;
  spec.o_bias = config.o_bias;
  spec.mlp_bias = config.mlp_bias;
  spec.qk_norm = config.qk_norm;
  spec.dtype_bytes = int64_t(reference::size_bytes(config.dtype));
  read_mlp(config, spec);
  return spec;
}

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const auto& preset : reference::model_presets()) names.emplace_back(preset.name);
  return names;
}

ModelSpec load_model_spec(std::string_view name_or_path) {
  for (const auto& preset : reference::model_presets()) {
    if (equal_ignoring_case(name_or_path, preset.name)) return preset_spec(preset);
  }
  if (looks_like_path(name_or_path)) {
    const std::string path(name_or_path);
    return model_spec_of(reference::read_model_config(path, "give the config.json of the model"),
                         path);
  }
  throw InputError("--model", fmt::format("unknown model '{}'", name_or_path),
                   fmt::format("give the path of a config.json or one of {}",
                               fmt::join(model_preset_names(), ", ")));
}

}  // namespace loratory::sim
