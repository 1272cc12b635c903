#include <algorithm>

#include "reference/model/model_config.hpp"

namespace loratory::reference {

BaseModelShapes base_model_shapes(const ModelConfig& config) {
  const auto& has_experts = config.layer_has_experts;
  const bool some_dense =
      config.num_experts == 0 ||
      std::find(has_experts.begin(), has_experts.end(), false) != has_experts.end();
  BaseModelShapes shapes;
  shapes.num_layers = config.num_layers;
  shapes.hidden = config.hidden;
  shapes.q_size = config.num_heads * config.head_dim;
  shapes.kv_size = config.num_kv_heads * config.head_dim;
  shapes.o_input = shapes.q_size;
  shapes.intermediate = some_dense ? config.intermediate : 0;
  if (some_dense && config.num_experts > 0) shapes.layer_has_experts = has_experts;
  shapes.vocab = config.vocab;
  shapes.num_experts = config.num_experts;
  shapes.expert_intermediate = config.num_experts == 0 ? 0 : config.expert_intermediate;
  shapes.shared_expert_intermediate = config.shared_expert_intermediate;
  shapes.tied_embeddings = config.tied_embeddings;
  shapes.router_has_lora = config.router_has_lora && config.num_experts > 0;
  return shapes;
}

}  // namespace loratory::reference
