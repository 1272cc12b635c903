#include "scheduler_sim/engine/engine_loop.hpp"

#include <utility>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::sim {

using Kind = Completion::Kind;
using Phase = Moment::Phase;

EngineLoop::EngineLoop(const SchedulerConfig& config, Executor& executor,
                       std::vector<DecisionSink*> sinks, StepObserver* observer, StepsAhead ahead)
    : executor_(executor),
      sinks_(std::move(sinks)),
      observer_(observer),
      scheduler_(config, this),
      max_steps_(ahead == StepsAhead::one ? 2 : 1) {}

void EngineLoop::on_decision(const Decision& decision) {
  if (decision.is<decision::Unload>()) executor_.unloaded(decision.uid);
  const auto* eviction = decision.get_if<decision::Eviction>();
  if (eviction != nullptr && eviction->from_cpu) executor_.evicted_from_cpu(decision.uid);
  for (DecisionSink* sink : sinks_) sink->on_decision(decision);
}

// --- events ---------------------------------------------------------------------------------

bool EngineLoop::advance(const Moment& until) {
  if (plans_next(until) && plan_step()) return true;
  const Completion next = executor_.next(until.time_ns);
  if (next.kind == Kind::none || Moment{next.time_ns, Phase::completions} >= until) return false;
  move_to(next.time_ns);
  end(next);
  begin_what_can();
  return true;
}

bool EngineLoop::plans_next(const Moment& until) {
  if (!is_news_ || steps_.size() == max_steps_ || Moment{now_ns_, Phase::plan} >= until) {
    return false;
  }
  if (!steps_.empty() && (!steps_.back().start_ns || !scheduler_.can_plan_ahead())) return false;
  return executor_.next(now_ns_).kind == Kind::none;
}

void EngineLoop::move_to(int64_t time_ns) {
  LORATORY_ASSERT(time_ns >= now_ns_, "time does not run backwards");
  if (time_ns > kLastNs) {
    throw InputError("the replay", "its requests take more than 200 years",
                     "give shorter or fewer ones, or a faster GPU");
  }
  now_ns_ = time_ns;
}

void EngineLoop::end(const Completion& completion) {
  switch (completion.kind) {
    case Kind::load: {
      const LoadEnd load = executor_.end_load(now_ns_);
      return scheduler_.load_done(load.uid, load.ok, now_ns_);
    }
    case Kind::copy:
      return scheduler_.copy_done(executor_.end_copy(now_ns_), now_ns_);
    case Kind::step:
      return end_step();
    case Kind::none:
      return;
  }
}

// Whatever happened may have given the scheduler something to move, the step its last adapter, and
// the next plan another outcome.
void EngineLoop::begin_what_can() {
  is_news_ = true;
  begin_transfers();
  if (steps_.empty() || steps_.back().start_ns || !scheduler_.step_can_start()) return;
  steps_.back().start_ns = now_ns_;
  executor_.begin_step(*steps_.back().plan, scheduler_, now_ns_);
}

void EngineLoop::begin_transfers() {
  ResidencyActions& starts = scheduler_.starts();
  for (const LoadStart& load : starts.loads) executor_.begin_load(load, now_ns_);
  for (const CopyStart& copy : starts.copies) executor_.begin_copy(copy, now_ns_);
  starts.clear();
}

// --- steps ----------------------------------------------------------------------------------

// In blocking load mode the step waits for its adapters before it begins.
bool EngineLoop::plan_step() {
  const StepPlan& plan = scheduler_.plan(now_ns_);
  const bool is_step = !plan.empty();
  if (is_step) steps_.push_back({&plan});
  begin_what_can();
  is_news_ = is_step && steps_.size() < max_steps_;
  LORATORY_ASSERT(!steps_.empty() || scheduler_.waiting().empty() ||
                      scheduler_.residency().transfer_in_flight(),
                  "requests wait, nothing runs and nothing is on its way");
  return is_step;
}

void EngineLoop::end_step() {
  const Step step = steps_.front();
  const StepResult result = executor_.end_step(*step.plan, scheduler_);
  if (observer_ != nullptr) observer_->on_step_end(scheduler_, *step.plan, *step.start_ns, now_ns_);
  steps_.erase(steps_.begin());
  if (!steps_.empty() && steps_.front().start_ns) steps_.front().start_ns = now_ns_;
  scheduler_.commit(result, now_ns_);
  if (observer_ != nullptr) observer_->on_commit(scheduler_, now_ns_);
}

void EngineLoop::skip_steps(int64_t num_steps, int64_t end_ns) {
  LORATORY_ASSERT(steps_.empty(), "no step is in flight while others are skipped");
  scheduler_.advance(num_steps);
  move_to(end_ns);
}

}  // namespace loratory::sim
