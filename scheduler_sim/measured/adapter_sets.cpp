#include "scheduler_sim/measured/adapter_sets.hpp"

#include "scheduler_sim/workload/random.hpp"

namespace loratory::sim {
namespace {

constexpr uint64_t kWaiting = 1, kRunning = 2;

}  // namespace

void AdapterSets::add(int32_t& count, int32_t change, Uid uid, uint64_t salt) {
  const bool was_in = count > 0;
  count += change;
  if (was_in != (count > 0)) state_ ^= RandomStream(salt, uint64_t{0}).bits(uid);
}

void AdapterSets::on_decision(const Decision& d) {
  if (d.uid == kBaseUid) return;
  if (d.uid >= counts_.size()) counts_.resize(d.uid + 1);
  Counts& counts = counts_[d.uid];
  if (d.is<decision::Arrival>()) {
    add(counts.waiting, +1, d.uid, kWaiting);
  } else if (d.is<decision::FirstToken>()) {
    add(counts.waiting, -1, d.uid, kWaiting);
    add(counts.running, +1, d.uid, kRunning);
    seen_.insert(state_);
  } else if (d.is<decision::Finish>()) {
    add(counts.running, -1, d.uid, kRunning);
    seen_.insert(state_);
  }
}

}  // namespace loratory::sim
