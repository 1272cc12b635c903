#pragma once

#include <cstdint>
#include <span>

#include "reference/adapter/adapter_key.hpp"

namespace loratory::reference {

/// The linear layers that an engine computes as one, slices side by side in this order.
enum class PackedLinear : uint8_t {
  qkv,             ///< q | k | v
  o,               ///< o
  gate_up,         ///< gate | up, of the dense MLP or of one expert
  down,            ///< down
  shared_gate_up,  ///< gate | up of the shared expert
  shared_down,
  shared_router,  ///< shared_expert_gate, one row
  router,         ///< scores of the experts, where the model declares LoRA there [1.35]
  lm_head,        ///< logits
};

/// One such layer of a model.
struct LinearRef {
  int64_t layer = -1;   ///< -1: lm_head
  int64_t expert = -1;  ///< -1: not in an expert
  PackedLinear kind = PackedLinear::qkv;

  friend auto operator<=>(const LinearRef&, const LinearRef&) = default;
};

/// Its slices. Lifetime: static.
std::span<const Projection> projections(PackedLinear kind);

}  // namespace loratory::reference
