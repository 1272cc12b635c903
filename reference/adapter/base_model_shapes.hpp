#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace loratory::reference {

/// What an adapter must know of its base model: the unsharded sizes of the layers it may change,
/// and what stands before them in checkpoint keys.
struct BaseModelShapes {
  int64_t num_layers = 0;
  int64_t hidden = 0;
  int64_t q_size = 0;        ///< rows of q_proj (twice heads x head_dim with an output gate [1.27])
  int64_t kv_size = 0;       ///< rows of k_proj, and of v_proj
  int64_t o_input = 0;       ///< columns of o_proj: heads x head_dim
  int64_t intermediate = 0;  ///< of the dense MLP; 0 = the model has none
  int64_t vocab = 0;
  int64_t num_experts = 0;  ///< 0 = no mixture of experts
  int64_t expert_intermediate = 0;
  int64_t shared_expert_intermediate = 0;  ///< 0 = no shared expert [1.53]
  /// [num_layers] where some layers have experts and others a dense MLP; empty: all are alike.
  std::vector<bool> layer_has_experts;
  bool tied_embeddings = false;      ///< lm_head is the embedding matrix
  bool interleaved_gate_up = false;  ///< fused expert rows 0::2 gate, 1::2 up (gpt-oss) [1.39]
  bool router_has_lora = false;      ///< the router is declared a replicated linear layer [1.35]

  /// What comes before "layers.0..." and "embed_tokens", and before "lm_head" [4.10].
  std::vector<std::string> decoder_prefixes{"model."};
  std::vector<std::string> lm_head_prefixes{""};
};

}  // namespace loratory::reference
