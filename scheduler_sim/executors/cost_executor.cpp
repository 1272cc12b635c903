#include "scheduler_sim/executors/cost_executor.hpp"

namespace loratory::sim {

void CostExecutor::begin_load(const LoadStart& load, int64_t now_ns) {
  disk_.start(load.uid, load.bytes, now_ns);
}

void CostExecutor::begin_copy(const CopyStart& copy, int64_t now_ns) {
  copies_.start(copy.uid, copy.bytes, now_ns);
}

void CostExecutor::begin_step(const StepPlan& plan, const Scheduler& scheduler, int64_t now_ns) {
  int64_t step_ns = model_.step_ns(shapes_.next(plan, scheduler.residency()));
  for (const AdapterRef adapter : plan.copied_again) {
    step_ns += copies_.duration_ns(scheduler.residency().bytes(adapter));
  }
  if (step_end_ns_ == kNever)
    step_end_ns_ = now_ns + step_ns;
  else
    next_step_ns_ = step_ns;
}

Completion CostExecutor::next(int64_t until_ns) {
  Completion first;
  const auto offer = [&](int64_t time_ns, Completion::Kind kind) {
    if (time_ns <= until_ns && time_ns < first.time_ns) first = {time_ns, kind};
  };
  offer(disk_.next_completion().time_ns, Completion::Kind::load);
  offer(copies_.next_completion().time_ns, Completion::Kind::copy);
  offer(step_end_ns_, Completion::Kind::step);
  return first;
}

StepResult CostExecutor::end_step(const StepPlan&, const Scheduler&) {
  step_end_ns_ = next_step_ns_ ? step_end_ns_ + *next_step_ns_ : kNever;
  next_step_ns_.reset();
  return {};
}

}  // namespace loratory::sim
