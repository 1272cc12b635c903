#include "scheduler_sim/serving/clocked_reference_executor.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::sim {

using Kind = Completion::Kind;

// --- transfers and steps ----------------------------------------------------------------------

void ClockedReferenceExecutor::is_done(Kind kind, int64_t now_ns, Done done) {
  done.end = {std::max(now_ns, clock_.now_ns()), kind};
  done_.push_back(std::move(done));
}

void ClockedReferenceExecutor::begin_load(const LoadStart& load, int64_t now_ns) {
  bool ok = true;
  try {
    runner_.load(load.uid);
    load_errors_.erase(load.uid);
  } catch (const InputError& error) {
    load_errors_.insert_or_assign(load.uid, error.what());
    ok = false;
  }
  is_done(Kind::load, now_ns, {.uid = load.uid, .ok = ok});
}

void ClockedReferenceExecutor::begin_copy(const CopyStart& copy, int64_t now_ns) {
  runner_.begin_copy(copy.slot);
  runner_.end_copy(copy.uid, copy.slot, copy.generation);
  is_done(Kind::copy, now_ns, {.uid = copy.uid});
}

void ClockedReferenceExecutor::begin_step(const StepPlan& plan, const Scheduler& scheduler,
                                          int64_t now_ns) {
  Done step;
  step.sampled = runner_.run(plan, scheduler);
  collect_logprobs(plan, scheduler, step);
  is_done(Kind::step, now_ns, std::move(step));
}

Completion ClockedReferenceExecutor::next(int64_t until_ns) {
  const auto first = std::ranges::min_element(
      done_, {}, [](const Done& done) { return std::tuple(done.end.time_ns, done.end.kind); });
  if (first != done_.end() && first->end.time_ns <= until_ns) return first->end;
  if (until_ns != kNever) clock_.wait_until(until_ns);
  return {};
}

// The first of its kind.
ClockedReferenceExecutor::Done ClockedReferenceExecutor::take(Kind kind) {
  const auto first =
      std::ranges::find_if(done_, [kind](const Done& done) { return done.end.kind == kind; });
  LORATORY_ASSERT(first != done_.end(), "only what began ends");
  Done done = std::move(*first);
  done_.erase(first);
  return done;
}

LoadEnd ClockedReferenceExecutor::end_load(int64_t) {
  const Done load = take(Kind::load);
  return {load.uid, load.ok};
}

Uid ClockedReferenceExecutor::end_copy(int64_t) { return take(Kind::copy).uid; }

StepResult ClockedReferenceExecutor::end_step(const StepPlan&, const Scheduler&) {
  Done step = take(Kind::step);
  sampled_ = std::move(step.sampled);
  logprobs_ = std::move(step.logprobs);
  return {sampled_};
}

// --- requests ---------------------------------------------------------------------------------

void ClockedReferenceExecutor::add_adapter(Uid uid, AdapterSource source) {
  runner_.add_adapter(uid, std::move(source));
}

void ClockedReferenceExecutor::set_sampling(uint64_t id, const TokenParams& params) {
  runner_.set_sampling(id, params.sampling);
  if (params.num_logprobs >= 0) num_logprobs_.insert_or_assign(id, params.num_logprobs);
}

void ClockedReferenceExecutor::forget_request(uint64_t id) {
  runner_.forget_request(id);
  num_logprobs_.erase(id);
}

std::string ClockedReferenceExecutor::load_error(Uid uid) const {
  const auto found = load_errors_.find(uid);
  return found == load_errors_.end() ? "" : found->second;
}

void ClockedReferenceExecutor::collect_logprobs(const StepPlan& plan, const Scheduler& scheduler,
                                                Done& step) const {
  step.logprobs.assign(step.sampled.size(), {});
  size_t column = 0;
  for (const StepRow& row : plan.rows) {
    if (!row.samples) continue;
    const size_t c = column++;
    const auto wanted = num_logprobs_.find(scheduler.request(row.request).id);
    if (wanted == num_logprobs_.end() || step.sampled[c] < 0) continue;
    const reference::Vector<float> logits = runner_.logits().col(Eigen::Index(c));
    step.logprobs[c] = {reference::log_probability(logits, step.sampled[c]),
                        reference::top_log_probabilities(logits, wanted->second)};
  }
}

}  // namespace loratory::sim
