#include "reference/model/packed_linear.hpp"

#include <array>

namespace loratory::reference {

std::span<const Projection> projections(PackedLinear kind) {
  static constexpr std::array kQkvSlices{Projection::kQ, Projection::kK, Projection::kV};
  static constexpr std::array kOSlices{Projection::kO};
  static constexpr std::array kGateUpSlices{Projection::kGate, Projection::kUp};
  static constexpr std::array kDownSlices{Projection::kDown};
  static constexpr std::array kSharedGateUpSlices{Projection::kSharedGate, Projection::kSharedUp};
  static constexpr std::array kSharedDownSlices{Projection::kSharedDown};
  static constexpr std::array kSharedRouterSlices{Projection::kSharedRouter};
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
    case PackedLinear::kSharedGateUp:
      return kSharedGateUpSlices;
    case PackedLinear::kSharedDown:
      return kSharedDownSlices;
    case PackedLinear::kSharedRouter:
      return kSharedRouterSlices;
    case PackedLinear::kLmHead:
      return kLmHeadSlices;
  }
  return {};
}

}  // namespace loratory::reference
