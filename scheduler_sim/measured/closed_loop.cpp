#include "scheduler_sim/measured/closed_loop.hpp"

#include <algorithm>

#include "reference/base/check.hpp"

namespace loratory::sim {

ClosedLoop::ClosedLoop(int64_t concurrency, int64_t num_requests, int64_t turnaround_ns)
    : num_left_(num_requests), turnaround_ns_(turnaround_ns) {
  LORATORY_ASSERT(turnaround_ns >= 1, "an end is seen before the next request comes");
  const int64_t first = std::min(concurrency, num_requests);
  due_ns_.assign(size_t(first), 0);
  num_left_ -= first;
}

void ClosedLoop::on_decision(const Decision& decision) {
  if (decision.is<decision::Finish>()) on_end(decision.time_ns);
}

void ClosedLoop::on_end(int64_t time_ns) {
  if (num_left_ == 0) return;
  due_ns_.push_back(time_ns + turnaround_ns_);
  --num_left_;
}

// Whatever ends from the horizon on brings a request no sooner than a turnaround later.
std::optional<int64_t> ClosedLoop::next_ns(SimulatedEngine& engine, int64_t end_ns) {
  while (due_ns_.empty()) {
    if (num_left_ == 0 || engine.scheduler().num_live() == 0) return std::nullopt;
    const int64_t quiet_ns = std::max(horizon_ns_, engine.quiet_until_ns());
    if (quiet_ns >= end_ns) return std::nullopt;
    horizon_ns_ = std::min(quiet_ns + turnaround_ns_, end_ns);
    engine.advance_lazily_to({horizon_ns_, Moment::Phase::arrivals});
  }
  const int64_t time_ns = due_ns_.front();
  if (time_ns >= end_ns) return std::nullopt;
  due_ns_.pop_front();
  horizon_ns_ = std::max(horizon_ns_, time_ns);
  return time_ns;
}

}  // namespace loratory::sim
