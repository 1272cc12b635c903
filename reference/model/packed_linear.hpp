#pragma once

#include <cstdint>
#include <span>

#include "reference/adapter/adapter_key.hpp"
#include "reference/model/model_config.hpp"

namespace loratory::reference {

/// The linear layers that an engine computes as one, slices side by side in this order.
enum class PackedLinear : uint8_t {
  kQkv,     ///< q | k | v
  kO,       ///< o
  kGateUp,  ///< gate | up, of the dense MLP or of one expert
  kDown,    ///< down
  kLmHead,  ///< logits
};

/// One such layer of a model.
struct LinearRef {
  int64_t layer = -1;   ///< -1: lm_head
  int64_t expert = -1;  ///< -1: not in an expert
  PackedLinear kind = PackedLinear::kQkv;

  friend auto operator<=>(const LinearRef&, const LinearRef&) = default;
};

/// Its slices. Lifetime: static.
std::span<const Projection> projections(PackedLinear kind);

/// Rows of the weight of one slice: of an expert's matrix if `in_expert`.
int64_t num_rows(const ModelConfig& config, Projection projection, bool in_expert);

}  // namespace loratory::reference
