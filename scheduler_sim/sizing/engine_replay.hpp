#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "scheduler_sim/cost/gpu_spec.hpp"
#include "scheduler_sim/cost/memory_law.hpp"
#include "scheduler_sim/cost/model_spec.hpp"
#include "scheduler_sim/cost/step_time.hpp"
#include "scheduler_sim/cost/transfer.hpp"
#include "scheduler_sim/fleet/fleet.hpp"
#include "scheduler_sim/scheduler/scheduler.hpp"
#include "scheduler_sim/simulator/simulated_engine.hpp"
#include "scheduler_sim/sizing/engine_point.hpp"
#include "scheduler_sim/sizing/size_result.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// The engine under study: everything but the two numbers that sizing looks for.
struct EngineSpec {
  std::string name;  ///< "vLLM 0.8.5", "ideal"
  ModelSpec model;
  GpuSpec gpu;
  MemoryOptions memory;
  LoadCosts loads;
  SchedulerConfig scheduler;  ///< max_loras, max_cpu_loras and num_blocks are filled in
  /// Step times of an engine with so many slots, which its grids may depend on, and so many
  /// adapters in host memory, which its tables may.
  std::function<std::unique_ptr<StepTimeModel>(EnginePoint)> make_step_time;
  uint32_t default_rank = 16;  ///< of adapters whose rank the trace does not give; its largest rank
  std::span<const int64_t> lora_ranks;  ///< allowed max_lora_rank, ascending; empty = any
  /// Adapters pinned from the start [5.19], by name: traces with adapters of their own number them
  /// differently. A configuration without a slot beside theirs is not feasible.
  std::vector<std::string> pins;
  uint32_t forced_kv_blocks = 0;  ///< > 0: this many KV blocks, whatever memory allows
  bool fast = true;
  StepsAhead steps_ahead = StepsAhead::none;
  std::optional<FleetOptions> fleet;  ///< several engines behind a router; none: one engine alone
  double gpu_hour_usd = 0;            ///< of one GPU; 0 = not known
};

/// A replay and, when asked for, its decisions.
struct ReplayOutput {
  ConfigResult result;
  std::vector<Decision> decisions;
  std::vector<std::vector<Decision>> replica_decisions;  ///< in their place, of a fleet
};

using OnArrivals = std::function<void(int64_t num_arrived)>;

enum class ReplayDetail : uint8_t { metrics, details, decisions };

/// What a replay does without, to see what it costs. Memory stays as the point has it.
struct Spared {
  bool slots = false;      ///< every adapter has a slot (of at most 4,096) and a place on the host
  bool load_time = false;  ///< an adapter is read in 1 ns and copied in 1 ns
  bool kv_limit = false;   ///< KV blocks for all requests that can run at once
  bool seats = false;      ///< max_num_seqs is as large as a step's token budget
  bool half_time = false;  ///< a step takes half as long
};

/// Replays the trace on one configuration. One that does not fit in memory is a result with
/// `feasible` = false whose `problem` says what is short. Thread-safe: shares nothing.
/// Calls `on_arrivals` once every 4,096 requests with how many have arrived.
ReplayOutput replay(const Trace& trace, const EngineSpec& engine, EnginePoint point, const Slo& slo,
                    ReplayDetail detail = ReplayDetail::metrics, const Spared& spared = {},
                    const OnArrivals& on_arrivals = {});

/// Whether replays of the engine show what requests wait for: not in blocking load mode, which
/// admits first, nor behind a router. ConfigResult::waits is 0 then.
bool waits_are_known(const EngineSpec& engine);

/// Whether the replay would meet the SLO; it ends as soon as it cannot.
bool would_meet(const Trace& trace, const EngineSpec& engine, EnginePoint point, const Slo& slo);

/// EngineSpec::pins in the trace, which has all of them.
std::vector<AdapterIndex> pins_in(const Trace& trace, const EngineSpec& engine);

/// Prompt and output tokens of the longest request; 0 without requests.
int64_t longest_request(const Trace& trace);

/// Blocks with which no request ever waits for one or is preempted: all that run have the longest.
int64_t blocks_for_all(const Trace& trace, const SchedulerConfig& scheduler);

/// Does the result meet the SLO: every limit at its percentile, nothing failed?
bool meets_slo(const ConfigResult& result, const Slo& slo);

/// What memory leaves at a point, with EngineSpec::forced_kv_blocks.
MemoryPlan memory_of(const EngineSpec& engine, EnginePoint point);

/// The simulator's configuration at a point that has so many KV blocks.
SimulationConfig simulation_config(const Trace& trace, const EngineSpec& engine, EnginePoint point,
                                   int64_t kv_blocks);

/// A Cause without a kind: by how much the result misses the SLO, and with which of its limits.
Cause miss_of(const ConfigResult& result, const Slo& slo);

/// What the table and the report say about the workload and the system.
WorkloadSummary summarize_workload(const Trace& trace, const EngineSpec& engine);

}  // namespace loratory::sim
