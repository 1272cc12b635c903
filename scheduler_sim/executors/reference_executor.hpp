#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler_sim/engine/executor.hpp"
#include "scheduler_sim/executors/model_runner.hpp"

namespace loratory::sim {

/// Runs a model on the CPU in virtual time: ModelRunner computes, `duration_ns` says how long each
/// load, copy and step takes (at least 1 ns). Work computes when it ends, with all that overlapped
/// it in place: a copy over weights that a step in flight reads is found, not missed. A second step
/// waits for the first, as on a stream.
/// Repeats  as ModelRunner and `duration_ns` do.
class ReferenceExecutor final : public Executor {
 public:
  using Duration = std::function<int64_t()>;

  /// `model` outlives this object; `config` is that of the scheduler.
  ReferenceExecutor(const reference::Model& model, const SchedulerConfig& config,
                    const ModelRunnerConfig& runner, Duration duration_ns)
      : runner_(model, config, runner), duration_ns_(std::move(duration_ns)) {}

  void begin_load(const LoadStart& load, int64_t now_ns) override;
  void begin_copy(const CopyStart& copy, int64_t now_ns) override;
  /// Asserts that ModelRunner::problem has none.
  void begin_step(const StepPlan& plan, const Scheduler& scheduler, int64_t now_ns) override;
  Completion next(int64_t until_ns) override;
  LoadEnd end_load(int64_t now_ns) override;
  Uid end_copy(int64_t now_ns) override;
  StepResult end_step(const StepPlan& plan, const Scheduler& scheduler) override;
  void evicted_from_cpu(Uid uid) override { runner_.drop_from_cpu(uid); }
  void unloaded(Uid uid) override { runner_.remove_adapter(uid); }

  ModelRunner& runner() { return runner_; }
  const ModelRunner& runner() const { return runner_; }
  /// Why adapters failed to load, one line each.
  const std::vector<std::string>& load_errors() const { return load_errors_; }

 private:
  struct Work {
    Completion end{};
    Uid uid = kBaseUid;
    int32_t slot = kNoSlot;
    uint64_t generation = 0;
  };
  struct Step {
    ModelRunner::Step step;
    Completion end;
  };
  void begin(Completion::Kind kind, int64_t now_ns, Work work);
  Work take(Completion::Kind kind);

  ModelRunner runner_;
  Duration duration_ns_;
  std::vector<Work> under_way_;  // but steps; in order of beginning
  std::vector<Step> steps_;      // in order of beginning
  std::vector<int32_t> sampled_;
  std::vector<std::string> load_errors_;
};

}  // namespace loratory::sim
