#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/model/model_config.hpp"

namespace loratory::sim {

/// The shapes of a decoder-only model: everything that its memory and its step time depend on.
/// Layers are: attention (q, k, v, o), a gated MLP (gate, up, down) or experts of that form, and
/// two norms. Per-GPU figures take the tensor-parallel size `tp`; tp = 1 is the whole model.
struct ModelSpec {
  std::string name;
  std::string source;  ///< where the numbers come from
  int64_t hidden = 0;
  int64_t intermediate = 0;         ///< of the dense MLP; of one expert in a MoE model
  int64_t shared_intermediate = 0;  ///< of the expert that sees every token (Qwen2-MoE); 0 = none
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;
  bool tied_embeddings = false;  ///< lm_head is embed_tokens
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;     ///< one norm of head_dim for q and one for k in every layer
  int64_t num_experts = 0;  ///< 0 = dense
  int64_t experts_per_token = 0;
  int64_t dtype_bytes = 2;  ///< weights and KV cache; adapters unless they say otherwise

  int64_t q_size(int tp = 1) const { return num_heads / tp * head_dim; }
  /// With more GPUs than KV heads every GPU keeps one head, replicated.
  int64_t kv_size(int tp = 1) const;
  int64_t attention_parameters(int tp = 1) const;  ///< q, k, v and o of one layer
  int64_t expert_parameters(int tp = 1) const;     ///< gate, up, down: the MLP, or one expert
  /// The same of the shared expert, and the gate [1, hidden] that weighs it.
  int64_t shared_expert_parameters(int tp = 1) const;
  int64_t lm_head_parameters(int tp = 1) const;  ///< read for logits, tied or not
  int64_t num_parameters(int tp = 1) const;      ///< held by one GPU
  int64_t weight_bytes(int tp = 1) const { return num_parameters(tp) * dtype_bytes; }
  int64_t kv_bytes_per_token(int tp = 1) const;  ///< K and V of all layers

  /// Throws InputError when the heads or the MLP do not divide into `tp` equal parts.
  void require_divisible(int tp) const;
};

/// The sizes of a model, from the one reader of config.json (reference/model); also of models that
/// the reference cannot compute. `source`: see ModelSpec; it stands in for an empty name.
/// Throws InputError for a mixture of experts with some dense layers, which is not modelled.
ModelSpec model_spec_of(const reference::ModelConfig& config, std::string source);

/// Names of the presets, in the order in which `--help` shows them.
std::vector<std::string> model_preset_names();

/// A preset by name (case-insensitive), or a Hugging Face config.json if the name is a path.
/// Throws InputError for an unknown name (listing the presets) or a bad file.
ModelSpec load_model_spec(std::string_view name_or_path);

}  // namespace loratory::sim
