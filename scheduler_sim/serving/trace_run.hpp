#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "scheduler_sim/engine/engine_loop.hpp"
#include "scheduler_sim/metrics/collector.hpp"
#include "scheduler_sim/serving/clock.hpp"
#include "scheduler_sim/serving/model_executor.hpp"
#include "scheduler_sim/serving/trace_prompts.hpp"
#include "scheduler_sim/simulator/event_log.hpp"
#include "scheduler_sim/simulator/simulated_engine.hpp"

namespace loratory::sim {

/// Plays a trace on an engine that computes, in the time of `clock`: what Simulator is in virtual
/// time. Requests come at their times, with prompts of TracePrompts, and generate as many tokens as
/// the trace says: greedily, and no token stops them.
///
///   TraceRun run(trace, prompts, config, executor, clock, StepsAhead::one);
///   run.add_adapters(sources);
///   run.run(pins);
///   run.metrics().fill(...)
///
/// Repeats  what is computed, if the executor's tokens do; times as the clock does.
class TraceRun : private StepObserver {
 public:
  /// When requests come: at their times; or those of one time together, as soon as the engine has
  /// nothing left to do and not before that time.
  enum class Arrivals : uint8_t { at_their_times, when_idle };

  /// Everything outlives this object. Of `config` the scheduler, adapters and keep_log count.
  /// `clock` is that of the executor and stands at the start of the run when run() is called.
  TraceRun(const Trace& trace, const TracePrompts& prompts, const SimulationConfig& config,
           ModelExecutor& executor, Clock& clock, StepsAhead ahead,
           Arrivals arrivals = Arrivals::at_their_times);

  /// Where the adapters come from, by AdapterIndex; once, before run().
  void add_adapters(std::span<const AdapterSource> sources);
  /// Before run(): what hears of the steps besides metrics().
  void observe(StepObserver& observer) { also_ = &observer; }
  /// Once. `on_arrivals` hears how many requests have arrived.
  void run(std::span<const AdapterIndex> pins, const std::function<void(int64_t)>& on_arrivals);

  MetricsCollector& metrics() { return metrics_; }
  const EventLog& log() const { return log_; }
  const Scheduler& scheduler() const { return loop_.scheduler(); }
  int64_t end_ns() const { return loop_.now_ns(); }

 private:
  void on_step_end(const Scheduler& scheduler, const StepPlan& plan, int64_t start_ns,
                   int64_t now_ns) override;
  void on_commit(const Scheduler& scheduler, int64_t now_ns) override;
  void play_until(const Moment& moment);
  int64_t time_of(int64_t arrival_ns);
  void arrive(size_t request, std::span<const int32_t> prompt, int64_t time_ns);
  void cancel(size_t request);
  ArrivalTier tier_of(AdapterIndex adapter) const;

  const Trace& trace_;
  const TracePrompts& prompts_;
  const SimulationConfig& config_;
  ModelExecutor& executor_;
  Clock& clock_;
  EventLog log_;
  MetricsCollector metrics_;
  Arrivals arrivals_;
  StepObserver* also_ = nullptr;
  int64_t burst_ns_ = -1, burst_time_ns_ = 0;  // when_idle: the last burst, and when it came
  EngineLoop loop_;
  std::vector<Uid> uids_;  // by AdapterIndex
};

}  // namespace loratory::sim
