#pragma once

#include <cstdint>
#include <vector>

#include "scheduler_sim/engine/engine_loop.hpp"
#include "scheduler_sim/executors/cost_executor.hpp"
#include "scheduler_sim/metrics/collector.hpp"
#include "scheduler_sim/simulator/event_log.hpp"
#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// One configuration of the engine, ready to be replayed.
struct SimulationConfig {
  SchedulerConfig scheduler;
  LoadCosts loads;
  std::vector<int64_t> adapter_bytes;   ///< by AdapterIndex: what a load moves
  std::vector<uint32_t> adapter_ranks;  ///< by AdapterIndex: true ranks
  bool fast = true;       ///< jump over regular steps; the event log is the same either way
  bool keep_log = false;  ///< keep the decisions in memory, not only their hash
};

/// An operator's action at a time of the replay, beside the requests of the trace.
struct ScheduledOp {
  enum class Kind : uint8_t { abort, unload, pin, unpin };
  int64_t time_ns = 0;
  Kind kind = Kind::abort;
  uint64_t target = 0;  ///< request index (abort) or AdapterIndex
};

/// Replays a trace in virtual time (integer nanoseconds): EngineLoop over a CostExecutor, with the
/// requests of the trace, fast mode and metrics.
///
/// Calls of one time run in the order arrival, abort, unload, pin, unpin, and where a load, a copy
/// or the step ends in the same nanosecond, after the arrivals and before the rest (Moment). Same
/// trace and configuration: same event log, on any number of threads, and whether or not regular
/// steps are skipped.
class Simulator {
 public:
  /// `trace` and `step_time` must outlive the simulator.
  Simulator(const Trace& trace, const SimulationConfig& config, const StepTimeModel& step_time);
  Simulator(const Trace&&, const SimulationConfig&, const StepTimeModel&) = delete;
  Simulator(const Trace&, const SimulationConfig&, const StepTimeModel&&) = delete;

  /// Adds an operation; before run().
  void schedule(const ScheduledOp& op) { ops_.push_back(op); }
  /// Runs to the end: every request finished, no transfer in flight.
  void run();

  const EventLog& log() const { return log_; }
  MetricsCollector& metrics() { return metrics_; }
  const Scheduler& scheduler() const { return loop_.scheduler(); }

 private:
  void register_adapters();
  Moment next_call() const;
  void arrive();
  void run_op(const ScheduledOp& op);
  void skip_regular_steps(int64_t until_ns);
  RequestSpec spec_of(size_t request);
  Uid uid_of(AdapterIndex adapter) const;
  ArrivalTier tier_of(AdapterIndex adapter) const;

  const Trace& trace_;
  SimulationConfig config_;
  EventLog log_;
  MetricsCollector metrics_;
  CostExecutor executor_;
  EngineLoop loop_;

  std::vector<Uid> uids_;  // by AdapterIndex
  size_t next_arrival_ = 0;
  std::vector<ScheduledOp> ops_;  // in order
  size_t next_op_ = 0;
  std::vector<uint64_t> contents_;  // scratch of spec_of
};

}  // namespace loratory::sim
