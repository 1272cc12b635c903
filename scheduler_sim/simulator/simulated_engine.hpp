#pragma once

#include <cstdint>
#include <optional>
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
  bool fast = true;  ///< jump over regular steps; the event log is the same either way
  StepsAhead steps_ahead = StepsAhead::none;  ///< one: there are no regular steps to jump over
  bool keep_log = false;                      ///< keep the decisions in memory, not only their hash
  bool hash_log = true;  ///< false, where nobody asks for log(): it stays empty
  /// Ends a Simulator's run once these limits are certainly missed; then nothing is known but that.
  std::optional<Slo> stop_when_missed;
};

/// An operator's action at a time of the replay, beside the requests of the trace.
struct ScheduledOp {
  enum class Kind : uint8_t { abort, unload, pin, unpin };
  int64_t time_ns = 0;
  Kind kind = Kind::abort;
  uint64_t target = 0;  ///< request id (abort) or AdapterIndex
};

/// An engine in virtual time: EngineLoop over a CostExecutor, with fast mode, event log and
/// metrics. Its owner says what comes in and how far time goes: Simulator from a trace, a fleet
/// from its router.
///
///   engine.advance_to(moment);  engine.arrive(id, request);  ...  engine.advance_to(kEndOfTime);
class SimulatedEngine {
 public:
  /// `trace` says what the adapters are called and what is in a prompt. It and `step_time` outlive
  /// the engine, and so does `listener`, which hears every decision.
  SimulatedEngine(const Trace& trace, const SimulationConfig& config,
                  const StepTimeModel& step_time, MetricsCollector metrics,
                  DecisionSink* listener = nullptr);

  /// Everything before `until` happens.
  void advance_to(const Moment& until);
  /// The same as far as decisions go; regular steps that reach beyond `until` stay ahead, to be
  /// taken when it is known how far they may go.
  void advance_lazily_to(const Moment& until);
  /// If nothing is asked for, nothing is decided before this time. After advance_lazily_to.
  int64_t quiet_until_ns() const { return quiet_until_ns_; }

  /// The request comes in at its arrival_ns. Its id is its number in metrics().
  void arrive(uint64_t id, const TraceRequest& request);
  void run_op(const ScheduledOp& op);

  /// KV blocks in use just before the arrivals of `time_ns`, a time that the engine was advanced
  /// to, lazily or not.
  uint32_t num_blocks_at(int64_t time_ns) const;

  /// The limits of stop_when_missed, which metrics() watches, are missed: nothing happens any more.
  bool has_stopped() const { return config_.stop_when_missed && metrics_.slo_is_missed(); }

  const EventLog& log() const { return log_; }
  MetricsCollector& metrics() { return metrics_; }
  const MetricsCollector& metrics() const { return metrics_; }
  const Scheduler& scheduler() const { return loop_.scheduler(); }
  /// kBaseUid for the base model.
  Uid uid_of(AdapterIndex adapter) const;
  /// kBaseModel for kBaseRef.
  AdapterIndex adapter_of(AdapterRef ref) const {
    if (ref == kBaseRef) return kBaseModel;
    return AdapterIndex(scheduler().residency().uid(ref) - uids_.front());
  }

 private:
  std::vector<DecisionSink*> sinks(DecisionSink* listener);
  void register_adapters();
  void prepare_call(int64_t time_ns, Moment::Phase phase);
  void skip_regular_steps(int64_t until_ns);
  template <typename OnStep>
  int64_t walk_regular_steps(int64_t until_ns, OnStep on_step);
  void end_regular_steps(int64_t num_steps, int64_t end_ns);
  bool look_ahead(const Moment& until);
  void take_steps_ahead(int64_t until_ns);
  RequestSpec spec_of(uint64_t id, const TraceRequest& request);
  ArrivalTier tier_of(AdapterIndex adapter) const;

  const Trace& trace_;
  SimulationConfig config_;
  EventLog log_;
  MetricsCollector metrics_;
  CostExecutor executor_;
  EngineLoop loop_;
  std::vector<Uid> uids_;       // by AdapterIndex
  std::vector<int64_t> ahead_;  // when each regular step ends that was not taken yet
  int64_t quiet_until_ns_ = 0;
  std::vector<uint64_t> contents_;  // scratch of spec_of
};

}  // namespace loratory::sim
