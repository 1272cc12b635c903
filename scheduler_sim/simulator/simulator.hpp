#pragma once

#include <cstdint>
#include <vector>

#include "scheduler_sim/cost/step_time.hpp"
#include "scheduler_sim/cost/transfer.hpp"
#include "scheduler_sim/executors/cost_executor.hpp"
#include "scheduler_sim/metrics/collector.hpp"
#include "scheduler_sim/scheduler/scheduler.hpp"
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

/// Replays a trace through the scheduler in virtual time (integer nanoseconds).
///
/// Events of one time run in the order arrival, load done, copy done, step done, abort, unload,
/// pin, unpin, and within a kind in order of creation; then the next step is planned if none is in
/// flight. Same trace and configuration: same event log, on any number of threads, and whether or
/// not regular steps are skipped.
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
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  /// Passes every decision to the log and to the metrics.
  struct Tee : DecisionSink {
    Tee(DecisionSink& a, DecisionSink& b) : first(a), second(b) {}
    void on_decision(const Decision& d) override { first.on_decision(d), second.on_decision(d); }
    DecisionSink &first, &second;
  };
  enum class EventKind : uint8_t { arrival, load_done, copy_done, step_done, op, none };
  struct NextEvent {
    int64_t time_ns;
    EventKind kind;
  };

  void register_adapters();
  NextEvent next_event() const;
  void run_event(EventKind kind);
  void arrive();
  void finish_load();
  void finish_copy();
  void finish_step();
  void run_op(const ScheduledOp& op);
  void start_transfers();
  void start_step_if_ready();
  void plan_next_step();
  void skip_regular_steps();
  RequestSpec spec_of(size_t request);
  ArrivalTier tier_of(AdapterIndex adapter) const;

  const Trace& trace_;
  SimulationConfig config_;
  EventLog log_;
  MetricsCollector metrics_;
  Tee tee_{log_, metrics_};
  Scheduler scheduler_;
  CostExecutor executor_;
  DiskChannel disk_;
  CopyChannel copies_;

  int64_t now_ns_ = 0;
  size_t next_arrival_ = 0;
  std::vector<ScheduledOp> ops_;  // in order
  size_t next_op_ = 0;
  const StepPlan* step_ = nullptr;  // in flight
  BatchShape shape_;                // of the last step
  int64_t step_start_ns_ = -1;      // -1 = waits for its adapters
  int64_t step_end_ns_ = kNever;
  std::vector<uint64_t> contents_;  // scratch of spec_of
};

}  // namespace loratory::sim
