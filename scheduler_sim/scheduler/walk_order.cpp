#include "scheduler_sim/scheduler/walk_order.hpp"

namespace loratory::sim {

// A reservation packs its adapter too, so that nobody is overtaken for ever.
void WalkOrder::begin_walk() {
  if (is_by_arrival()) return;
  packed_.assign(residency_.ref_limit(), false);
  for (const AdapterRef adapter : waiting_.adapters()) {
    if (adapter != kBaseRef) packed_[adapter] = residency_.ready(adapter);
  }
  for (const auto& [key, adapter] : waiting_.reserving()) packed_[adapter] = true;
}

}  // namespace loratory::sim
