#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/model/model.hpp"
#include "reference/numerics/dtype.hpp"

namespace loratory::gpu {

/// A tensor of a model.
enum class WeightRole : uint8_t {
  embed_tokens,
  norm,
  lm_head,
  input_norm,
  q,
  k,
  v,
  q_bias,
  k_bias,
  v_bias,
  q_norm,
  k_norm,
  o,
  o_bias,
  post_attention_norm,
  gate,
  up,
  gate_bias,
  up_bias,
  down,
  down_bias,
  router,
};

/// One tensor of a checkpoint, [rows, columns] row-major (a vector has one column), and where its
/// numbers lie: q, k and v one below the other, gate and up too, so that each pair is one product.
struct WeightPart {
  WeightRole role = WeightRole::norm;
  int64_t layer = -1;   ///< -1: not of a layer
  int64_t expert = -1;  ///< -1: not of an expert
  int64_t num_rows = 0, num_columns = 1;
  int64_t offset = 0;  ///< bytes

  int64_t size() const { return num_rows * num_columns; }
  bool is_vector() const { return num_columns == 1 && expert < 0; }
};

/// How a checkpoint calls experts: Mixtral's own names, or Qwen's, which transformers 5 uses for
/// all; all experts of a layer in one tensor, or each on its own.
struct ExpertNames {
  bool of_mixtral = false, fused = false;
};

/// "model.layers.3.self_attn.q_proj.weight", as a Hugging Face checkpoint has it.
std::string checkpoint_name(const WeightPart& part, const ExpertNames& names = {});

/// The numbers of a part in a loaded model: a matrix [rows, columns] or a vector.
struct WeightNumbers {
  const reference::Matrix<float>* matrix = nullptr;
  const reference::Vector<float>* vector = nullptr;

  float at(int64_t row, int64_t column) const {
    return matrix != nullptr ? (*matrix)(row, column) : (*vector)(row);
  }
};
WeightNumbers numbers_of(const reference::Model& model, const WeightPart& part);

/// Bytes from the start of the weights; -1: the model has no such tensor.
struct LayerOffsets {
  int64_t input_norm = -1, post_attention_norm = -1;
  int64_t qkv = -1, qkv_bias = -1;  ///< [(heads + 2 kv heads) head_dim, hidden]
  int64_t q_norm = -1, k_norm = -1;
  int64_t o = -1, o_bias = -1;
  int64_t gate_up = -1, gate_up_bias = -1;  ///< [2 intermediate, hidden]
  int64_t down = -1, down_bias = -1;
  int64_t router = -1;           ///< [E, hidden]
  int64_t experts_gate_up = -1;  ///< [E, 2 expert_intermediate, hidden]
  int64_t experts_down = -1;     ///< [E, hidden, expert_intermediate]
};

/// The weights of a model in one allocation, all in one dtype.
struct WeightLayout {
  int64_t embed_tokens = 0;
  int64_t lm_head = 0;  ///< that of embed_tokens if they are tied
  int64_t norm = 0;
  std::vector<LayerOffsets> layers;
  std::vector<WeightPart> parts;  ///< every tensor of the checkpoint, offsets ascending
  int64_t bytes = 0;
};

/// One tensor of a checkpoint as it is stored: one part, or those of all experts of a layer, which
/// lie in the layout as a fused tensor has them.
struct StoredPart {
  std::string name;
  std::vector<int64_t> shape;
  int64_t offset = 0;  ///< bytes from the start of the weights
};
std::vector<StoredPart> stored_parts(const WeightLayout& layout, const ExpertNames& names);

WeightLayout lay_out_weights(const reference::ModelConfig& config, reference::Dtype dtype);

}  // namespace loratory::gpu
