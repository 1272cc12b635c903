#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "reference/adapter/base_model_shapes.hpp"

namespace loratory::reference {

/// The matrices of a base model that LoRA changes, one for each slice of a packed layer. In MoE
/// checkpoints w1 = gate, w3 = up, w2 = down.
enum class Projection : uint8_t {
  kQ,
  kK,
  kV,
  kO,
  kGate,
  kUp,
  kDown,
  kRouter,
  kSharedGate,  ///< gate, up and down of the shared expert [1.53]
  kSharedUp,
  kSharedDown,
  kSharedRouter,  ///< shared_expert_gate, one row: how much the shared expert counts
  kEmbedTokens,
  kLmHead,
};

/// "q_proj", "lm_head"
std::string_view projection_name(Projection projection);

/// How the tensors of one checkpoint module spread over projections and experts.
enum class Packing : uint8_t {
  kSingle,          ///< one projection, of one expert if the module has one
  kQkv,             ///< fused qkv_proj: A shared, rows of B split into q, k, v
  kGateUp,          ///< fused gate_up_proj of a dense MLP
  kExperts,         ///< 3-D [E or 1, ...]: one projection of all experts
  kInnerParameter,  ///< PEFT target_parameters, `experts.base_layer`: gate_up_proj of all experts
  kOuterParameter,  ///< `experts` itself: the only targeted parameter, or down_proj
};

/// One module of a checkpoint in the tree of the engine.
struct ModuleRef {
  int64_t layer = -1;                      ///< -1: outside of the layers (embed_tokens, lm_head)
  Projection projection = Projection::kQ;  ///< the first one if the packing has several
  int64_t expert = -1;                     ///< -1: not inside one expert
  Packing packing = Packing::kSingle;
};

/// Which tensor of a module.
enum class TensorRole : uint8_t {
  kA,
  kB,
  kEmbeddingA,
  kEmbeddingB,
  kAScale,  ///< `lora_A.weight_scale`: dequantises an fp8 A
  kBScale,
  kBaseCopy,     ///< `embed_tokens.base_layer.weight`, which PEFT saves beside embedding adapters
  kWholeWeight,  ///< `embed_tokens.weight`, `lm_head.weight`: save_embedding_layers, or trained
};

/// One tensor key taken apart.
struct AdapterKey {
  std::string path;  ///< without "base_model.model." and the suffix: what patterns match [4.7]
  TensorRole role = TensorRole::kA;
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
