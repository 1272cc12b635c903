#include "scheduler_sim/scheduler/activation.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace loratory::sim {
// The finaliser of SplitMix64.
uint64_t Activation::place_in_set(Uid uid) {
  uid = (uid ^ (uid >> 30)) * 0xbf58476d1ce4e5b9ull;
  uid = (uid ^ (uid >> 27)) * 0x94d049bb133111ebull;
  return uid ^ (uid >> 31);
}

void Activation::ran(const std::vector<StepAdapter>& adapters, int64_t step) {
  for (const auto& [adapter, num_tokens] : adapters) {
    if (adapter >= last_steps_.size()) last_steps_.resize(adapter + 1);
    last_steps_[adapter] = step;
  }
}

std::vector<AdapterRef> Activation::copied_again(const std::vector<StepAdapter>& adapters,
                                                 const Residency& residency, int64_t step) const {
  std::vector<std::tuple<int64_t, uint64_t, AdapterRef>> active;  // the least recent first
  std::vector<bool> is_active(residency.ref_limit());
  for (int32_t slot = 0; slot < residency.config().max_loras; ++slot) {
    const AdapterRef owner = residency.owner(slot);
    if (owner == kBaseRef) continue;
    active.emplace_back(last_step(owner), place_in_set(residency.uid(owner)), owner);
    is_active[owner] = true;
  }
  std::ranges::sort(active);
  std::vector<std::pair<uint64_t, AdapterRef>> in_turn;
  for (const StepAdapter& a : adapters) {
    in_turn.emplace_back(place_in_set(residency.uid(a.adapter)), a.adapter);
  }
  std::ranges::sort(in_turn);
  std::vector<AdapterRef> again;
  for (const auto& [place, adapter] : in_turn) {
    if (is_active[adapter]) {
      active.erase(
          std::ranges::lower_bound(active, std::tuple(last_step(adapter), place, adapter)));
    } else {
      if (residency.ready(adapter)) again.push_back(adapter);
      if (std::ssize(active) >= residency.config().max_loras) {
        is_active[std::get<AdapterRef>(*active.begin())] = false;
        active.erase(active.begin());
      }
    }
    active.emplace_back(step, place, adapter);  // behind the others: in the order of their places
    is_active[adapter] = true;
  }
  return again;
}

}  // namespace loratory::sim
