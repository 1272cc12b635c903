#pragma once

#include "scheduler_sim/cost/step_time.hpp"
#include "scheduler_sim/residency/residency.hpp"
#include "scheduler_sim/scheduler/step_plan.hpp"

namespace loratory::sim {

/// What the duration of the plan's step depends on. `rows_changed` is left to BatchShapes.
/// Cost  O(rows).
BatchShape batch_shape(const StepPlan& plan, const Residency& residency);

/// Batch shapes of steps that follow one another.
class BatchShapes {
 public:
  /// The shape of the step behind the last one.
  const BatchShape& next(const StepPlan& plan, const Residency& residency);
  /// Of the last step that came or was skipped.
  const BatchShape& last() const { return shape_; }
  void skip_steps(int64_t num_steps);

 private:
  BatchShape shape_;
};

}  // namespace loratory::sim
