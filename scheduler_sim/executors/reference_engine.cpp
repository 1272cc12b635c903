#include "scheduler_sim/executors/reference_engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::sim {
namespace {

constexpr uint64_t kDelayStream = 1;
constexpr uint64_t kMaxDelayNs = 8;
constexpr uint64_t kSlowFactor = 20;  // of one delay in eight

void check_vocabulary(const EngineRequest& request, int64_t vocab) {
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] >= 0 && request.prompt[i] < vocab) continue;
    throw InputError(
        fmt::format("request {}: prompt[{}]", request.id, i),
        fmt::format("token {} is outside the vocabulary of {}", request.prompt[i], vocab));
  }
}

}  // namespace

ReferenceEngine::ReferenceEngine(const reference::Model& model, const SchedulerConfig& config,
                                 const ReferenceExecutorConfig& executor, uint64_t seed,
                                 DecisionSink* sink)
    : model_(model),
      sink_(sink),
      scheduler_(config, this),
      executor_(model, config, executor),
      delays_(seed, kDelayStream) {}

// --- calls from outside ---------------------------------------------------------------------

RegisterStatus ReferenceEngine::register_adapter(std::string_view name, uint32_t rank,
                                                 AdapterSource source, bool replace) {
  const auto added = scheduler_.register_adapter(name, rank, /*bytes=*/1, replace, now_ns_);
  if (added.status != RegisterStatus::ok) return added.status;
  executor_.add_adapter(scheduler_.residency().uid(added.adapter), std::move(source));
  start_transfers();
  return added.status;
}

bool ReferenceEngine::unload_adapter(std::string_view name, bool abort_requests) {
  const bool known = scheduler_.unload_adapter(name, abort_requests, now_ns_);
  start_transfers();
  return known;
}

PinStatus ReferenceEngine::pin(std::string_view name) {
  const AdapterRef adapter = scheduler_.residency().find(name);
  if (adapter == kBaseRef) return PinStatus::unknown;
  const PinStatus status = scheduler_.pin(adapter, now_ns_);
  start_transfers();
  return status;
}

SubmitStatus ReferenceEngine::submit(const EngineRequest& request) {
  check_vocabulary(request, model_.config.vocab);
  RequestSpec spec;
  spec.id = request.id;
  spec.priority = request.priority;
  spec.num_prompt_tokens = uint32_t(request.prompt.size());
  spec.max_new_tokens = uint32_t(request.params.max_new_tokens);
  spec.tokens = request.prompt;
  spec.stop_tokens = request.params.stop_tokens;
  spec.prompt_logprobs = request.params.prompt_logprobs;
  spec.disable_prefix_cache = request.disable_prefix_cache;
  if (!request.adapter.empty()) {
    spec.adapter = scheduler_.residency().find(request.adapter);
    if (spec.adapter == kBaseRef) return SubmitStatus::unknown_adapter;
  }
  const SubmitStatus status = scheduler_.submit(spec, now_ns_);
  if (status == SubmitStatus::ok) executor_.set_sampling(spec.id, request.params.sampling);
  start_transfers();
  return status;
}

// --- events ---------------------------------------------------------------------------------

bool ReferenceEngine::advance() {
  if (step_ == nullptr && plan_step()) return true;
  const auto next = std::ranges::min_element(events_, {}, &Event::time_ns);
  if (next == events_.end()) {
    LORATORY_ASSERT(scheduler_.num_live() == 0, "requests wait and nothing is on its way");
    return false;
  }
  const Event event = *next;
  events_.erase(next);
  now_ns_ = event.time_ns;
  switch (event.kind) {
    case EventKind::load_done:
      finish_load(event);
      break;
    case EventKind::copy_done:
      finish_copy(event);
      break;
    case EventKind::step_done:
      finish_step();
      break;
  }
  start_transfers();
  start_step_if_ready();
  return true;
}

void ReferenceEngine::start(Event event) {
  const uint64_t index = num_delays_++;
  const bool is_slow = delays_.below(8, 2 * index) == 0;
  const uint64_t delay = 1 + delays_.below(kMaxDelayNs, 2 * index + 1);
  event.time_ns = now_ns_ + int64_t(is_slow ? kSlowFactor * delay : delay);
  events_.push_back(event);
}

void ReferenceEngine::start_transfers() {
  ResidencyActions& starts = scheduler_.starts();
  for (const LoadStart& load : starts.loads) {
    start({0, EventKind::load_done, load.adapter, scheduler_.residency().uid(load.adapter)});
  }
  for (const CopyStart& copy : starts.copies) {
    executor_.begin_copy(copy.slot);
    start({0, EventKind::copy_done, copy.adapter, scheduler_.residency().uid(copy.adapter),
           copy.slot, copy.generation});
  }
  starts.clear();
}

bool ReferenceEngine::plan_step() {
  const StepPlan& plan = scheduler_.plan(now_ns_);
  start_transfers();
  if (plan.empty()) return false;
  step_ = &plan;
  step_runs_ = false;
  start_step_if_ready();
  return true;
}

void ReferenceEngine::start_step_if_ready() {
  if (step_ == nullptr || step_runs_ || !scheduler_.step_can_start()) return;
  const std::string problem = executor_.problem(*step_, scheduler_);
  LORATORY_ASSERT(problem.empty(), problem.c_str());
  step_runs_ = true;
  start({0, EventKind::step_done});
}

void ReferenceEngine::finish_load(const Event& event) {
  bool ok = true;
  try {
    executor_.load(event.uid);
  } catch (const InputError& error) {
    load_errors_.emplace_back(error.what());
    ok = false;
  }
  scheduler_.load_done(event.adapter, ok, now_ns_);
}

void ReferenceEngine::finish_copy(const Event& event) {
  executor_.end_copy(event.uid, event.slot, event.generation);
  scheduler_.copy_done(event.adapter, now_ns_);
}

void ReferenceEngine::finish_step() {
  const std::vector<int32_t> sampled = executor_.run(*step_, scheduler_);
  Eigen::Index column = 0;
  for (const StepRow& row : step_->rows) {
    if (!row.samples) continue;
    const Request& r = scheduler_.request(row.request);
    if (!r.end_at_commit) logits_[r.id].emplace_back(executor_.logits().col(column));
    ++column;
  }
  step_ = nullptr;
  scheduler_.commit({sampled}, now_ns_);
}

// --- what the scheduler decides -------------------------------------------------------------

void ReferenceEngine::on_decision(const Decision& decision) {
  if (decision.kind == DecisionKind::finish) keep_output(decision);
  if (decision.kind == DecisionKind::unload) executor_.remove_adapter(decision.uid);
  if (decision.kind == DecisionKind::eviction && decision.b == 1) {
    executor_.drop_from_cpu(decision.uid);
  }
  if (sink_ != nullptr) sink_->on_decision(decision);
}

// The request is alive while the scheduler says this, and gone right after.
void ReferenceEngine::keep_output(const Decision& finish) {
  const Request& r = scheduler_.request(scheduler_.find_request(finish.request));
  EngineOutput& output = outputs_[r.id];
  output.reason = FinishReason(finish.a);
  output.tokens.assign(r.tokens.begin() + r.num_prompt, r.tokens.end());
  output.logits = std::move(logits_[r.id]);
  logits_.erase(r.id);
  executor_.forget_request(r.id);
}

}  // namespace loratory::sim
