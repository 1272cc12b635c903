#include "scheduler_sim/simulator/simulator.hpp"

#include <algorithm>

#include "reference/base/check.hpp"

namespace loratory::sim {

Simulator::Simulator(const Trace& trace, const SimulationConfig& config,
                     const StepTimeModel& step_time)
    : trace_(trace),
      config_(config),
      log_(config.keep_log),
      metrics_(trace),
      executor_(step_time, config.loads),
      loop_(config.scheduler, executor_, {&log_, &metrics_}, &metrics_) {
  LORATORY_ASSERT(config.adapter_bytes.size() == trace.adapters.size() &&
                      config.adapter_ranks.size() == trace.adapters.size(),
                  "one size and one rank for every adapter of the trace");
  LORATORY_ASSERT(trace.block_tokens % config.scheduler.block_size == 0,
                  "the trace's blocks must be whole KV blocks");
  LORATORY_ASSERT(config.loads.num_workers == config.scheduler.residency.num_load_workers,
                  "the scheduler and the disk agree on the number of workers");
  register_adapters();
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    if (trace.requests[i].cancel_ns != kNever) {
      schedule({trace.requests[i].cancel_ns, ScheduledOp::Kind::abort, i});
    }
  }
}

void Simulator::register_adapters() {
  loop_.call(0, [this](Scheduler& scheduler, int64_t now_ns) {
    for (AdapterIndex i = 0; i < trace_.adapters.size(); ++i) {
      const auto added =
          scheduler.register_adapter(trace_.adapters[i].name, config_.adapter_ranks[i],
                                     config_.adapter_bytes[i], /*replace=*/false, now_ns);
      LORATORY_ASSERT(added.status == RegisterStatus::ok, "names of a trace's adapters are unique");
      uids_.push_back(added.uid);
      metrics_.on_registered(i, uids_.back());
    }
  });
}

void Simulator::run() {
  std::ranges::stable_sort(ops_, {},
                           [](const ScheduledOp& op) { return std::pair(op.time_ns, op.kind); });
  for (;;) {
    const Moment next = next_call();
    do {
      if (config_.fast && loop_.plans_next(next)) skip_regular_steps(next.time_ns);
    } while (loop_.advance(next));
    if (next == kEndOfTime) break;
    next.phase == Moment::Phase::arrivals ? arrive() : run_op(ops_[next_op_++]);
  }
  LORATORY_ASSERT(scheduler().num_live() == 0, "the replay ended with live requests");
}

// --- calls ----------------------------------------------------------------------------------

Moment Simulator::next_call() const {
  Moment next = kEndOfTime;
  if (next_op_ < ops_.size()) next = {ops_[next_op_].time_ns, Moment::Phase::operations};
  if (next_arrival_ == trace_.requests.size()) return next;
  return std::min(next, {trace_.requests[next_arrival_].arrival_ns, Moment::Phase::arrivals});
}

void Simulator::arrive() {
  const size_t request = next_arrival_++;
  const TraceRequest& r = trace_.requests[request];
  loop_.call(r.arrival_ns, [&](Scheduler& scheduler, int64_t now_ns) {
    metrics_.on_arrival(request, tier_of(r.adapter));
    const SubmitStatus status = scheduler.submit(spec_of(request), now_ns);
    if (status != SubmitStatus::ok) metrics_.on_rejected(request);
    metrics_.sample(scheduler, now_ns);
  });
}

// Blocks of the trace, cut into KV blocks; only full ones can be shared. The parts of one go by its
// id: what is before a block is part of its identity, so they can not be mistaken for each other.
RequestSpec Simulator::spec_of(size_t request) {
  const TraceRequest& r = trace_.requests[request];
  RequestSpec spec;
  spec.id = request;
  spec.adapter = uid_of(r.adapter);
  spec.priority = r.priority;
  spec.num_prompt_tokens = r.prompt_tokens;
  spec.max_new_tokens = r.output_tokens;
  spec.tokens = trace_.tokens_of(r);
  contents_.clear();
  const uint64_t per_block = trace_.block_tokens / config_.scheduler.block_size;
  const uint64_t num_full = r.prompt_tokens / config_.scheduler.block_size;
  for (const uint64_t block : trace_.blocks_of(r)) {
    contents_.insert(contents_.end(), std::min(per_block, num_full - contents_.size()), block);
  }
  spec.block_contents = contents_;
  return spec;
}

Uid Simulator::uid_of(AdapterIndex adapter) const {
  return adapter == kBaseModel ? kBaseUid : uids_[adapter];
}

// An adapter whose unload has completed is nowhere but on the disk.
ArrivalTier Simulator::tier_of(AdapterIndex adapter) const {
  if (adapter == kBaseModel) return ArrivalTier::base_model;
  const Residency& residency = scheduler().residency();
  const AdapterRef ref = residency.find_uid(uids_[adapter]);
  switch (ref == kBaseRef ? AdapterState::on_disk : residency.state(ref)) {
    case AdapterState::on_gpu:
      return ArrivalTier::gpu;
    case AdapterState::on_cpu:
    case AdapterState::copying:
      return ArrivalTier::cpu;
    case AdapterState::on_disk:
    case AdapterState::loading:
      return ArrivalTier::disk;
  }
  return ArrivalTier::disk;
}

void Simulator::run_op(const ScheduledOp& op) {
  loop_.call(op.time_ns, [&](Scheduler& scheduler, int64_t now_ns) {
    switch (op.kind) {
      case ScheduledOp::Kind::abort:
        scheduler.abort(op.target, now_ns);
        break;
      case ScheduledOp::Kind::unload:
        scheduler.unload_adapter(trace_.adapters[op.target].name, false, now_ns);
        break;
      case ScheduledOp::Kind::pin:
        scheduler.pin(uids_[op.target], now_ns);
        break;
      case ScheduledOp::Kind::unpin:
        scheduler.unpin(uids_[op.target], now_ns);
        break;
    }
  });
}

// --- fast mode ------------------------------------------------------------------------------

// The counters of every request move in closed form; only the clock is stepped, because each
// duration is rounded to whole nanoseconds. A step that would end at or after the next event is
// left to the ordinary way.
void Simulator::skip_regular_steps(int64_t until_ns) {
  const Stretch stretch = scheduler().stretch();
  if (stretch.num_steps == 0) return;
  const int64_t horizon_ns = std::min(until_ns, executor_.next(until_ns).time_ns);
  int64_t num_steps = 0, now_ns = loop_.now_ns();
  BatchShape shape = executor_.shape();
  for (; num_steps < stretch.num_steps && now_ns < stretch.deadline_ns; ++num_steps) {
    CostExecutor::move_one_step(shape);
    const int64_t step_ns = executor_.step_ns(shape);
    if (horizon_ns - now_ns <= step_ns) break;
    now_ns += step_ns;
    metrics_.on_regular_step(shape.num_seqs, step_ns);
  }
  if (num_steps == 0) return;
  metrics_.on_regular_steps_end(now_ns);
  loop_.skip_steps(num_steps, now_ns);
}

}  // namespace loratory::sim
