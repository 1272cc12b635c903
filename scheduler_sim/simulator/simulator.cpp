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
      scheduler_(config.scheduler, &tee_),
      executor_(step_time, scheduler_.residency()),
      disk_(config.loads),
      copies_(config.loads) {
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

// In trace order, so that an AdapterRef is an AdapterIndex.
void Simulator::register_adapters() {
  for (size_t i = 0; i < trace_.adapters.size(); ++i) {
    const auto added = scheduler_.register_adapter(
        trace_.adapters[i].name, config_.adapter_ranks[i], config_.adapter_bytes[i], false, 0);
    LORATORY_ASSERT(added.status == RegisterStatus::ok && added.adapter == i,
                    "names of a trace's adapters are unique");
  }
}

void Simulator::run() {
  std::ranges::stable_sort(ops_, {},
                           [](const ScheduledOp& op) { return std::pair(op.time_ns, op.kind); });
  for (;;) {
    NextEvent event = next_event();
    if (event.kind == EventKind::none) break;
    now_ns_ = event.time_ns;
    for (; event.kind != EventKind::none && event.time_ns == now_ns_; event = next_event()) {
      run_event(event.kind);
    }
    if (step_ == nullptr) plan_next_step();
    LORATORY_ASSERT(step_ != nullptr || scheduler_.waiting().empty() ||
                        scheduler_.residency().transfer_in_flight(),
                    "requests wait, nothing runs and nothing is on its way");
  }
  LORATORY_ASSERT(scheduler_.num_live() == 0, "the replay ended with live requests");
}

// The first of its time in the order of EventKind.
Simulator::NextEvent Simulator::next_event() const {
  NextEvent best{kNever, EventKind::none};
  const auto offer = [&best](int64_t time_ns, EventKind kind) {
    if (time_ns < best.time_ns) best = {time_ns, kind};
  };
  if (next_arrival_ < trace_.requests.size()) {
    offer(trace_.requests[next_arrival_].arrival_ns, EventKind::arrival);
  }
  offer(disk_.next_completion().time_ns, EventKind::load_done);
  offer(copies_.next_completion().time_ns, EventKind::copy_done);
  offer(step_end_ns_, EventKind::step_done);
  if (next_op_ < ops_.size()) offer(ops_[next_op_].time_ns, EventKind::op);
  return best;
}

void Simulator::run_event(EventKind kind) {
  switch (kind) {
    case EventKind::arrival:
      arrive();
      break;
    case EventKind::load_done:
      finish_load();
      break;
    case EventKind::copy_done:
      finish_copy();
      break;
    case EventKind::step_done:
      finish_step();
      break;
    case EventKind::op:
      run_op(ops_[next_op_++]);
      break;
    case EventKind::none:
      return;
  }
  start_transfers();
  start_step_if_ready();
}

// --- events ---------------------------------------------------------------------------------

void Simulator::arrive() {
  const size_t request = next_arrival_++;
  metrics_.on_arrival(request, tier_of(trace_.requests[request].adapter));
  const SubmitStatus status = scheduler_.submit(spec_of(request), now_ns_);
  if (status != SubmitStatus::ok) metrics_.on_rejected(request);
  metrics_.sample(scheduler_, now_ns_);
}

// Blocks of the trace, cut into KV blocks; only full ones can be shared. The parts of one go by its
// id: what is before a block is part of its identity, so they can not be mistaken for each other.
RequestSpec Simulator::spec_of(size_t request) {
  const TraceRequest& r = trace_.requests[request];
  RequestSpec spec;
  spec.id = request;
  spec.adapter = r.adapter == kBaseModel ? kBaseRef : AdapterRef(r.adapter);
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

ArrivalTier Simulator::tier_of(AdapterIndex adapter) const {
  if (adapter == kBaseModel) return ArrivalTier::base_model;
  switch (scheduler_.residency().state(AdapterRef(adapter))) {
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

void Simulator::finish_load() {
  scheduler_.load_done(AdapterRef(disk_.complete(now_ns_)), /*ok=*/true, now_ns_);
}

void Simulator::finish_copy() {
  scheduler_.copy_done(AdapterRef(copies_.complete(now_ns_)), now_ns_);
}

void Simulator::finish_step() {
  metrics_.on_step_end(scheduler_, *step_, step_start_ns_, now_ns_);
  step_ = nullptr;
  step_end_ns_ = kNever;
  scheduler_.commit({}, now_ns_);
  metrics_.on_commit(scheduler_, now_ns_);
}

void Simulator::run_op(const ScheduledOp& op) {
  switch (op.kind) {
    case ScheduledOp::Kind::abort:
      scheduler_.abort(op.target, now_ns_);
      break;
    case ScheduledOp::Kind::unload:
      scheduler_.unload_adapter(trace_.adapters[op.target].name, false, now_ns_);
      break;
    case ScheduledOp::Kind::pin:
      scheduler_.pin(AdapterRef(op.target), now_ns_);
      break;
    case ScheduledOp::Kind::unpin:
      scheduler_.unpin(AdapterRef(op.target), now_ns_);
      break;
  }
}

void Simulator::start_transfers() {
  ResidencyActions& starts = scheduler_.starts();
  for (const LoadStart& load : starts.loads) disk_.start(load.adapter, load.bytes, now_ns_);
  for (const CopyStart& copy : starts.copies) copies_.start(copy.adapter, copy.bytes, now_ns_);
  starts.clear();
}

// --- steps ----------------------------------------------------------------------------------

void Simulator::plan_next_step() {
  if (config_.fast) skip_regular_steps();
  const StepPlan& plan = scheduler_.plan(now_ns_);
  start_transfers();
  if (plan.empty()) return;
  step_ = &plan;
  step_start_ns_ = -1;
  start_step_if_ready();
}

// In blocking load mode the step waits for its adapters first.
void Simulator::start_step_if_ready() {
  if (step_ == nullptr || step_end_ns_ != kNever || !scheduler_.step_can_start()) return;
  shape_ = executor_.shape_of(*step_);
  step_start_ns_ = now_ns_;
  step_end_ns_ = now_ns_ + executor_.step_ns(shape_);
}

// The counters of every request move in closed form; only the clock is stepped, because each
// duration is rounded to whole nanoseconds. A step that would end at or after the next event is
// left to the ordinary way.
void Simulator::skip_regular_steps() {
  const Stretch stretch = scheduler_.stretch();
  const int64_t horizon_ns = next_event().time_ns;
  int64_t num_steps = 0;
  BatchShape shape = shape_;
  for (; num_steps < stretch.num_steps && now_ns_ < stretch.deadline_ns; ++num_steps) {
    CostExecutor::move_one_step(shape);
    const int64_t step_ns = executor_.step_ns(shape);
    if (horizon_ns - now_ns_ <= step_ns) break;
    now_ns_ += step_ns;
    metrics_.on_regular_step(shape.num_seqs, step_ns);
  }
  if (num_steps == 0) return;
  metrics_.on_regular_steps_end(now_ns_);
  scheduler_.advance(num_steps);
}

}  // namespace loratory::sim
