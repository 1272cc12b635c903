#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "scheduler_sim/cost/gpu_spec.hpp"
#include "scheduler_sim/cost/memory_law.hpp"
#include "scheduler_sim/cost/model_spec.hpp"
#include "scheduler_sim/cost/step_time.hpp"
#include "scheduler_sim/cost/transfer.hpp"
#include "scheduler_sim/fleet/fleet.hpp"
#include "scheduler_sim/scheduler/scheduler.hpp"
#include "scheduler_sim/sizing/size_result.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// The engine under study: everything but the two numbers that sizing looks for.
struct EngineSpec {
  ModelSpec model;
  GpuSpec gpu;
  MemoryOptions memory;
  LoadCosts loads;
  SchedulerConfig scheduler;  ///< max_loras, max_cpu_loras and num_blocks are filled in
  /// Step times of an engine with so many slots (its grids may depend on them).
  std::function<std::unique_ptr<StepTimeModel>(int64_t max_loras)> make_step_time;
  uint32_t default_rank = 16;  ///< of adapters whose rank the trace does not give
  /// Pinned from the start [5.19]. A configuration without a slot beside theirs is not feasible.
  std::vector<AdapterIndex> pins;
  uint32_t forced_kv_blocks = 0;  ///< > 0: this many KV blocks, whatever memory allows
  bool fast = true;
  std::optional<FleetOptions> fleet;  ///< several engines behind a router; none: one engine alone
  double gpu_hour_usd = 0;            ///< of one GPU; 0 = not known
};

struct EnginePoint {
  int32_t max_loras = 0;
  int32_t max_cpu_loras = 0;
};

/// A replay and, when asked for, its decisions.
struct ReplayOutput {
  ConfigResult result;
  std::vector<Decision> decisions;
  std::vector<std::vector<Decision>> replica_decisions;  ///< in their place, of a fleet
};

enum class ReplayDetail : uint8_t { metrics, details, decisions };

/// Replays the trace on one configuration. One that does not fit in memory is a result with
/// `feasible` = false whose verdict says what is short. Thread-safe: shares nothing.
ReplayOutput replay(const Trace& trace, const EngineSpec& engine, EnginePoint point, const Slo& slo,
                    ReplayDetail detail = ReplayDetail::metrics);

/// Does the result meet the SLO: every limit at its percentile, nothing failed?
bool meets_slo(const ConfigResult& result, const Slo& slo);

/// What the table and the report say about the workload and the system.
WorkloadSummary summarize_workload(const Trace& trace, const EngineSpec& engine);

}  // namespace loratory::sim
