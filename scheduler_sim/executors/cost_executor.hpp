#pragma once

#include "scheduler_sim/cost/step_time.hpp"
#include "scheduler_sim/residency/residency.hpp"
#include "scheduler_sim/scheduler/step_plan.hpp"

namespace loratory::sim {

/// The executor of the simulator: computes no tensor, only how long the step would take.
class CostExecutor {
 public:
  CostExecutor(const StepTimeModel& model, const Residency& residency)
      : model_(model), residency_(residency) {}

  /// Sums over the rows of a plan. Cost: O(rows).
  BatchShape shape_of(const StepPlan& plan);
  int64_t step_ns(const BatchShape& shape) const { return model_.step_ns(shape); }
  /// The same rows one decode step later: every one of them reads one KV entry more.
  static void move_one_step(BatchShape& shape) { shape.decode_context_tokens += shape.num_seqs; }

 private:
  const StepTimeModel& model_;
  const Residency& residency_;
  std::vector<int64_t> seen_;  // by AdapterRef: the last shape_of call that met it
  int64_t call_ = 0;
};

}  // namespace loratory::sim
