#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "scheduler_sim/scheduler/decision.hpp"
#include "scheduler_sim/simulator/simulated_engine.hpp"

namespace loratory::sim {

/// A client with so many requests in flight: all at once from an idle server, then one whenever
/// one ends, until all are sent. What `vllm bench serve --max-concurrency`, AIPerf and SGLang's
/// bench_serving do.
///
///   ClosedLoop loop(concurrency, num_requests, turnaround_ns);  // hears the engine's decisions
///   while (const auto time_ns = loop.next_ns(engine, kNever)) engine.arrive(...);
class ClosedLoop final : public DecisionSink {
 public:
  /// A request reaches the scheduler `turnaround_ns`, at least 1, after the one before it ended.
  ClosedLoop(int64_t concurrency, int64_t num_requests, int64_t turnaround_ns);

  void on_decision(const Decision& decision) override;
  /// A request has ended without a decision: it was refused.
  void on_end(int64_t time_ns);

  /// When the next request arrives, before `end_ns`; the engine is not advanced beyond either.
  /// Nothing: all are sent, or no request is left whose end could bring one.
  std::optional<int64_t> next_ns(SimulatedEngine& engine, int64_t end_ns);

 private:
  std::deque<int64_t> due_ns_;  // ascending
  int64_t num_left_;            // not due yet
  int64_t turnaround_ns_;
  int64_t horizon_ns_ = 0;  // the engine was advanced to
};

}  // namespace loratory::sim
