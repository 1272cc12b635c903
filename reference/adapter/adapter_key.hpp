#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "reference/adapter/base_model_shapes.hpp"

namespace loratory::reference {

/// The matrices of a base model that LoRA changes, one for each slice of a packed layer. In MoE
/// checkpoints w1 = gate, w3 = up, w2 = down.
enum class Projection : uint8_t {
  q,
  k,
  v,
  o,
  gate,
  up,
  down,
  router,
  shared_gate,  ///< gate, up and down of the shared expert [1.53]
  shared_up,
  shared_down,
  shared_router,  ///< shared_expert_gate, one row: how much the shared expert counts
  embed_tokens,
  lm_head,
};

/// "q_proj", "lm_head"
std::string_view projection_name(Projection projection);

/// How the tensors of one checkpoint module spread over projections and experts.
enum class Packing : uint8_t {
  single,           ///< one projection, of one expert if the module has one
  qkv,              ///< fused qkv_proj: A shared, rows of B split into q, k, v
  gate_up,          ///< fused gate_up_proj of a dense MLP
  experts,          ///< 3-D [E or 1, ...]: one projection of all experts
  inner_parameter,  ///< PEFT target_parameters, `experts.base_layer`: gate_up_proj of all experts
  outer_parameter,  ///< `experts` itself: the only targeted parameter, or down_proj
};

/// One module of a checkpoint in the tree of the engine.
struct ModuleRef {
  int64_t layer = -1;                     ///< -1: outside of the layers (embed_tokens, lm_head)
  Projection projection = Projection::q;  ///< the first one if the packing has several
  int64_t expert = -1;                    ///< -1: not inside one expert
  Packing packing = Packing::single;
};

/// Which tensor of a module.
enum class TensorRole : uint8_t {
  a,
  b,
  embedding_a,
  embedding_b,
  a_scale,  ///< `lora_A.weight_scale`: dequantises an fp8 A
  b_scale,
  base_copy,     ///< `embed_tokens.base_layer.weight`, which PEFT saves beside embedding adapters
  whole_weight,  ///< `embed_tokens.weight`, `lm_head.weight`: save_embedding_layers, or trained
};

/// One tensor key taken apart.
struct AdapterKey {
  std::string path;  ///< without "base_model.model." and the suffix: what patterns match [4.7]
  TensorRole role = TensorRole::a;
};

/// The grammar of [4.9]: base_model.model.<path>.(lora_A|lora_B).weight, lora_embedding_A|B, the
/// fp8 scales and copies of embeddings. Errors: E_KEY with a hint, E_UNSUPPORTED(dora | bias |
/// modules_to_save).
AdapterKey parse_adapter_key(std::string_view key);

/// The module of `path` in the engine's tree [4.10] [4.11]. `key` is named in errors: E_KEY for an
/// unknown prefix or module, a layer or expert that the model does not have;
/// E_UNSUPPORTED(router) unless the model declares LoRA there.
ModuleRef parse_module_path(std::string_view path, std::string_view key,
                            const BaseModelShapes& shapes);

}  // namespace loratory::reference
