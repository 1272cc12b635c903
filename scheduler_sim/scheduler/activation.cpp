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

std::vector<AdapterRef> Activation::by_last_step(const Residency& residency) const {
  std::vector<std::tuple<int64_t, uint64_t, AdapterRef>> active;
  for (int32_t slot = 0; slot < residency.config().max_loras; ++slot) {
    const AdapterRef owner = residency.owner(slot);
    if (owner == kBaseRef) continue;
    active.emplace_back(last_step(owner), place_in_set(residency.uid(owner)), owner);
  }
  std::ranges::sort(active);
  std::vector<AdapterRef> adapters;
  for (const auto& [step, place, adapter] : active) adapters.push_back(adapter);
  return adapters;
}

// Whoever is activated goes behind all of the queue, and never has to go: a step has no more
// adapters than there are slots.
std::vector<AdapterRef> Activation::copied_again(const std::vector<StepAdapter>& adapters,
                                                 const Residency& residency) const {
  constexpr size_t kInactive = SIZE_MAX;
  const std::vector<AdapterRef> queue = by_last_step(residency);  // the least recent first
  std::vector<size_t> places(residency.ref_limit(), kInactive);
  for (size_t i = 0; i < queue.size(); ++i) places[queue[i]] = i;
  std::vector<std::pair<uint64_t, AdapterRef>> in_turn;
  for (const StepAdapter& a : adapters) {
    in_turn.emplace_back(place_in_set(residency.uid(a.adapter)), a.adapter);
  }
  std::ranges::sort(in_turn);
  std::vector<AdapterRef> again;
  auto num_active = int32_t(queue.size());
  size_t next_out = 0;
  for (const auto& [place, adapter] : in_turn) {
    if (places[adapter] == kInactive) {
      if (residency.ready(adapter)) again.push_back(adapter);
      if (num_active++ >= residency.config().max_loras) {
        while (places[queue[next_out]] != next_out) ++next_out;
        places[queue[next_out]] = kInactive;
        --num_active;
      }
    }
    places[adapter] = queue.size();
  }
  return again;
}

}  // namespace loratory::sim
