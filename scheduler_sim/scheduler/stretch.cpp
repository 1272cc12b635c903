// Regular steps in closed form: between two decisions a step is the last one again, so the counters
// of every request move by one a step and nothing else happens.
#include <algorithm>

#include "reference/base/check.hpp"
#include "scheduler_sim/scheduler/scheduler.hpp"

namespace loratory::sim {

bool Scheduler::repeats_last_step() const {
  return num_in_flight_ == 0 && regular_at_change_ == num_changes();
}

Stretch Scheduler::stretch() const {
  if (!repeats_last_step()) return {};
  Stretch s{kNever, kNever};
  for (const RequestRef ref : running_) {
    s.num_steps = std::min<int64_t>(s.num_steps, int64_t{requests_[ref].num_remaining()} - 1);
  }
  starvation_.limit(s);
  while (s.num_steps > 0 && num_new_blocks(s.num_steps) > pool_.num_allocatable()) s.num_steps /= 2;
  return s.num_steps > 0 ? s : Stretch{};
}

uint64_t Scheduler::num_new_blocks(int64_t num_steps) const {
  uint64_t needed = 0;
  for (const RequestRef ref : running_) {
    const Request& r = requests_[ref];
    needed += missing_blocks(r, r.num_computed + uint64_t(num_steps));
  }
  return needed;
}

uint32_t Scheduler::num_blocks_after(int64_t num_steps) const {
  return pool_.num_referenced() + uint32_t(num_new_blocks(num_steps));
}

void Scheduler::advance(int64_t num_steps) {
  LORATORY_ASSERT(repeats_last_step() && num_steps > 0, "only regular steps can be skipped");
  for (const RequestRef ref : running_) {
    Request& r = requests_[ref];
    r.num_computed += uint32_t(num_steps);
    r.num_generated += uint32_t(num_steps);
    while (r.room < r.num_computed) add_block(r);
  }
  for (const StepAdapter& a : plan_->adapters) residency_.touch_gpu(a.adapter, num_steps);
  plan_->step = num_steps_ += num_steps;
  if (!waiting_.empty()) starvation_.repeat_walk(num_steps);
}

}  // namespace loratory::sim
