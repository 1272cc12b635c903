#pragma once

#include <string>
#include <vector>

#include "reference/adapter/adapter.hpp"

namespace loratory::reference {

/// One checkpoint module with its tensors, before it is spread over projections and experts.
struct CheckpointModule {
  std::string path;  ///< for patterns, without the name of a parameter
  ModuleRef ref;
  const StoredTensor* a = nullptr;
  const StoredTensor* b = nullptr;
  const StoredTensor* a_scale = nullptr;
  const StoredTensor* b_scale = nullptr;
  bool is_embedding = false;  ///< lora_embedding_A and _B

  /// A tensor to name in errors.
  const std::string& key() const { return a != nullptr ? a->name : b->name; }
};

/// N and K of the base weight [N, K] of one projection.
struct BaseShape {
  int64_t rows = 0;
  int64_t columns = 0;
};

/// Whether target_parameters names the weight of a router itself, `<path>.weight`: transformers 5
/// keeps it as a parameter, so that PEFT's all-linear targets it so.
bool targets_router_weight(const CheckpointModule& module, const AdapterConfig& config);

BaseShape base_shape(const BaseModelShapes& shapes, Projection projection, bool in_expert);

/// Spreads one module: q, k, v of a fused qkv_proj, every expert of a fused tensor. Throws E_SHAPE,
/// E_CONFIG(r | rank_pattern | target_parameters).
std::vector<LoraModule> expand_module(const CheckpointModule& module, const AdapterConfig& config,
                                      const BaseModelShapes& shapes, StepBudget& budget);

}  // namespace loratory::reference
