#include "reference/model/packed_linear.hpp"

#include <array>

namespace loratory::reference {

std::span<const Projection> projections(PackedLinear kind) {
  static constexpr std::array kQkvSlices{Projection::q, Projection::k, Projection::v};
  static constexpr std::array kOSlices{Projection::o};
  static constexpr std::array kGateUpSlices{Projection::gate, Projection::up};
  static constexpr std::array kDownSlices{Projection::down};
  static constexpr std::array kSharedGateUpSlices{Projection::shared_gate, Projection::shared_up};
  static constexpr std::array kSharedDownSlices{Projection::shared_down};
  static constexpr std::array kSharedRouterSlices{Projection::shared_router};
  static constexpr std::array kRouterSlices{Projection::router};
  static constexpr std::array kLmHeadSlices{Projection::lm_head};
  switch (kind) {
    case PackedLinear::qkv:
      return kQkvSlices;
    case PackedLinear::o:
      return kOSlices;
    case PackedLinear::gate_up:
      return kGateUpSlices;
    case PackedLinear::down:
      return kDownSlices;
    case PackedLinear::shared_gate_up:
      return kSharedGateUpSlices;
    case PackedLinear::shared_down:
      return kSharedDownSlices;
    case PackedLinear::shared_router:
      return kSharedRouterSlices;
    case PackedLinear::router:
      return kRouterSlices;
    case PackedLinear::lm_head:
      return kLmHeadSlices;
  }
  return {};
}

}  // namespace loratory::reference
