#pragma once

#include <cstdint>

#include "scheduler_sim/residency/residency.hpp"

namespace loratory::sim {

/// What only tests ask of the residency tiers as a whole, counted over their adapters.
template <typename Test>
int32_t count_adapters(const Residency& tiers, Test test) {
  int32_t count = 0;
  for (AdapterRef a = 0; a < tiers.ref_limit(); ++a) count += tiers.uid(a) != kBaseUid && test(a);
  return count;
}
inline int32_t num_registered(const Residency& tiers) {
  return count_adapters(tiers, [](AdapterRef) { return true; });
}
inline int32_t num_pinned(const Residency& tiers) {
  return count_adapters(tiers, [&](AdapterRef a) { return tiers.pinned(a); });
}
inline int32_t num_in_state(const Residency& tiers, AdapterState state) {
  return count_adapters(tiers, [&](AdapterRef a) { return tiers.state(a) == state; });
}
/// Places in host memory that are taken, those of adapters that load too.
inline int32_t num_on_cpu(const Residency& tiers) {
  return num_registered(tiers) - num_in_state(tiers, AdapterState::on_disk);
}
/// kBaseUid if the slot is free.
inline Uid slot_owner(const Residency& tiers, int32_t slot) {
  for (AdapterRef a = 0; a < tiers.ref_limit(); ++a) {
    if (tiers.uid(a) != kBaseUid && tiers.slot(a) == slot) return tiers.uid(a);
  }
  return kBaseUid;
}

}  // namespace loratory::sim
