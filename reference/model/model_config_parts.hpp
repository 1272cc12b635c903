#pragma once

#include <cstdint>
#include <string_view>

#include "reference/model/model_config.hpp"

// For model_config.cpp and the files that it is made of.

namespace loratory {
class JsonFields;
}

namespace loratory::reference {

// Far above any model; low enough that no product of sizes overflows 64 bits.
inline constexpr int64_t kLargestSize = 1 << 24;

/// How the layers of a family differ from Llama's.
enum FamilyTrait : uint32_t {
  kPlain = 0,
  kExperts = 1,          ///< a mixture of experts
  kQkNorm = 2,           ///< norms on the heads of q and k
  kAttentionBias = 4,    ///< biases in attention without saying so
  kPostNorms = 8,        ///< four norms in a layer
  kSinks = 16,           ///< attention sinks, and biases on experts and router
  kFused = 32,           ///< qkv_proj, gate_up_proj
  kLatent = 64,          ///< kv_lora_rank and its relatives
  kLlama4 = 128,         ///< intermediate_size is an expert's, layers alternate by a step
  kAlternates = 256,     ///< without layer_types every other layer has a window, the first too
  kFivePerFull = 512,    ///< without layer_types five layers with a window stand before a full one
  kWindowAlways = 1024,  ///< a sliding_window counts for every layer
  kLlamaCode = 4096,     ///< engines run it as Llama or Mixtral
  kWindowByFlag = 2048,  ///< a sliding_window counts only with use_sliding_window
};

/// What a model_type means when its config is silent: the defaults of transformers 5.
struct ModelFamily {
  std::string_view type;
  int64_t num_heads;     ///< 0 = the file must say
  int64_t num_kv_heads;  ///< 0 = one for each head
  int64_t max_position_embeddings;
  double rms_norm_eps;
  double rope_theta;
  int32_t eos_token_id;  ///< -1 = none
  int64_t head_dim;      ///< 0 = hidden / heads
  int64_t vocab;         ///< 0 = the file must say
  int64_t window;        ///< of a layer with a window; 0 = none unless the file says
  bool is_computed;      ///< false: only its sizes are known
  bool tied_embeddings;
  uint32_t traits;

  bool has(FamilyTrait trait) const { return (traits & trait) != 0; }
};

/// The row of `model_type`. Throws InputError for an unknown one.
const ModelFamily& family_of(const JsonFields& fields);

/// num_heads, num_kv_heads, head_dim and latent.
void read_attention(const JsonFields& fields, const ModelFamily& family, ModelConfig& config);

/// Everything about experts. Needs num_layers and intermediate.
void read_experts(const JsonFields& fields, const ModelFamily& family, ModelConfig& config);

/// layer_windows, from layer_types or what the family does without it.
void read_layer_windows(const JsonFields& fields, const ModelFamily& family, ModelConfig& config);

/// vision_parameters, or a line that they are not counted. Needs hidden.
void read_vision(const JsonFields& root, const ModelFamily& family, ModelConfig& config);

/// From `quantization_config` of a config.json, or from a whole hf_quant_config.json.
WeightQuantization read_quantization(const JsonFields& fields);

}  // namespace loratory::reference
