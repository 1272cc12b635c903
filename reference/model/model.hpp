#pragma once

#include <string>
#include <vector>

#include "reference/adapter/adapter_key.hpp"
#include "reference/adapter/base_model_shapes.hpp"
#include "reference/model/model_config.hpp"
#include "reference/numerics/matrix.hpp"
#include "reference/numerics/tensor.hpp"

namespace loratory::reference {

/// y = W x + b. Weights are kept as float, which every dtype of a checkpoint fits in exactly.
struct LinearWeights {
  Matrix<float> weight;  ///< [N, K]
  Vector<float> bias;    ///< [N], or empty
};

struct MlpWeights {
  LinearWeights gate, up, down;
};

struct LayerWeights {
  Vector<float> input_norm, post_attention_norm;  ///< [hidden]
  LinearWeights q, k, v, o;
  Vector<float> q_norm, k_norm;     ///< [head_dim], or empty
  MlpWeights mlp;                   ///< empty in a layer with experts
  Matrix<float> router;             ///< [E, hidden], or empty
  std::vector<MlpWeights> experts;  ///< E
  MlpWeights shared_expert;         ///< empty unless the layer has one [1.53]
  LinearWeights shared_router;      ///< [1, hidden], "shared_expert_gate"

  bool has_shared_expert() const { return shared_router.weight.size() != 0; }
};

struct Model {
  ModelConfig config;
  Matrix<float> embed_tokens;  ///< [vocab, hidden]
  std::vector<LayerWeights> layers;
  Vector<float> norm;     ///< [hidden]
  Matrix<float> lm_head;  ///< [vocab, hidden], or empty: tied to embed_tokens

  const Matrix<float>& output_embedding() const {
    return lm_head.size() == 0 ? embed_tokens : lm_head;
  }
};

/// Loads a Hugging Face folder: config.json, and model.safetensors or the shards that
/// model.safetensors.index.json names.
/// Errors   InputError naming file and key: missing, unknown or doubled tensors, a wrong shape or
///          dtype, what ModelConfig does not support.
Model load_model(const std::string& directory);

}  // namespace loratory::reference
