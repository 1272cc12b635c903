#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/model/model_config.hpp"

namespace loratory::sim {

/// Layers that keep only the newest tokens in the KV cache.
struct KvWindow {
  int64_t tokens = 0;      ///< a layer keeps at most these
  int64_t num_layers = 0;  ///< > 0
};

/// How an engine's blocks hold the KV of layers with a window.
struct KvPricing {
  /// The context length at which they are priced: a layer with a window of w holds min(w, context).
  /// 0 = every layer holds every token.
  int64_t context_tokens = 0;
  double least_share = 0;  ///< never less than this share of a layer that holds all (SGLang)
};

/// The shapes of a decoder-only model: everything that its memory and its step time depend on.
/// Layers are: attention (q, k, v, o, or DeepSeek's latent attention), a gated MLP (gate, up, down)
/// or experts of that form, and two norms or four. Per-GPU figures take the tensor-parallel size
/// `tp`; tp = 1 is the whole model.
struct ModelSpec {
  std::string name;
  std::string source;  ///< where the numbers come from
  int64_t hidden = 0;
  int64_t intermediate = 0;         ///< of the dense MLP; of one expert in a MoE model
  int64_t shared_intermediate = 0;  ///< of the experts that see every token; 0 = none
  int64_t num_layers = 0;
  int64_t num_dense_layers = 0;    ///< layers of a MoE model that have an MLP instead of experts
  int64_t dense_intermediate = 0;  ///< of those
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;
  bool tied_embeddings = false;  ///< lm_head is embed_tokens
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;            ///< one norm of head_dim for q and one for k in every layer
  bool post_norms = false;         ///< four norms in a layer
  bool attention_sinks = false;    ///< a number for each head of a layer
  bool expert_bias = false;        ///< on gate, up and down of every expert
  bool router_bias = false;        ///< a number for each expert
  bool shared_gate = false;        ///< [1, hidden] that weighs the shared expert
  bool fused_projections = false;  ///< adapters target qkv_proj and gate_up_proj
  bool adapts_embeddings = false;  ///< vLLM gives slots room for embed_tokens and lm_head
  int64_t num_experts = 0;         ///< 0 = dense
  int64_t experts_per_token = 0;
  int64_t vision_parameters = 0;  ///< whole on every GPU
  reference::LatentAttention latent;
  std::vector<KvWindow> windows;  ///< of layers that have one; the others keep every token
  reference::WeightQuantization quantization;
  std::vector<int64_t> plain_layers;  ///< see count_plain_layers; empty = every layer is quantised
  int64_t dtype_bytes = 2;            ///< weights that are not quantised, activations, KV cache;
                                      ///< adapters unless they say otherwise
  bool fp8_kv = false;                ///< 1 byte in the KV cache
  std::vector<std::string> notes;     ///< what its file has and these sizes leave out, a line each

  int64_t num_expert_layers() const { return num_experts > 0 ? num_layers - num_dense_layers : 0; }
  int64_t q_size(int tp = 1) const { return num_heads / tp * head_dim; }
  /// With more GPUs than KV heads every GPU keeps one head, replicated.
  int64_t kv_size(int tp = 1) const;
  int64_t attention_parameters(int tp = 1) const;  ///< matrices of one layer
  int64_t expert_parameters(int tp = 1) const;     ///< gate, up, down: the MLP, or one expert
  /// The same of the shared experts, and the gate [1, hidden] that weighs them.
  int64_t shared_expert_parameters(int tp = 1) const;
  int64_t lm_head_parameters(int tp = 1) const;  ///< read for logits, tied or not
  int64_t num_parameters(int tp = 1) const;      ///< held by one GPU
  int64_t weight_bytes(int tp = 1) const;        ///< as stored, with the factors of quantised ones
  int64_t kv_layer_bytes(int tp = 1) const;      ///< of one token in one layer
  int64_t kv_bytes_per_token(int tp = 1, KvPricing pricing = {}) const;  ///< of all layers

  /// Throws InputError when the heads or the MLP do not divide into `tp` equal parts.
  void require_divisible(int tp) const;
};

/// The sizes of a model, from the one reader of config.json (reference/model); also of models that
/// the reference cannot compute. `source`: see ModelSpec; it stands in for an empty name.
ModelSpec model_spec_of(const reference::ModelConfig& config, std::string source);

/// In which type an engine keeps weights ("auto": the checkpoint's; bfloat16, float16, float32, or
/// fp8, to which it quantises on load) and KV cache ("auto": the weights'; fp8).
/// Throws InputError for fp8 on a checkpoint that is quantised already.
void apply_dtypes(ModelSpec& model, std::string_view dtype, std::string_view kv_cache_dtype);

/// Names of the presets, in the order in which `--help` shows them.
std::vector<std::string> model_preset_names();

/// A preset by name (case-insensitive), or a Hugging Face config.json if the name is a path.
/// Throws InputError for an unknown name (listing the presets) or a bad file.
ModelSpec load_model_spec(std::string_view name_or_path);

}  // namespace loratory::sim
