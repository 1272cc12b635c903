#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "reference/model/oracle.hpp"
#include "scheduler_sim/engine/engine_loop.hpp"
#include "scheduler_sim/executors/reference_executor.hpp"
#include "scheduler_sim/workload/random.hpp"

namespace loratory::sim {

struct EngineRequest {
  uint64_t id = 0;
  std::string adapter;  ///< "" = base model; looked up at submission
  std::vector<int32_t> prompt;
  reference::GenerateParams params;
  int32_t priority = 0;
  bool disable_prefix_cache = false;
};

/// What the scheduler is told of it, but for the adapter. It points into `request`.
RequestSpec request_spec(const EngineRequest& request);

struct EngineOutput {
  FinishReason reason = FinishReason::abort;
  std::vector<int32_t> tokens;
  std::vector<reference::Vector<float>> logits;  ///< of each of `tokens`, before sampling
};

/// An offline engine on the CPU: EngineLoop over a ReferenceExecutor, requests in and tokens out.
///
/// Loads, copies and steps take random times (a seed decides, a few of them very long), so that
/// they end in many orders. Outputs do not depend on that: to show it is what the engine is for.
/// Repeats  same calls, same seed: same everything.
class ReferenceEngine : private DecisionSink, private StepObserver {
 public:
  /// `model` outlives this object; its sliding window bounds max_model_len. `sink` hears every
  /// decision too.
  ReferenceEngine(const reference::Model& model, const SchedulerConfig& config,
                  const ModelRunnerConfig& runner, uint64_t seed, DecisionSink* sink = nullptr,
                  StepsAhead ahead = StepsAhead::none);

  // --- any time between two events ----------------------------------------------------------
  /// `replace`: a name that is taken gets new weights for new requests; old ones keep theirs.
  RegisterStatus register_adapter(std::string_view name, uint32_t rank, AdapterSource source,
                                  bool replace = false);
  bool unload_adapter(std::string_view name, bool abort_requests = false);
  /// Errors   InputError: a token outside the vocabulary; all else is in the status.
  SubmitStatus submit(const EngineRequest& request);
  void cancel(uint64_t id);
  PinStatus pin(std::string_view name);

  /// Lets one thing happen: EngineLoop::advance. False: nothing is left to do.
  bool advance() { return loop_.advance(); }
  void run() {
    while (advance()) {
    }
  }

  /// Of requests that ended, by id.
  const std::map<uint64_t, EngineOutput>& outputs() const { return outputs_; }
  const EngineOutput& output(uint64_t id) const { return outputs_.at(id); }
  /// Why adapters failed to load, one line each.
  const std::vector<std::string>& load_errors() const { return executor_.load_errors(); }
  /// As EngineLoop::step.
  const StepPlan* step(size_t index = 0) const { return loop_.step(index); }
  const Scheduler& scheduler() const { return loop_.scheduler(); }
  const ModelRunner& runner() const { return executor_.runner(); }

 private:
  template <typename Call>
  auto call(Call&& make) {
    return loop_.call(loop_.now_ns(), std::forward<Call>(make));
  }
  int64_t random_delay_ns();
  void on_decision(const Decision& decision) override;
  void on_step_end(const Scheduler& scheduler, const StepPlan& plan, int64_t start_ns,
                   int64_t now_ns) override;
  void on_commit(const Scheduler&, int64_t) override {}

  const reference::Model& model_;
  RandomStream delays_;
  uint64_t num_delays_ = 0;
  std::map<uint64_t, std::vector<reference::Vector<float>>> logits_;  // of live requests
  std::map<uint64_t, EngineOutput> outputs_;
  ReferenceExecutor executor_;
  EngineLoop loop_;
};

}  // namespace loratory::sim
