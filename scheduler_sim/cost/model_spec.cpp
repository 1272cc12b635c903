#include "scheduler_sim/cost/model_spec.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "reference/base/check.hpp"
#include "reference/base/files.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/integers.hpp"
#include "reference/base/text.hpp"

namespace loratory::sim {
namespace {

constexpr size_t kLargestConfig = size_t{4} << 20;

struct Preset {
  const char* name;
  const char* repository;  // on the Hugging Face hub; its config.json is the source
  int64_t hidden, intermediate, num_layers, num_heads, num_kv_heads, head_dim, vocab;
  bool tied_embeddings, qkv_bias, qk_norm;
};

// The parameter counts that follow are tested against the published sizes of the checkpoints.
constexpr std::array<Preset, 13> kPresets{{
    {"Llama-3.1-8B", "meta-llama/Llama-3.1-8B", 4096, 14336, 32, 32, 8, 128, 128256, false, false,
     false},
    {"Llama-3-70B", "meta-llama/Meta-Llama-3-70B", 8192, 28672, 80, 64, 8, 128, 128256, false,
     false, false},
    {"Llama-3.2-1B", "meta-llama/Llama-3.2-1B", 2048, 8192, 16, 32, 8, 64, 128256, true, false,
     false},
    {"Llama-3.2-3B", "meta-llama/Llama-3.2-3B", 3072, 8192, 28, 24, 8, 128, 128256, true, false,
     false},
    {"Llama-2-7B", "meta-llama/Llama-2-7b-hf", 4096, 11008, 32, 32, 32, 128, 32000, false, false,
     false},
    {"Llama-2-13B", "meta-llama/Llama-2-13b-hf", 5120, 13824, 40, 40, 40, 128, 32000, false, false,
     false},
    {"Mistral-7B", "mistralai/Mistral-7B-v0.3", 4096, 14336, 32, 32, 8, 128, 32768, false, false,
     false},
    {"Qwen2.5-7B", "Qwen/Qwen2.5-7B", 3584, 18944, 28, 28, 4, 128, 152064, false, true, false},
    {"Qwen2.5-14B", "Qwen/Qwen2.5-14B", 5120, 13824, 48, 40, 8, 128, 152064, false, true, false},
    {"Qwen2.5-32B", "Qwen/Qwen2.5-32B", 5120, 27648, 64, 40, 8, 128, 152064, false, true, false},
    {"Qwen3-4B", "Qwen/Qwen3-4B", 2560, 9728, 36, 32, 8, 128, 151936, true, false, true},
    {"Qwen3-8B", "Qwen/Qwen3-8B", 4096, 12288, 36, 32, 8, 128, 151936, false, false, true},
    {"Qwen3-32B", "Qwen/Qwen3-32B", 5120, 25600, 64, 64, 8, 128, 151936, false, false, true},
}};

ModelSpec from_preset(const Preset& preset) {
  ModelSpec spec;
  spec.name = preset.name;
  spec.source = fmt::format("config.json of {}", preset.repository);
  spec.hidden = preset.hidden;
  spec.intermediate = preset.intermediate;
  spec.num_layers = preset.num_layers;
  spec.num_heads = preset.num_heads;
  spec.num_kv_heads = preset.num_kv_heads;
  spec.head_dim = preset.head_dim;
  spec.vocab = preset.vocab;
  spec.tied_embeddings = preset.tied_embeddings;
  spec.qkv_bias = preset.qkv_bias;
  spec.qk_norm = preset.qk_norm;
  return spec;
}

bool looks_like_path(std::string_view name) {
  return name.ends_with(".json") || name.find('/') != std::string_view::npos;
}

ModelSpec read_config(const std::string& path) {
  ModelSpec spec = parse_model_config(
      read_file(path, kLargestConfig, "give the config.json of the model"), path);
  spec.source = path;
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

int64_t ModelSpec::lm_head_parameters(int tp) const {
  return ceil_div<int64_t>(vocab, tp) * hidden;
}

int64_t ModelSpec::num_parameters(int tp) const {
  const int64_t num_mlps = std::max<int64_t>(num_experts, 1);
  int64_t layer = attention_parameters(tp) + num_mlps * expert_parameters(tp);
  layer += num_experts * hidden;  // the router, replicated
  layer += 2 * hidden;            // norms, replicated
  if (qkv_bias) layer += q_size(tp) + 2 * kv_size(tp);
  if (o_bias) layer += hidden;
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
  if (num_heads % tp != 0 || !kv_divides || intermediate % tp != 0) {
    throw InputError("--tp",
                     fmt::format("{} GPUs cannot share the {} heads, {} KV heads and intermediate "
                                 "size {} of {} equally",
                                 tp, num_heads, num_kv_heads, intermediate, name),
                     "choose a power of two not above the number of heads");
  }
}

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

ModelSpec load_model_spec(std::string_view name_or_path) {
  for (const Preset& preset : kPresets) {
    if (equal_ignoring_case(name_or_path, preset.name)) return from_preset(preset);
  }
  if (looks_like_path(name_or_path)) return read_config(std::string(name_or_path));
  throw InputError("--model", fmt::format("unknown model '{}'", name_or_path),
                   fmt::format("give the path of a config.json or one of {}",
                               fmt::join(model_preset_names(), ", ")));
}

}  // namespace loratory::sim
