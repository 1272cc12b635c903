#include "scheduler_sim/simulator/simulated_engine.hpp"

#include <algorithm>
#include <utility>

#include "reference/base/check.hpp"

namespace loratory::sim {

using Phase = Moment::Phase;

namespace {

SimulationConfig with_what_is_asked(SimulationConfig config, const StepTimeModel& step_time) {
  config.scheduler.count_waiting_seen |= step_time.asks_waiting_seen();
  config.fast &= config.steps_ahead == StepsAhead::none;
  return config;
}

}  // namespace

SimulatedEngine::SimulatedEngine(const Trace& trace, const SimulationConfig& config,
                                 const StepTimeModel& step_time, MetricsCollector metrics,
                                 DecisionSink* listener)
    : trace_(trace),
      config_(with_what_is_asked(config, step_time)),
      log_(config.keep_log),
      metrics_(std::move(metrics)),
      executor_(step_time, config.loads),
      loop_(config_.scheduler, executor_, sinks(listener), &metrics_, config.steps_ahead) {
  LORATORY_ASSERT(config.adapter_bytes.size() == trace.adapters.size() &&
                      config.adapter_ranks.size() == trace.adapters.size(),
                  "one size and one rank for every adapter of the trace");
  LORATORY_ASSERT(trace.block_tokens % config.scheduler.block_size == 0,
                  "the trace's blocks must be whole KV blocks");
  LORATORY_ASSERT(config.loads.num_workers == config.scheduler.residency.num_load_workers,
                  "the scheduler and the disk agree on the number of workers");
  register_adapters();
}

std::vector<DecisionSink*> SimulatedEngine::sinks(DecisionSink* listener) {
  std::vector<DecisionSink*> sinks;
  if (config_.hash_log || config_.keep_log) sinks.push_back(&log_);
  sinks.push_back(&metrics_);
  if (listener != nullptr) sinks.push_back(listener);
  return sinks;
}

void SimulatedEngine::register_adapters() {
  loop_.call(0, [this](Scheduler& scheduler, int64_t now_ns) {
    for (AdapterIndex i = 0; i < trace_.adapters.size(); ++i) {
      const auto added =
          scheduler.register_adapter(trace_.adapters[i].name, config_.adapter_ranks[i],
                                     config_.adapter_bytes[i], /*replace=*/false, now_ns);
      LORATORY_ASSERT(added.status == RegisterStatus::ok, "names of a trace's adapters are unique");
      uids_.push_back(added.uid);
      LORATORY_ASSERT(uids_.back() == uids_.front() + i, "uids count up");
      metrics_.on_registered(i, uids_.back());
    }
  });
}

void SimulatedEngine::advance_to(const Moment& until) {
  take_steps_ahead(until.time_ns);
  ahead_.clear();
  do {
    if (config_.fast && loop_.plans_next(until)) skip_regular_steps(until.time_ns);
  } while (!has_stopped() && loop_.advance(until));
}

// --- calls ----------------------------------------------------------------------------------

// What was left ahead is settled: of the steps that the call puts an end to, only the one that is
// in flight is left to plan.
void SimulatedEngine::prepare_call(int64_t time_ns, Phase phase) {
  quiet_until_ns_ = time_ns;
  if (ahead_.empty()) return;
  take_steps_ahead(time_ns);
  ahead_.clear();
  while (loop_.advance({time_ns, phase})) {
  }
}

void SimulatedEngine::arrive(uint64_t id, const TraceRequest& request) {
  prepare_call(request.arrival_ns, Phase::arrivals);
  loop_.call(request.arrival_ns, [&](Scheduler& scheduler, int64_t now_ns) {
    metrics_.on_arrival(id, tier_of(request.adapter));
    const SubmitStatus status = scheduler.submit(spec_of(id, request), now_ns);
    if (status != SubmitStatus::ok) metrics_.on_rejected(id);
    metrics_.sample(scheduler, now_ns);
  });
}

// Blocks of the trace, cut into KV blocks; only full ones can be shared. The parts of one go by its
// id: what is before a block is part of its identity, so they can not be mistaken for each other.
RequestSpec SimulatedEngine::spec_of(uint64_t id, const TraceRequest& r) {
  RequestSpec spec;
  spec.id = id;
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

Uid SimulatedEngine::uid_of(AdapterIndex adapter) const {
  return adapter == kBaseModel ? kBaseUid : uids_[adapter];
}

ArrivalTier SimulatedEngine::tier_of(AdapterIndex adapter) const {
  if (adapter == kBaseModel) return ArrivalTier::base_model;
  return arrival_tier(scheduler().residency(), uids_[adapter]);
}

void SimulatedEngine::run_op(const ScheduledOp& op) {
  prepare_call(op.time_ns, Phase::operations);
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
// left to the ordinary way. Calls on_step(sequences, duration) for each step; returns their number.
template <typename OnStep>
int64_t SimulatedEngine::walk_regular_steps(int64_t until_ns, OnStep on_step) {
  const Stretch stretch = scheduler().stretch();
  if (stretch.num_steps == 0) return 0;
  const int64_t horizon_ns = std::min(until_ns, executor_.next(until_ns).time_ns);
  int64_t num_steps = 0, now_ns = loop_.now_ns();
  BatchShape shape = executor_.shape();
  for (; num_steps < stretch.num_steps && now_ns < stretch.deadline_ns; ++num_steps) {
    CostExecutor::move_one_step(shape);
    const int64_t step_ns = executor_.step_ns(shape);
    if (horizon_ns - now_ns <= step_ns) break;
    now_ns += step_ns;
    on_step(shape.num_seqs, step_ns);
  }
  return num_steps;
}

void SimulatedEngine::skip_regular_steps(int64_t until_ns) {
  int64_t end_ns = loop_.now_ns();
  const int64_t num_steps = walk_regular_steps(until_ns, [&](int64_t num_seqs, int64_t step_ns) {
    metrics_.on_regular_step(num_seqs, step_ns);
    end_ns += step_ns;
  });
  if (num_steps > 0) end_regular_steps(num_steps, end_ns);
}

void SimulatedEngine::end_regular_steps(int64_t num_steps, int64_t end_ns) {
  metrics_.on_regular_steps_end(end_ns);
  executor_.skip_steps(num_steps);
  loop_.skip_steps(num_steps, end_ns);
}

void SimulatedEngine::advance_lazily_to(const Moment& until) {
  if (until <= Moment{quiet_until_ns_, Phase::arrivals}) return;
  take_steps_ahead(until.time_ns);
  do {
    if (config_.fast && loop_.plans_next(until) && look_ahead(until)) return;
  } while (loop_.advance(until));
  quiet_until_ns_ = loop_.plans_next() ? loop_.now_ns() : executor_.next(kNever).time_ns;
}

// The regular steps from here on. True: they reach `until`, and stay ahead.
bool SimulatedEngine::look_ahead(const Moment& until) {
  int64_t end_ns = loop_.now_ns();
  walk_regular_steps(
      kNever, [&](int64_t /*num_seqs*/, int64_t step_ns) { ahead_.push_back(end_ns += step_ns); });
  if (end_ns >= until.time_ns) {
    quiet_until_ns_ = end_ns;
    return true;
  }
  take_steps_ahead(until.time_ns);
  return false;
}

// Those that end before `until_ns`, in order.
void SimulatedEngine::take_steps_ahead(int64_t until_ns) {
  if (ahead_.empty() || ahead_.front() >= until_ns) return;
  const int64_t num_seqs = executor_.shape().num_seqs;
  int64_t end_ns = loop_.now_ns(), num_steps = 0;
  for (; num_steps < std::ssize(ahead_) && ahead_[size_t(num_steps)] < until_ns; ++num_steps) {
    const int64_t next_ns = ahead_[size_t(num_steps)];
    metrics_.on_regular_step(num_seqs, next_ns - end_ns);
    end_ns = next_ns;
  }
  ahead_.erase(ahead_.begin(), ahead_.begin() + num_steps);
  end_regular_steps(num_steps, end_ns);
}

uint32_t SimulatedEngine::num_blocks_at(int64_t time_ns) const {
  if (ahead_.empty() || time_ns <= loop_.now_ns()) return scheduler().blocks().num_referenced();
  const auto first_after = std::ranges::lower_bound(ahead_, time_ns);
  return scheduler().num_blocks_after(1 + (first_after - ahead_.begin()));
}

}  // namespace loratory::sim
