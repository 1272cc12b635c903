#include "scheduler_sim/fleet/replica.hpp"

#include <algorithm>
#include <tuple>

#include "reference/base/check.hpp"

namespace loratory::sim {
namespace {

int64_t last_arrival_ns(const Trace& trace) {
  return trace.requests.empty() ? 0 : trace.requests.back().arrival_ns;
}

}  // namespace

bool Replica::Op::operator<(const Op& other) const {
  return std::tie(op.time_ns, op.kind, number) >
         std::tie(other.op.time_ns, other.op.kind, other.number);
}

Replica::Replica(const Trace& trace, const SimulationConfig& config, const StepTimeModel& step_time,
                 const std::vector<AdapterIndex>& pins)
    : trace_(trace), engine_(trace, config, step_time, MetricsCollector(last_arrival_ns(trace))) {
  for (const AdapterIndex adapter : pins) {
    ops_.push({{0, ScheduledOp::Kind::pin, adapter}, num_ops_++});
  }
}

int64_t Replica::quiet_until_ns() const {
  const int64_t quiet_ns = engine_.quiet_until_ns();
  return ops_.empty() ? quiet_ns : std::min(quiet_ns, ops_.top().op.time_ns);
}

void Replica::run_ops_before(const Moment& until, Advance how) {
  while (!ops_.empty()) {
    const ScheduledOp op = ops_.top().op;
    const Moment moment{op.time_ns, Moment::Phase::operations};
    if (moment >= until) return;
    (engine_.*how)(moment);
    engine_.run_op(op);
    ops_.pop();
  }
}

void Replica::advance(int64_t time_ns, Advance how) {
  const Moment until{time_ns, Moment::Phase::arrivals};
  run_ops_before(until, how);
  (engine_.*how)(until);
}

void Replica::arrive(size_t trace_index) {
  const TraceRequest& request = trace_.requests[trace_index];
  const size_t id = requests_.size();
  requests_.push_back(trace_index);
  engine_.metrics().add_request(request);
  if (request.cancel_ns != kNever) {
    ops_.push({{request.cancel_ns, ScheduledOp::Kind::abort, id}, num_ops_++});
  }
  engine_.arrive(id, request);
}

void Replica::finish() {
  run_ops_before(kEndOfTime, &SimulatedEngine::advance_to);
  engine_.advance_to(kEndOfTime);
  LORATORY_ASSERT(engine_.scheduler().num_live() == 0, "the replay ended with live requests");
}

}  // namespace loratory::sim
