#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <vector>

#include "scheduler_sim/simulator/simulated_engine.hpp"

namespace loratory::sim {

/// One engine of a fleet. Its requests are those that the router sends to it,
/// numbered 0, 1, 2, ... in their order; its event log is that of a Simulator
/// that replays those requests alone.
class Replica {
 public:
  /// All outlive the replica. `pins` are on the GPU from the start.
  Replica(const Trace& trace, const SimulationConfig& config, const StepTimeModel& step_time,
          const std::vector<AdapterIndex>& pins);

  /// Everything before the arrivals of this time happens.
  void advance_to(int64_t time_ns) { advance(time_ns, &SimulatedEngine::advance_to); }
  /// The same as far as decisions go; see SimulatedEngine.
  void advance_lazily_to(int64_t time_ns) { advance(time_ns, &SimulatedEngine::advance_lazily_to); }
  /// Nothing is decided before this time unless a request is sent. After
  /// advance_lazily_to.
  int64_t quiet_until_ns() const;

  /// The request comes in at its arrival time, to which the replica was
  /// advanced.
  void arrive(size_t trace_index);
  /// Runs to the end of what it was sent.
  void finish();

  const SimulatedEngine& engine() const { return engine_; }
  MetricsCollector& metrics() { return engine_.metrics(); }
  const MetricsCollector& metrics() const { return engine_.metrics(); }
  /// Indices in the trace, by number.
  const std::vector<size_t>& requests() const { return requests_; }

 private:
  using Advance = void (SimulatedEngine::*)(const Moment&);
  struct Op {
    ScheduledOp op;
    size_t number;  // of those with one time and kind, the first comes first
    bool operator<(const Op& other) const;
  };
  void advance(int64_t time_ns, Advance how);
  void run_ops_before(const Moment& until, Advance how);

  const Trace& trace_;
  SimulatedEngine engine_;
  std::vector<size_t> requests_;
  std::priority_queue<Op> ops_;  // the next one on top
  size_t num_ops_ = 0;
};

}  // namespace loratory::sim
