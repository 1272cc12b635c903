#include "scheduler_sim/serving/serving_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reference/base/check.hpp"

namespace loratory::sim {

ServingRun::ServingRun(const SchedulerConfig& config, ModelExecutor& executor, Clock& clock,
                       StepsAhead ahead)
    : executor_(executor), clock_(clock), loop_(config, executor, {this}, this, ahead) {}

// --- what comes in ----------------------------------------------------------------------------

void ServingRun::add_adapter(const std::string& name, const AdapterFolder& folder) {
  const bool is_new = register_adapter(name, folder, /*replace=*/false, loop_.now_ns());
  LORATORY_ASSERT(is_new, "two adapters have two names");
}

ServedFile ServingRun::serve(const RequestFile& file,
                             const std::map<std::string, AdapterFolder>& folders,
                             const std::function<void(int64_t)>& on_finished) {
  on_finished_ = on_finished;
  for (const RequestLine& line : file.lines) {
    while (loop_.advance({line.arrival_ns, Moment::Phase::arrivals})) {
    }
    clock_.wait_until(line.arrival_ns);
    if (const auto* request = std::get_if<ServingRequest>(&line.what)) {
      arrive(*request, line.arrival_ns);
    } else {
      operate(line, std::get<AdapterOperation>(line.what), folders);
    }
  }
  while (loop_.advance()) {
  }
  out_.end_ns = loop_.now_ns();
  if (executor_.step_times() != nullptr) out_.times = *executor_.step_times();
  return std::move(out_);
}

void ServingRun::arrive(const ServingRequest& request, int64_t time_ns) {
  RequestSpec spec;
  spec.id = out_.requests.size();
  spec.priority = request.priority;
  spec.num_prompt_tokens = uint32_t(request.prompt.size());
  spec.max_new_tokens = request.max_tokens;
  spec.tokens = request.prompt;
  spec.stop_tokens = request.stop_token_ids;
  asked_.push_back(&request);
  out_.requests.emplace_back().arrival_ns = time_ns;
  executor_.set_sampling(spec.id, request.params);
  const SubmitStatus status = loop_.call(time_ns, [&](Scheduler& scheduler, int64_t now_ns) {
    if (!request.adapter.empty()) {
      spec.adapter = scheduler.residency().find_name(request.adapter);
      if (spec.adapter == kBaseUid) return SubmitStatus::unknown_adapter;
    }
    return scheduler.submit(spec, now_ns);
  });
  if (status == SubmitStatus::ok) return;
  ServedRequest& served = out_.requests[spec.id];
  served.reason = FinishReason::error;
  served.error = describe(status);
  served.finish_ns = time_ns;
  executor_.forget_request(spec.id);
  if (on_finished_) on_finished_(++num_finished_);
}

bool ServingRun::register_adapter(const std::string& name, const AdapterFolder& folder,
                                  bool replace, int64_t time_ns) {
  return loop_.call(time_ns, [&](Scheduler& scheduler, int64_t now_ns) {
    const auto added = scheduler.register_adapter(name, folder.rank, folder.bytes, replace, now_ns);
    if (added.status != RegisterStatus::ok) return false;
    executor_.add_adapter(added.uid, folder.source);
    return true;
  });
}

void ServingRun::operate(const RequestLine& line, const AdapterOperation& operation,
                         const std::map<std::string, AdapterFolder>& folders) {
  bool is_done = true;
  switch (operation.kind) {
    case OperationKind::load:
      is_done = register_adapter(operation.name, folders.at(operation.path), operation.load_inplace,
                                 line.arrival_ns);
      break;
    case OperationKind::unload:
      is_done = loop_.call(line.arrival_ns, [&](Scheduler& scheduler, int64_t now_ns) {
        return scheduler.unload_adapter(operation.name, operation.abort_requests, now_ns);
      });
      break;
    case OperationKind::pin:
      return pin(line, operation);
    case OperationKind::unpin:
      loop_.call(line.arrival_ns, [&](Scheduler& scheduler, int64_t now_ns) {
        const Uid uid = scheduler.residency().find_name(operation.name);
        pins_.erase(uid);
        scheduler.unpin(uid, now_ns);
      });
      break;
  }
  LORATORY_ASSERT(is_done, "resolve_names() has followed the names");
}

namespace {

// Of an adapter that is not pinned: what is in its way?
const char* reason_of_busy(const Residency& residency) {
  const auto num_pinned = std::ranges::count_if(
      residency.claimants(), [&](AdapterRef ref) { return residency.pinned(ref); });
  return num_pinned + 2 > residency.config().max_loras ? "it would leave no slot for other adapters"
                                                       : "every slot is in use now";
}

}  // namespace

void ServingRun::pin(const RequestLine& line, const AdapterOperation& operation) {
  loop_.call(line.arrival_ns, [&](Scheduler& scheduler, int64_t now_ns) {
    const Uid uid = scheduler.residency().find_name(operation.name);
    const PinStatus status = scheduler.pin(uid, now_ns);
    LORATORY_ASSERT(status != PinStatus::unknown, "resolve_names() has followed the names");
    if (status == PinStatus::ok) {
      pins_.insert_or_assign(uid, line.number);
    } else {
      out_.refused.push_back({line.number, reason_of_busy(scheduler.residency())});
    }
  });
}

// --- what comes out ---------------------------------------------------------------------------

void ServingRun::on_step_end(const Scheduler& scheduler, const StepPlan& plan, int64_t,
                             int64_t now_ns) {
  ++out_.num_steps;
  const std::span<const TokenLogprobs> logprobs = executor_.logprobs();
  size_t index = 0;
  for (const StepRow& row : plan.rows) {
    if (!row.samples) continue;
    const size_t i = index++;
    if (scheduler.is_discarded(row)) continue;
    const Request& r = scheduler.request(row.request);
    ServedRequest& served = out_.requests[r.id];
    served.token_ns.push_back(now_ns);
    if (asked_[r.id]->params.num_logprobs >= 0) served.logprobs.push_back(logprobs[i]);
  }
}

void ServingRun::on_decision(const Decision& decision) {
  out_.num_preemptions += decision.is<decision::Preemption>();
  out_.num_loads += decision.is<decision::Load>();
  out_.num_copies += decision.is<decision::Copy>();
  if (const auto* admission = decision.get_if<decision::Admission>()) {
    ServedRequest& served = out_.requests[decision.request];
    if (served.first_scheduled_ns >= 0) return;  // after a preemption
    served.first_scheduled_ns = decision.time_ns;
    served.num_cached_tokens = admission->num_cached_tokens;
  }
  const auto* failure = decision.get_if<decision::LoadFailure>();
  if (failure != nullptr && !failure->is_retried) on_load_failure(decision.uid);
  const auto* finish = decision.get_if<decision::Finish>();
  if (finish != nullptr) on_finish(decision, finish->reason);
}

// The pin ends with it. That of an adapter whose unload was asked for has ended before.
void ServingRun::on_load_failure(Uid uid) {
  const auto pin = pins_.extract(uid);
  if (pin.empty()) return;
  const Residency& residency = loop_.scheduler().residency();
  const AdapterRef adapter = residency.find_uid(uid);
  if (adapter == kBaseRef || residency.retiring(adapter)) return;
  out_.refused.push_back(
      {pin.mapped(), fmt::format("its adapter cannot be loaded: {}", executor_.load_error(uid))});
}

// A request is alive while the scheduler says that it ends, and gone right after.
void ServingRun::on_finish(const Decision& decision, FinishReason reason) {
  const Request& r = loop_.scheduler().request(loop_.scheduler().find_request(decision.request));
  ServedRequest& served = out_.requests[r.id];
  served.reason = reason;
  served.finish_ns = decision.time_ns;
  served.tokens.assign(r.tokens.begin() + r.num_prompt, r.tokens.end());
  if (reason == FinishReason::error) served.error = executor_.load_error(decision.uid);
  executor_.forget_request(r.id);
  if (on_finished_) on_finished_(++num_finished_);
}

}  // namespace loratory::sim
