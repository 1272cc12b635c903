#include "scheduler_sim/serving/trace_run.hpp"

#include <algorithm>

#include "reference/base/check.hpp"

namespace loratory::sim {

using Phase = Moment::Phase;

TraceRun::TraceRun(const Trace& trace, const TracePrompts& prompts, const SimulationConfig& config,
                   ModelExecutor& executor, Clock& clock, StepsAhead ahead, Arrivals arrivals)
    : trace_(trace),
      prompts_(prompts),
      config_(config),
      executor_(executor),
      clock_(clock),
      log_(config.keep_log),
      metrics_(trace),
      arrivals_(arrivals),
      loop_(config.scheduler, executor, {&log_, &metrics_}, this, ahead) {}

void TraceRun::on_step_end(const Scheduler& scheduler, const StepPlan& plan, int64_t start_ns,
                           int64_t now_ns) {
  metrics_.on_step_end(scheduler, plan, start_ns, now_ns);
  if (also_ != nullptr) also_->on_step_end(scheduler, plan, start_ns, now_ns);
}

void TraceRun::on_commit(const Scheduler& scheduler, int64_t now_ns) {
  metrics_.on_commit(scheduler, now_ns);
  if (also_ != nullptr) also_->on_commit(scheduler, now_ns);
}

void TraceRun::add_adapters(std::span<const AdapterSource> sources) {
  LORATORY_ASSERT(sources.size() == trace_.adapters.size(), "a source for every adapter");
  loop_.call(0, [&](Scheduler& scheduler, int64_t now_ns) {
    for (AdapterIndex i = 0; i < trace_.adapters.size(); ++i) {
      const auto added =
          scheduler.register_adapter(trace_.adapters[i].name, config_.adapter_ranks[i],
                                     config_.adapter_bytes[i], /*replace=*/false, now_ns);
      LORATORY_ASSERT(added.status == RegisterStatus::ok, "names of a trace's adapters are unique");
      uids_.push_back(added.uid);
      metrics_.on_registered(i, added.uid);
      executor_.add_adapter(added.uid, sources[i]);
    }
  });
}

namespace {

struct Call {
  Moment moment;
  size_t request;
};

// Arrivals and cancels in the order in which the simulator makes them.
std::vector<Call> calls_of(const Trace& trace) {
  std::vector<Call> calls;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& r = trace.requests[i];
    calls.push_back({{r.arrival_ns, Phase::arrivals}, i});
    if (r.cancel_ns != kNever) calls.push_back({{r.cancel_ns, Phase::operations}, i});
  }
  std::ranges::stable_sort(calls, {}, &Call::moment);
  return calls;
}

}  // namespace

void TraceRun::run(std::span<const AdapterIndex> pins,
                   const std::function<void(int64_t)>& on_arrivals) {
  loop_.call(0, [&](Scheduler& scheduler, int64_t now_ns) {
    for (const AdapterIndex adapter : pins) scheduler.pin(uids_[adapter], now_ns);
  });
  int64_t num_arrived = 0;
  for (const Call& call : calls_of(trace_)) {
    const bool arrives = call.moment.phase == Phase::arrivals;
    std::vector<int32_t> prompt;
    if (arrives) prompt = prompts_.prompt_of(call.request);  // in good time
    if (!arrives) {
      play_until(call.moment);
      cancel(call.request);
      continue;
    }
    const int64_t time_ns = time_of(call.moment.time_ns);
    play_until({time_ns, Phase::arrivals});
    arrive(call.request, prompt, time_ns);
    if (on_arrivals) on_arrivals(++num_arrived);
  }
  while (loop_.advance()) {
  }
  LORATORY_ASSERT(scheduler().num_live() == 0, "the run ended with live requests");
}

void TraceRun::play_until(const Moment& moment) {
  while (loop_.advance(moment)) {
  }
  clock_.wait_until(moment.time_ns);
}

int64_t TraceRun::time_of(int64_t arrival_ns) {
  if (arrivals_ == Arrivals::at_their_times) return arrival_ns;
  if (arrival_ns != burst_ns_) {
    while (loop_.advance()) {
    }
    burst_ns_ = arrival_ns;
    burst_time_ns_ = std::max({arrival_ns, loop_.now_ns(), clock_.now_ns()});
  }
  return burst_time_ns_;
}

void TraceRun::arrive(size_t request, std::span<const int32_t> prompt, int64_t time_ns) {
  const TraceRequest& r = trace_.requests[request];
  RequestSpec spec;
  spec.id = request;
  spec.adapter = r.adapter == kBaseModel ? kBaseUid : uids_[r.adapter];
  spec.priority = r.priority;
  spec.num_prompt_tokens = r.prompt_tokens;
  spec.max_new_tokens = r.output_tokens;
  spec.tokens = prompt;
  loop_.call(time_ns, [&](Scheduler& scheduler, int64_t now_ns) {
    metrics_.on_arrival(request, tier_of(r.adapter));
    const SubmitStatus status = scheduler.submit(spec, now_ns);
    if (status != SubmitStatus::ok) metrics_.on_rejected(request);
    metrics_.sample(scheduler, now_ns);
  });
}

void TraceRun::cancel(size_t request) {
  loop_.call(trace_.requests[request].cancel_ns,
             [&](Scheduler& scheduler, int64_t now_ns) { scheduler.abort(request, now_ns); });
}

ArrivalTier TraceRun::tier_of(AdapterIndex adapter) const {
  return adapter == kBaseModel ? ArrivalTier::base_model
                               : arrival_tier(scheduler().residency(), uids_[adapter]);
}

}  // namespace loratory::sim
