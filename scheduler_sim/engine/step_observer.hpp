#pragma once

#include <cstdint>

#include "scheduler_sim/scheduler/scheduler.hpp"

namespace loratory::sim {

/// Hears of the steps, as a DecisionSink hears of the decisions.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// The executor is done with the step, and its commit comes next. It began at `start_ns`; one
  /// that was enqueued behind another, when that one ended. Of `plan`'s rows those of requests that
  /// ended before (Scheduler::is_discarded) count for nothing.
  virtual void on_step_end(const Scheduler& scheduler, const StepPlan& plan, int64_t start_ns,
                           int64_t now_ns) = 0;
  virtual void on_commit(const Scheduler& scheduler, int64_t now_ns) = 0;
};

}  // namespace loratory::sim
