#pragma once

#include <cstdint>
#include <optional>

#include "scheduler_sim/cost/step_time.hpp"
#include "scheduler_sim/cost/transfer.hpp"
#include "scheduler_sim/engine/executor.hpp"
#include "scheduler_sim/executors/batch_shape.hpp"

namespace loratory::sim {

/// The executor of the simulator: virtual time and no tensors. A step takes what a StepTimeModel
/// says of its batch, from the end of the one before; loads and copies go through a DiskChannel and
/// a CopyChannel. No load fails, no token is sampled.
class CostExecutor final : public Executor {
 public:
  /// `model` outlives this object.
  CostExecutor(const StepTimeModel& model, const LoadCosts& costs)
      : model_(model), disk_(costs), copies_(costs) {}

  void begin_load(const LoadStart& load, int64_t now_ns) override;
  void begin_copy(const CopyStart& copy, int64_t now_ns) override;
  /// Cost  O(rows).
  void begin_step(const StepPlan& plan, const Scheduler& scheduler, int64_t now_ns) override;
  Completion next(int64_t until_ns) override;
  LoadEnd end_load(int64_t now_ns) override { return {.uid = disk_.complete(now_ns)}; }
  Uid end_copy(int64_t now_ns) override { return copies_.complete(now_ns); }
  StepResult end_step(const StepPlan& plan, const Scheduler& scheduler) override;

  // --- for fast mode ------------------------------------------------------------------------
  /// Of the last step that began or was skipped.
  const BatchShape& shape() const { return shapes_.last(); }
  void skip_steps(int64_t num_steps) { shapes_.skip_steps(num_steps); }
  int64_t step_ns(const BatchShape& shape) const { return model_.step_ns(shape); }
  /// The same rows one decode step later: every one of them reads one KV entry more.
  static void move_one_step(BatchShape& shape) {
    shape.decode_context_tokens += shape.num_seqs;
    ++shape.longest_decode_context;
    shape.rows_changed = false;
  }

 private:
  const StepTimeModel& model_;
  DiskChannel disk_;
  CopyChannel copies_;
  int64_t step_end_ns_ = kNever;           // of the step under way
  std::optional<int64_t> next_step_ns_{};  // how long the one behind it takes
  BatchShapes shapes_;
};

}  // namespace loratory::sim
