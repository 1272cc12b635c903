#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/adapter/base_model_shapes.hpp"
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

/// A decoder-only model of the Llama and Qwen families: RMSNorm, RoPE, grouped-query attention,
/// SwiGLU, optionally a mixture of experts. Of some relatives only the sizes are known.
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
  int64_t shared_expert_intermediate = 0;  ///< of the expert that sees every token; 0 = none [1.53]
  bool norm_topk_prob = true;              ///< weights of the chosen experts sum to 1
  std::vector<bool> layer_has_experts;     ///< [num_layers] if num_experts > 0
  std::vector<int32_t> eos_token_ids;
};

/// Reads the text of a Hugging Face config.json; the only reader of it. `file` is named in errors.
/// What the file is silent about is what transformers 5 takes. The language model of a multimodal
/// one is read from its `text_config`.
/// Errors   InputError "file: key: what is wrong": no model whose layers are known, quantised
///          weights, a missing or impossible size. What is wrong for the arithmetic only (an
///          activation, a RoPE variant) becomes `not_computed`.
ModelConfig parse_model_config(std::string_view json, const std::string& file);

/// The same for a file of at most 4 MiB; `remedy` is what to do if it cannot be read.
ModelConfig read_model_config(const std::string& path, std::string_view remedy);

/// Throws InputError with the line `not_computed`, if there is one.
void require_computed(const ModelConfig& config);

/// What an adapter must know of it.
BaseModelShapes base_model_shapes(const ModelConfig& config);

}  // namespace loratory::reference
