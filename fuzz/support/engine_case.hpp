#pragma once

#include "fuzz/support/draw.hpp"
#include "fuzz/support/random_model.hpp"
#include "reference/model/oracle.hpp"
#include "scheduler_sim/executors/reference_engine.hpp"

namespace loratory::sim {

/// The adapter, already in memory.
AdapterSource source_of(const reference::RandomAdapter& adapter);

/// A prompt of at most 12 tokens that often begins as others of this `stem_seed` do; greedy or
/// seeded, at most 8 new tokens.
EngineRequest random_engine_request(Draw& draw, uint64_t id, const reference::ModelConfig& model,
                                    uint64_t stem_seed);

/// Bit for bit: tokens, and the logits that each was sampled from. A request that was cut short
/// (abort, error) must be a beginning of `expected`.
bool same_generation(const EngineOutput& got, const reference::Generation& expected);

/// Scheduler and model runner driven by hand: transfers take no time, steps run when asked to.
/// Adapters are "1", "2", ... (uid = that number).
class StepByHand {
 public:
  StepByHand(const reference::Model& model, const SchedulerConfig& config, int64_t max_lora_rank);

  void add_adapter(const reference::RandomAdapter& adapter);
  SubmitStatus submit(const EngineRequest& request);
  /// Plans until a step has rows or nothing is on its way; what it waits for arrives.
  const StepPlan& plan();
  /// The end of the step that was planned last.
  void commit(const std::vector<int32_t>& sampled) { scheduler.commit({sampled}, now_ns_); }
  /// Plans, runs and commits one step; false if it was empty.
  bool step();

  Scheduler scheduler;
  ModelRunner runner;

 private:
  void finish_transfers();

  int64_t now_ns_ = 0;
  int64_t num_adapters_ = 0;
};

}  // namespace loratory::sim
