#include "scheduler_sim/scheduler/walk_order.hpp"

#include <algorithm>

namespace loratory::sim {

// What is on the GPU does not change during a walk. A reservation packs its adapter too, so that
// nobody is overtaken for ever.
bool WalkOrder::is_packed(AdapterRef adapter) const {
  return adapter == kBaseRef || residency_.ready(adapter) || waiting_.reserves(adapter) ||
         std::ranges::count(had_reservation_, adapter) > 0;
}

WaitKey WalkOrder::behind(const WaitKey& place, bool packed) const {
  WaitKey key = place;
  key.not_packed = false;
  if (is_by_arrival() || place.not_packed != packed) return key;
  key.arrival_seq = packed ? UINT64_MAX : 0;
  return key;
}

}  // namespace loratory::sim
