#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/adapter/base_model_shapes.hpp"
#include "reference/model/weight_quantization.hpp"
#include "reference/numerics/dtype.hpp"

namespace loratory::reference {

/// How RoPE frequencies are changed for contexts longer than the model was trained on.
enum class RopeScaling : uint8_t { none, linear, dynamic, llama3, yarn };

struct RopeConfig {
  double theta = 10000;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;              ///< yarn
  double attention_factor = 0;                       ///< yarn, 0 = 0.1·ln(factor) + 1
  int64_t original_max_position_embeddings = 0;      ///< llama3, yarn, dynamic
};

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): a token leaves
/// kv_rank + rope_dim numbers in the KV cache of a layer, whatever the number of heads.
struct LatentAttention {
  int64_t kv_rank = 0;                            ///< 0 = the model has none
  int64_t q_rank = 0;                             ///< 0 = queries are not compressed
  int64_t nope_dim = 0, rope_dim = 0, v_dim = 0;  ///< of one head
};

/// A decoder-only model of the Llama and Qwen families: RMSNorm, RoPE, grouped-query attention,
/// SwiGLU, optionally a mixture of experts. Of some relatives only the sizes are known: the fields
/// from `layer_windows` on are theirs alone, and of no use to the arithmetic.
struct ModelConfig {
  std::string name;  ///< as the file says (_name_or_path); may be empty
  /// Why the reference cannot compute it: one line, with file and key. Empty = it can. If not
  /// empty, what only the arithmetic needs (RoPE, eps, positions, end tokens) may be unset.
  std::string not_computed;
  int64_t num_layers = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;  ///< of the dense MLP
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t vocab = 0;
  int64_t max_position_embeddings = 0;
  /// Tokens that a layer with a window attends to, the newest included; 0 = no layer has a window.
  /// A context of no more tokens is computed as without it, a longer one is refused.
  int64_t sliding_window = 0;
  double rms_norm_eps = 1e-6;
  Dtype dtype = Dtype::bf16;  ///< of weights and KV cache as served; bf16, f16 or f32
  RopeConfig rope;
  bool tied_embeddings = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;  ///< RMSNorm on each head of q and k before RoPE (Qwen3)

  int64_t num_experts = 0;  ///< 0 = none
  int64_t experts_per_token = 0;
  int64_t expert_intermediate = 0;
  /// Of the expert that sees every token, or of all such experts together; 0 = none [1.53]
  int64_t shared_expert_intermediate = 0;
  bool norm_topk_prob = true;           ///< weights of the chosen experts sum to 1
  std::vector<bool> layer_has_experts;  ///< [num_layers] if num_experts > 0
  /// Adapters may change routers [1.35]. No config.json says so: whoever serves the model does.
  bool router_has_lora = false;
  std::vector<int32_t> eos_token_ids;

  /// [num_layers] or empty: how many tokens a layer's KV cache has to keep, 0 = all. Sliding
  /// windows keep the newest, chunks (Llama 4) those since the last multiple.
  std::vector<int64_t> layer_windows;
  LatentAttention latent;
  bool fused_projections = false;   ///< qkv_proj and gate_up_proj are modules (Phi-3)
  bool post_norms = false;          ///< two more norms in a layer (Gemma 2 and 3)
  bool attention_sinks = false;     ///< one number for each head (gpt-oss)
  bool expert_bias = false;         ///< on every matrix of an expert (gpt-oss)
  bool router_bias = false;         ///< one number for each expert (gpt-oss, DeepSeek-V3)
  bool shared_expert_gate = false;  ///< [1, hidden] that weighs the shared expert (Qwen2-MoE)
  bool has_llama_code = false;      ///< engines run it as Llama: llama, mistral, mixtral
  int64_t vision_parameters = 0;    ///< of a vision tower and its projector, in the model's type
  WeightQuantization quantization;
  std::vector<std::string> ignored;  ///< lines: what the file has and the sizes leave out
};

/// Reads the text of a Hugging Face config.json; the only reader of it. `file` is named in errors.
/// What the file is silent about is what transformers 5 takes. The language model of a multimodal
/// one is read from its `text_config`.
/// Errors   InputError "file: key: what is wrong": no model whose layers are known, an unknown
///          format of quantised weights, a missing or impossible size. What is wrong for the
///          arithmetic only (an activation, a RoPE variant, quantised weights) becomes
///          `not_computed`.
ModelConfig parse_model_config(std::string_view json, const std::string& file);

/// The same for a file of at most 4 MiB; `remedy` is what to do if it cannot be read. Without a
/// quantization_config of its own, the hf_quant_config.json beside it (TensorRT Model Optimizer)
/// counts.
ModelConfig read_model_config(const std::string& path, std::string_view remedy);

/// Throws InputError with the line `not_computed`, if there is one.
void require_computed(const ModelConfig& config);

/// What an adapter must know of it.
BaseModelShapes base_model_shapes(const ModelConfig& config);

}  // namespace loratory::reference
