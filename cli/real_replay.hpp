#pragma once

#include <cstdint>
#include <string>

#include "cli/system_options.hpp"
#include "scheduler_sim/engine/step_observer.hpp"
#include "scheduler_sim/sizing/engine_replay.hpp"

namespace CLI {
class App;
}

namespace loratory::cli {

/// What plays the trace of a replay: the simulator, or an engine that computes.
struct RealOptions {
  std::string executor = "simulator";
  std::string weights;      ///< a folder, or "random"
  std::string adapter_dir;  ///< where the made-up adapters are kept; empty = nowhere
  std::string async_scheduling = "auto";
  bool with_simulation = false;

  bool is_real() const { return executor != "simulator"; }
};

void add_real_options(CLI::App& command, RealOptions& options);

/// Refuses flags that change nothing or cannot be had; --model becomes that of --weights.
void settle_real_options(const CLI::App& command, const RealOptions& real, SystemOptions& system);

/// How many tokens a request of --model can have.
int64_t most_positions(const SystemOptions& system);

struct RealReplay {
  sim::ReplayOutput output;
  std::string engine;  ///< instead of EngineSpec::name: "loratory on a GPU"
  std::string host;    ///< host_text(); empty: nobody measured it
};

/// Plays the trace in real time. KV blocks that were not given are set in `engine`, so that a
/// simulation of it has the same. With a profiler, which hears of the steps, requests of one time
/// come together as soon as the engine is idle (TraceRun::Arrivals).
RealReplay replay_for_real(const sim::Trace& trace, sim::EngineSpec& engine, sim::EnginePoint point,
                           const sim::Slo& slo, const RealOptions& real,
                           const SystemOptions& system, uint64_t seed,
                           sim::StepObserver* profiler = nullptr);

}  // namespace loratory::cli
