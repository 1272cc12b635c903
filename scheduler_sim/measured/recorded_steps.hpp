#pragma once

#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler_sim/engine/step_observer.hpp"
#include "scheduler_sim/executors/batch_shape.hpp"

namespace loratory::sim {

/// A step that an engine ran, and how long it took.
struct RecordedStep {
  BatchShape shape;
  int64_t ns = 0;        ///< the host's share included
  bool is_held = false;  ///< of a held trace: judges a fit and is not seen by it
};

/// Writes and reads steps: CSV, traces/SCHEMA.md has the columns. Plain, gzip or zstd.
/// Errors   InputError at file:line:column: a column that is missing or unknown, a cell that is no
///          whole number or out of its column's range, a step of 0 ns or without rows, a last row
///          without a newline.
void write_recorded_steps(std::ostream& out, std::span<const RecordedStep> steps);
std::vector<RecordedStep> read_recorded_steps(const std::string& path);
std::vector<RecordedStep> read_recorded_steps_from(std::string_view bytes, std::string_view name);

/// Records the steps of an engine. `next` hears what it hears.
///
/// A step takes the time since the one before it ended, if the engine had work then: so the plan
/// between the two counts. Else it takes the time since it began. Steps in which a request was
/// discarded, or that waited for an adapter, are left out.
class StepRecorder final : public StepObserver {
 public:
  /// Steps with a request of this id or a later one are held.
  explicit StepRecorder(uint64_t first_held_id, StepObserver* next = nullptr)
      : first_held_id_(first_held_id), next_(next) {}

  void on_step_end(const Scheduler& scheduler, const StepPlan& plan, int64_t start_ns,
                   int64_t now_ns) override;
  void on_commit(const Scheduler& scheduler, int64_t now_ns) override;

  void set_next(StepObserver* next) { next_ = next; }
  const std::vector<RecordedStep>& steps() const { return steps_; }

 private:
  uint64_t first_held_id_;
  StepObserver* next_;
  BatchShapes shapes_;
  std::vector<RecordedStep> steps_;
  int64_t last_end_ns_ = 0;
  bool had_work_ = false;  // when the last step ended
};

}  // namespace loratory::sim
