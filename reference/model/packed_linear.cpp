#include "reference/model/packed_linear.hpp"

#include <array>

namespace loratory::reference {

std::span<const Projection> projections(PackedLinear kind) {
  static constexpr std::array kQkvSlices{Projection::kQ, Projection::kK, Projection::kV};
  static constexpr std::array kOSlices{Projection::kO};
  static constexpr std::array kGateUpSlices{Projection::kGate, Projection::kUp};
  static constexpr std::array kDownSlices{Projection::kDown};
  static constexpr std::array kLmHeadSlices{Projection::kLmHead};
  switch (kind) {
    case PackedLinear::kQkv:
      return kQkvSlices;
    case PackedLinear::kO:
      return kOSlices;
    case PackedLinear::kGateUp:
      return kGateUpSlices;
    case PackedLinear::kDown:
      return kDownSlices;
    case PackedLinear::kLmHead:
      return kLmHeadSlices;
  }
  return {};
}

int64_t num_rows(const ModelConfig& config, Projection projection, bool in_expert) {
  switch (projection) {
    case Projection::kQ:
      return config.num_heads * config.head_dim;
    case Projection::kK:
    case Projection::kV:
      return config.num_kv_heads * config.head_dim;
    case Projection::kGate:
    case Projection::kUp:
      return in_expert ? config.expert_intermediate : config.intermediate;
    case Projection::kRouter:
      return config.num_experts;
    case Projection::kLmHead:
      return config.vocab;
    case Projection::kO:
    case Projection::kDown:
    case Projection::kEmbedTokens:
      return config.hidden;
  }
  return 0;
}

}  // namespace loratory::reference
