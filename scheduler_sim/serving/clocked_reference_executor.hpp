#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "scheduler_sim/executors/model_runner.hpp"
#include "scheduler_sim/serving/clock.hpp"
#include "scheduler_sim/serving/model_executor.hpp"

namespace loratory::sim {

/// Runs a model on the CPU, and things take as long as they take: work is done when it begins, and
/// ends at the time that the clock shows then. So one thing is done at a time, and what arrived in
/// the meantime is handled at its own time.
///
/// ReferenceExecutor, which computes when work ends, is the one that finds weights overwritten
/// under a step.
/// Repeats  tokens bitwise, as ModelRunner does; times as the clock does.
class ClockedReferenceExecutor final : public ModelExecutor {
 public:
  /// `model` and `clock` outlive this object; `config` is that of the scheduler.
  ClockedReferenceExecutor(const reference::Model& model, const SchedulerConfig& config,
                           const ModelRunnerConfig& runner, Clock& clock)
      : runner_(model, config, runner), clock_(clock) {}

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

  void add_adapter(Uid uid, AdapterSource source) override;
  void set_sampling(uint64_t id, const TokenParams& params) override;
  void forget_request(uint64_t id) override;
  std::string load_error(Uid uid) const override;
  std::span<const TokenLogprobs> logprobs() const override { return logprobs_; }

 private:
  struct Done {
    Completion end{};
    Uid uid = kBaseUid;
    bool ok = true;
    std::vector<int32_t> sampled{};         // of a step
    std::vector<TokenLogprobs> logprobs{};  // of a step
  };
  void is_done(Completion::Kind kind, int64_t now_ns, Done done);
  Done take(Completion::Kind kind);
  void collect_logprobs(const StepPlan& plan, const Scheduler& scheduler, Done& step) const;

  ModelRunner runner_;
  Clock& clock_;
  std::vector<Done> done_;               // in the order of beginning, which is that of their ends
  std::vector<int32_t> sampled_;         // by the step that ended last
  std::vector<TokenLogprobs> logprobs_;  // of it
  std::unordered_map<uint64_t, int32_t> num_logprobs_;  // of requests that want any
  std::map<Uid, std::string> load_errors_;
};

}  // namespace loratory::sim
