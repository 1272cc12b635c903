#include "scheduler_sim/cost/model_spec.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/integers.hpp"
#include "reference/base/text.hpp"
#include "reference/base/wording.hpp"
#include "reference/model/model_presets.hpp"
#include "scheduler_sim/cost/gpu_spec.hpp"
#include "scheduler_sim/cost/module_shapes.hpp"

namespace loratory::sim {
namespace {

bool looks_like_path(std::string_view name) {
  return name.ends_with(".json") || name.find('/') != std::string_view::npos;
}

void read_mlp(const reference::ModelConfig& config, ModelSpec& spec) {
  spec.intermediate = config.intermediate;
  if (config.num_experts == 0) return;
  spec.num_dense_layers = std::ranges::count(config.layer_has_experts, false);
  spec.dense_intermediate = config.intermediate;
  spec.intermediate = config.expert_intermediate;
  spec.num_experts = config.num_experts;
  spec.experts_per_token = config.experts_per_token;
  spec.shared_intermediate = config.shared_expert_intermediate;
  spec.expert_bias = config.expert_bias;
  spec.router_bias = config.router_bias;
  spec.shared_gate = config.shared_expert_gate;
}

void read_windows(const reference::ModelConfig& config, ModelSpec& spec) {
  for (const int64_t tokens : config.layer_windows) {
    if (tokens == 0) continue;
    const auto it = std::ranges::find(spec.windows, tokens, &KvWindow::tokens);
    if (it == spec.windows.end()) {
      spec.windows.push_back({tokens, 1});
    } else {
      ++it->num_layers;
    }
  }
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
  if (latent.kv_rank == 0) return hidden * (2 * q_size(tp) + 2 * kv_size(tp));
  const int64_t heads = num_heads / tp;
  const int64_t q =
      latent.q_rank == 0 ? hidden * heads * head_dim : latent.q_rank * (hidden + heads * head_dim);
  const int64_t kv = hidden * (latent.kv_rank + latent.rope_dim) +
                     latent.kv_rank * heads * (latent.nope_dim + latent.v_dim);
  return q + kv + heads * latent.v_dim * hidden;
}

int64_t ModelSpec::expert_parameters(int tp) const { return 3 * hidden * (intermediate / tp); }

int64_t ModelSpec::shared_expert_parameters(int tp) const {
  if (shared_intermediate == 0) return 0;
  return 3 * hidden * (shared_intermediate / tp) + (shared_gate ? hidden : 0);
}

int64_t ModelSpec::lm_head_parameters(int tp) const {
  return ceil_div<int64_t>(vocab, tp) * hidden;
}

int64_t ModelSpec::num_parameters(int tp) const {
  int64_t layer = attention_parameters(tp);
  layer += (post_norms ? 4 : 2) * hidden;  // replicated, as the norms below
  if (latent.kv_rank > 0) layer += latent.kv_rank + latent.q_rank;
  if (qkv_bias) layer += q_size(tp) + 2 * kv_size(tp);
  if (o_bias) layer += hidden;
  if (qk_norm) layer += 2 * head_dim;
  if (attention_sinks) layer += num_heads / tp;

  int64_t expert = expert_parameters(tp);
  if (mlp_bias || expert_bias) expert += 2 * (intermediate / tp) + hidden;
  int64_t mixture = num_experts * expert + shared_expert_parameters(tp);
  mixture += num_experts * (hidden + (router_bias ? 1 : 0));  // the router, replicated
  const int64_t mlps = num_experts == 0
                           ? num_layers * expert
                           : num_expert_layers() * mixture +
                                 num_dense_layers * 3 * hidden * (dense_intermediate / tp);
  const int64_t num_tables = tied_embeddings ? 1 : 2;
  return num_layers * layer + mlps + num_tables * lm_head_parameters(tp) + hidden +
         vision_parameters;
}

int64_t ModelSpec::weight_bytes(int tp) const {
  int64_t bytes = num_parameters(tp) * dtype_bytes;
  if (quantization.bits == 0) return bytes;
  for (const ModuleShape& shape : cut_module_shapes(*this, tp)) {
    bytes += module_bytes(*this, shape) - shape.count * shape.in * shape.out * dtype_bytes;
  }
  return bytes;
}

int64_t ModelSpec::kv_layer_bytes(int tp) const {
  const int64_t numbers = latent.kv_rank > 0 ? latent.kv_rank + latent.rope_dim : 2 * kv_size(tp);
  return numbers * (fp8_kv ? 1 : dtype_bytes);
}

int64_t ModelSpec::kv_bytes_per_token(int tp, KvPricing pricing) const {
  const int64_t layer = kv_layer_bytes(tp);
  int64_t bytes = num_layers * layer;
  if (pricing.context_tokens == 0) return bytes;
  for (const KvWindow& window : windows) {
    const double share =
        std::max(double(window.tokens) / double(pricing.context_tokens), pricing.least_share);
    if (share < 1) bytes -= int64_t((1 - share) * double(window.num_layers * layer));
  }
  return bytes;
}

void ModelSpec::require_divisible(int tp) const {
  LORATORY_ASSERT(tp >= 1, "a tensor-parallel size counts GPUs");
  const bool kv_divides = num_kv_heads % tp == 0 || tp % num_kv_heads == 0;
  if (num_heads % tp != 0 || !kv_divides || intermediate % tp != 0 ||
      shared_intermediate % tp != 0 || dense_intermediate % tp != 0) {
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
  spec.post_norms = config.post_norms;
  spec.attention_sinks = config.attention_sinks;
  spec.fused_projections = config.fused_projections;
  spec.adapts_embeddings = config.has_llama_code;
  spec.latent = config.latent;
  spec.vision_parameters = config.vision_parameters;
  spec.quantization = config.quantization;
  spec.notes = config.ignored;
  spec.dtype_bytes = int64_t(reference::size_bytes(config.dtype));
  read_mlp(config, spec);
  read_windows(config, spec);
  spec.plain_layers = count_plain_layers(spec);
  return spec;
}

void apply_dtypes(ModelSpec& model, std::string_view dtype, std::string_view kv_cache_dtype) {
  if (dtype == "fp8") {
    if (model.quantization.bits > 0) {
      throw InputError("--dtype",
                       fmt::format("the weights of {} are quantised already ({})", model.name,
                                   model.quantization.method),
                       "leave it out");
    }
    model.quantization = reference::fp8_on_load();
  } else if (dtype != "auto") {
    model.dtype_bytes = dtype == "float32" ? 4 : 2;
  }
  model.fp8_kv = kv_cache_dtype == "fp8";
}

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const auto& preset : reference::model_presets()) names.emplace_back(preset.name);
  return names;
}

namespace {

// "meta-llama/Llama-3.1-8B" is a name of Hugging Face's hub, and no path unless it is there.
std::string remedy_for(const std::string& path) {
  constexpr const char* kRemedy = "give the config.json of the model";
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return kRemedy;
  return did_you_mean(path.substr(path.rfind('/') + 1), model_preset_names(), kRemedy);
}

}  // namespace

ModelSpec load_model_spec(std::string_view name_or_path) {
  for (const auto& preset : reference::model_presets()) {
    if (equal_ignoring_case(name_or_path, preset.name)) return preset_spec(preset);
  }
  if (looks_like_path(name_or_path)) {
    const std::string path(name_or_path);
    return model_spec_of(reference::read_model_config(path, remedy_for(path)), path);
  }
  const std::vector<std::string> names = model_preset_names();
  const std::string all =
      fmt::format("give the path of a config.json or one of {}", fmt::join(names, ", "));
  const std::vector<std::string> gpu_names = gpu_preset_names();
  const std::string_view gpu = nearest(name_or_path, gpu_names);
  throw InputError(
      "--model", fmt::format("unknown model {}", shown(name_or_path)),
      did_you_mean(name_or_path, names,
                   gpu.empty() ? all : fmt::format("{} is a GPU, for --gpu; {}", gpu, all)));
}

}  // namespace loratory::sim
