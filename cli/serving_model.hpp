#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reference/adapter/adapter.hpp"
#include "reference/model/model_config.hpp"
#include "scheduler_sim/engine/engine_loop.hpp"
#include "scheduler_sim/serving/clock.hpp"
#include "scheduler_sim/serving/model_executor.hpp"

namespace CLI {
class App;
}

namespace loratory::cli {

/// A model on what --executor names: all that `loratory run` must know of it.
class ServingModel {
 public:
  virtual ~ServingModel() = default;
  virtual const reference::ModelConfig& config() const = 0;
  /// With which its adapters are loaded.
  virtual reference::LoadOptions adapter_options() const = 0;
  /// KV blocks, the null block included, for an engine of `scheduler` whose requests would fill
  /// `num_wanted` at most, one of them alone `num_needed`. Throws InputError if it has no room.
  virtual uint32_t num_kv_blocks(const sim::SchedulerConfig& scheduler,
                                 const sim::ModelRunnerConfig& runner, int64_t num_wanted,
                                 int64_t num_needed) const = 0;
  /// The clock and this object outlive the executor.
  virtual std::unique_ptr<sim::ModelExecutor> start(const sim::SchedulerConfig& scheduler,
                                                    const sim::ModelRunnerConfig& runner,
                                                    sim::Clock& clock) const = 0;
};

/// How many tokens a request may have, prompt and output together. vLLM's way: a model is served up
/// to the positions it was trained on; a sliding window bounds what we compute.
int64_t most_positions(const reference::ModelConfig& model);

/// The names that --executor knows: "reference", "gpu".
const std::vector<std::string>& executor_names();

/// What --dtype takes: "auto", "bfloat16", "float16", "float32", as in vLLM.
const std::vector<std::string>& dtype_names();

/// --async-scheduling: auto, on, off. auto: where the executor runs beside the host, as a GPU does.
void add_async_scheduling(CLI::App& command, std::string& choice);
sim::StepsAhead steps_ahead(const std::string& choice, const std::string& executor);

/// Loads the model in `directory` for the executor of that name. Here a new executor is added.
/// Throws InputError: no such model, an executor that this build does not have, or a dtype that the
/// executor does not compute in.
std::unique_ptr<ServingModel> load_serving_model(const std::string& executor,
                                                 const std::string& directory,
                                                 const std::string& dtype);

/// Random weights of a config. Throws InputError: an executor that makes none.
std::unique_ptr<ServingModel> random_serving_model(const std::string& executor,
                                                   const reference::ModelConfig& config,
                                                   const std::string& dtype);

}  // namespace loratory::cli
