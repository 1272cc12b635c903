#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler_sim/engine/engine_loop.hpp"
#include "scheduler_sim/serving/clock.hpp"
#include "scheduler_sim/serving/model_executor.hpp"
#include "scheduler_sim/serving/request_file.hpp"

namespace loratory::sim {

/// A folder with an adapter, as the scheduler and the executor want to know it.
struct AdapterFolder {
  uint32_t rank = 1;
  int64_t bytes = 1;
  AdapterSource source;
};

/// What became of one request. Times are nanoseconds since the start of the run, -1 = never.
struct ServedRequest {
  FinishReason reason = FinishReason::abort;
  std::string error;  ///< why, if `reason` is error
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;  ///< of each of `tokens`, if the request asked for them
  uint32_t num_cached_tokens = 0;       ///< of the prompt, found in the prefix cache at first
  int64_t arrival_ns = 0;
  int64_t first_scheduled_ns = -1;  ///< the plan of its first step
  std::vector<int64_t> token_ns;    ///< of each of `tokens`: the end of its step
  int64_t finish_ns = -1;
};

/// An operation that the engine refused when its time came, or a pin whose adapter could not be
/// loaded then.
struct RefusedOperation {
  uint64_t line = 0;
  std::string why;
};

/// What a run of a request file gives.
struct ServedFile {
  std::vector<ServedRequest> requests;  ///< in the order of the file
  std::vector<RefusedOperation> refused;
  int64_t end_ns = 0;  ///< of the last event
  int64_t num_steps = 0, num_preemptions = 0, num_loads = 0, num_copies = 0;
  std::optional<StepTimes> times;  ///< if the executor measures them
};

/// Plays a request file on an engine that computes, in the time of `clock`: EngineLoop over any
/// ModelExecutor. A line is handled when its arrival has come; requests, loads, unloads and pins of
/// one moment in the order of the file.
///
///   ServingRun run(config, executor, clock);
///   run.add_adapter("sql", folder);
///   ServedFile out = run.serve(file, folders);
///
/// Repeats  tokens and log probabilities follow from the requests and their adapters alone, if the
///          executor's do; times, and which operations are refused, from the clock.
class ServingRun : private DecisionSink, private StepObserver {
 public:
  /// `clock` is that of the executor and stands at the start of the run.
  ServingRun(const SchedulerConfig& config, ModelExecutor& executor, Clock& clock,
             StepsAhead ahead = StepsAhead::none);

  /// Before the first line. Asserted: the name is free.
  void add_adapter(const std::string& name, const AdapterFolder& folder);

  /// Once. resolve_names() has passed the file and every prompt has tokens; `folders` has the
  /// lora_path of every load. `on_finished` hears how many requests have ended.
  ServedFile serve(const RequestFile& file, const std::map<std::string, AdapterFolder>& folders,
                   const std::function<void(int64_t)>& on_finished = {});

  const Scheduler& scheduler() const { return loop_.scheduler(); }

 private:
  void arrive(const ServingRequest& request, int64_t time_ns);
  void operate(const RequestLine& line, const AdapterOperation& operation,
               const std::map<std::string, AdapterFolder>& folders);
  bool register_adapter(const std::string& name, const AdapterFolder& folder, bool replace,
                        int64_t time_ns);
  void pin(const RequestLine& line, const AdapterOperation& operation);
  void on_load_failure(Uid uid);

  void on_decision(const Decision& decision) override;
  void on_finish(const Decision& decision, FinishReason reason);
  void on_step_end(const Scheduler& scheduler, const StepPlan& plan, int64_t start_ns,
                   int64_t now_ns) override;
  void on_commit(const Scheduler&, int64_t) override {}

  ModelExecutor& executor_;
  Clock& clock_;
  EngineLoop loop_;
  std::map<Uid, uint64_t> pins_;              // the line of each pin
  std::vector<const ServingRequest*> asked_;  // by id, which is the place in out_.requests
  ServedFile out_;
  int64_t num_finished_ = 0;
  std::function<void(int64_t)> on_finished_;
};

}  // namespace loratory::sim
