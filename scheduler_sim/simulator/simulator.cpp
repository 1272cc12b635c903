#include "scheduler_sim/simulator/simulator.hpp"

#include <algorithm>

#include "reference/base/check.hpp"

namespace loratory::sim {

Simulator::Simulator(const Trace& trace, const SimulationConfig& config,
                     const StepTimeModel& step_time)
    : trace_(trace), engine_(trace, config, step_time, MetricsCollector(trace)) {
  if (config.stop_when_missed) metrics().watch(*config.stop_when_missed);
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    if (trace.requests[i].cancel_ns != kNever) {
      schedule({trace.requests[i].cancel_ns, ScheduledOp::Kind::abort, i});
    }
  }
}

void Simulator::run() {
  std::ranges::stable_sort(ops_, {},
                           [](const ScheduledOp& op) { return std::pair(op.time_ns, op.kind); });
  for (;;) {
    const Moment next = next_call();
    engine_.advance_to(next);
    if (engine_.has_stopped()) return;
    if (next == kEndOfTime) break;
    make_call(next);
  }
  LORATORY_ASSERT(scheduler().num_live() == 0, "the replay ended with live requests");
}

Moment Simulator::next_call() const {
  Moment next = kEndOfTime;
  if (next_op_ < ops_.size()) next = {ops_[next_op_].time_ns, Moment::Phase::operations};
  if (next_arrival_ == trace_.requests.size()) return next;
  return std::min(next, {trace_.requests[next_arrival_].arrival_ns, Moment::Phase::arrivals});
}

void Simulator::make_call(const Moment& moment) {
  if (moment.phase == Moment::Phase::operations) return engine_.run_op(ops_[next_op_++]);
  const size_t request = next_arrival_++;
  engine_.arrive(request, trace_.requests[request]);
  constexpr size_t kArrivalsPerCall = 4096;
  if (next_arrival_ % kArrivalsPerCall == 0 && on_arrivals_) on_arrivals_(int64_t(next_arrival_));
}

}  // namespace loratory::sim
