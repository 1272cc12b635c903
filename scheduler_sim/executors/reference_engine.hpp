#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "reference/model/oracle.hpp"
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

struct EngineOutput {
  FinishReason reason = FinishReason::abort;
  std::vector<int32_t> tokens;
  std::vector<reference::Vector<float>> logits;  ///< of each of `tokens`, before sampling
};

/// Scheduler and ReferenceExecutor as one offline engine, in virtual time.
///
/// Loads, copies and steps take random times (a seed decides, a few of them very long), so that
/// they end in many orders; a step computes when it ends, with all transfers that overlapped it in
/// place. Outputs depend on nothing of this: that is what the engine is for.
/// Repeats  same calls, same seed: same everything.
class ReferenceEngine : private DecisionSink {
 public:
  /// `model` outlives this object. `sink` hears every decision too.
  ReferenceEngine(const reference::Model& model, const SchedulerConfig& config,
                  const ReferenceExecutorConfig& executor, uint64_t seed,
                  DecisionSink* sink = nullptr);

  // --- any time between two events ----------------------------------------------------------
  /// `replace`: a name that is taken gets new weights for new requests; old ones keep theirs.
  RegisterStatus register_adapter(std::string_view name, uint32_t rank, AdapterSource source,
                                  bool replace = false);
  bool unload_adapter(std::string_view name, bool abort_requests = false);
  /// Errors   InputError: a token outside the vocabulary; all else is in the status.
  SubmitStatus submit(const EngineRequest& request);
  void cancel(uint64_t id) { scheduler_.abort(id, now_ns_); }
  PinStatus pin(std::string_view name);

  /// Lets one thing happen: a step is planned, if none is in flight and there is something to run;
  /// else a load, a copy or the step ends. False: nothing is left to do.
  bool advance();
  void run() {
    while (advance()) {
    }
  }

  /// Of requests that ended, by id.
  const std::map<uint64_t, EngineOutput>& outputs() const { return outputs_; }
  const EngineOutput& output(uint64_t id) const { return outputs_.at(id); }
  /// Why adapters failed to load, one line each.
  const std::vector<std::string>& load_errors() const { return load_errors_; }
  /// The step in flight, nullptr if there is none.
  const StepPlan* step() const { return step_; }
  const Scheduler& scheduler() const { return scheduler_; }
  const ReferenceExecutor& executor() const { return executor_; }

 private:
  enum class EventKind : uint8_t { load_done, copy_done, step_done };
  struct Event {
    int64_t time_ns;
    EventKind kind;
    AdapterRef adapter = kBaseRef;
    Uid uid = kBaseUid;
    int32_t slot = kNoSlot;
    uint64_t generation = 0;
  };

  void on_decision(const Decision& decision) override;
  void start(Event event);
  void start_transfers();
  bool plan_step();
  void start_step_if_ready();
  void finish_load(const Event& event);
  void finish_copy(const Event& event);
  void finish_step();
  void keep_output(const Decision& finish);

  const reference::Model& model_;
  DecisionSink* sink_;
  Scheduler scheduler_;
  ReferenceExecutor executor_;
  RandomStream delays_;
  uint64_t num_delays_ = 0;
  int64_t now_ns_ = 0;
  std::vector<Event> events_;  // pending, in order of creation
  const StepPlan* step_ = nullptr;
  bool step_runs_ = false;
  std::map<uint64_t, std::vector<reference::Vector<float>>> logits_;  // of live requests
  std::map<uint64_t, EngineOutput> outputs_;
  std::vector<std::string> load_errors_;
};

}  // namespace loratory::sim
