#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reference/model/sampling.hpp"
#include "scheduler_sim/engine/executor.hpp"
#include "scheduler_sim/executors/model_runner.hpp"

namespace loratory::sim {

/// How the tokens of one request are chosen, and what is said of them.
struct TokenParams {
  reference::SamplingParams sampling{};
  int32_t num_logprobs = -1;  ///< -1: no log probabilities; n: the token's own and the n largest
};

/// Of one sampled token, before temperature, top-k and top-p.
struct TokenLogprobs {
  double logprob = 0;
  std::vector<reference::TokenLogprob> top;  ///< reference::top_log_probabilities
};

/// Where the time of steps went, since the executor began.
struct StepTimes {
  int64_t num_steps = 0;
  int64_t num_ahead = 0;     ///< began while another step was under way
  int64_t num_replayed = 0;  ///< from a CUDA graph
  int64_t step_ns = 0;       ///< in which a step was under way
  int64_t host_ns = 0;       ///< of the host for steps: plans, commits, whatever is no wait
  int64_t waited_ns = 0;     ///< between two steps, in which the GPU waited for the host
};

/// An Executor that computes the tokens of a real model on a real clock, whatever it runs on: what
/// ServingRun drives. Beside the plans it must know where adapters come from and how each request
/// is sampled.
///
/// Time is that of one Clock, which next() reads and waits on: an end has the time at which the
/// work was done, and that may lie before now. Between the ends the loop's time stands still, so an
/// arrival during a step is handled at its own time.
class ModelExecutor : public Executor {
 public:
  /// A new uid, before its first load. Each load calls `source`, perhaps from another thread.
  virtual void add_adapter(Uid uid, AdapterSource source) = 0;
  /// `id` as in RequestSpec, before the first step of the request.
  virtual void set_sampling(uint64_t id, const TokenParams& params) = 0;
  /// The request has ended.
  virtual void forget_request(uint64_t id) = 0;

  /// Why the last load of the adapter failed, in one line; empty if none did.
  virtual std::string load_error(Uid uid) const = 0;
  /// Of the step that ended last: one entry for each row with `samples`, in row order; what stands
  /// there for a request that asked for none is unspecified. Valid until the next call.
  virtual std::span<const TokenLogprobs> logprobs() const = 0;

  /// Nullptr: nobody measures them.
  virtual const StepTimes* step_times() const { return nullptr; }
};

}  // namespace loratory::sim
