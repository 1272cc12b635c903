#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "scheduler_sim/simulator/simulated_engine.hpp"

namespace loratory::sim {

/// Replays a trace in virtual time (integer nanoseconds) on a SimulatedEngine.
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

  /// Adds an operation; before run(). A request goes by its index in the trace.
  void schedule(const ScheduledOp& op) { ops_.push_back(op); }
  /// `on_arrivals` is called once every 4,096 requests with how many have arrived; before run().
  void watch(std::function<void(int64_t)> on_arrivals) { on_arrivals_ = std::move(on_arrivals); }
  /// Runs to the end: every request finished, no transfer in flight. Or until stop_when_missed.
  void run();

  const EventLog& log() const { return engine_.log(); }
  MetricsCollector& metrics() { return engine_.metrics(); }
  const Scheduler& scheduler() const { return engine_.scheduler(); }

 private:
  Moment next_call() const;
  void make_call(const Moment& moment);

  const Trace& trace_;
  SimulatedEngine engine_;
  size_t next_arrival_ = 0;
  std::vector<ScheduledOp> ops_;  // in order
  size_t next_op_ = 0;
  std::function<void(int64_t)> on_arrivals_;
};

}  // namespace loratory::sim
