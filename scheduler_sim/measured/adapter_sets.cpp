#include "scheduler_sim/measured/adapter_sets.hpp"

#include "scheduler_sim/workload/random.hpp"

namespace loratory::sim {
namespace {

constexpr uint64_t kWaiting = 1, kRunning = 2;

}  // namespace

void AdapterSets::report() {
  if (seen_.insert(state_).second) num_names_ += num_members_;
}

void AdapterSets::add(int32_t& count, int32_t change, Uid uid, uint64_t salt) {
  const bool was_in = count > 0;
  count += change;
  if (was_in == (count > 0)) return;
  state_ ^= RandomStream(salt, uint64_t{0}).bits(uid);
  num_members_ += was_in ? -1 : 1;
}

// What a step changed is reported when the next thing happens.
void AdapterSets::on_decision(const Decision& d) {
  if (d.uid == kBaseUid) return;
  const bool first = d.is<decision::FirstToken>(), finish = d.is<decision::Finish>();
  if (step_end_ns_ >= 0 && d.time_ns > step_end_ns_) {
    report();
    step_end_ns_ = -1;
  }
  if (first || finish) step_end_ns_ = d.time_ns;
  if (d.uid >= counts_.size()) counts_.resize(d.uid + 1);
  Counts& counts = counts_[d.uid];
  if (first || d.is<decision::Arrival>()) add(counts.waiting, first ? -1 : 1, d.uid, kWaiting);
  if (first || finish) add(counts.running, finish ? -1 : 1, d.uid, kRunning);
}

}  // namespace loratory::sim
