#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "scheduler_sim/engine/executor.hpp"
#include "scheduler_sim/engine/step_observer.hpp"

namespace loratory::sim {

/// A place in time. What happens within one nanosecond happens in the order of `Phase`.
struct Moment {
  enum class Phase : uint8_t {
    arrivals,     ///< requests come in
    completions,  ///< loads, then copies, then the step end
    operations,   ///< aborts, unloads, pins: an operator's calls
    plan,         ///< the next step is planned
  };
  int64_t time_ns = kNever;
  Phase phase = Phase::arrivals;

  auto operator<=>(const Moment&) const = default;
};

/// After everything else.
inline constexpr Moment kEndOfTime{};

/// How many steps the loop plans before the one that runs has ended.
enum class StepsAhead : uint8_t {
  none,
  one,  ///< the host plans while the step runs; what a step samples is known one plan later [7.17]
};

/// The engine: a scheduler that decides, an executor that does, and the order of events between
/// them. There is one such loop; what is simulated, computed on a CPU or run on a GPU differs in
/// its Executor and in nothing else.
///
///   loop.call(now, [&](Scheduler& s, int64_t now) { return s.submit(spec, now); });
///   while (loop.advance()) {}
///
/// Time is what the caller and the executor say: a virtual clock jumps from event to event, a real
/// one passes while Executor::next waits.
/// Errors   InputError once time passes kLastNs.
/// Repeats  same calls at the same times, and an executor that repeats: same decisions.
class EngineLoop : private DecisionSink {
 public:
  /// Everything outlives the loop. Sinks hear each decision in their order, after the executor.
  /// With a step ahead, `executor` takes a second step while one is under way.
  EngineLoop(const SchedulerConfig& config, Executor& executor, std::vector<DecisionSink*> sinks,
             StepObserver* observer = nullptr, StepsAhead ahead = StepsAhead::none);

  /// A call from outside: make(scheduler, now_ns). What it lets begin begins with it.
  /// `time_ns` is not before now_ns(), and advance() has returned false for this moment.
  template <typename Call>
  std::invoke_result_t<Call, Scheduler&, int64_t> call(int64_t time_ns, Call&& make) {
    move_to(time_ns);
    if constexpr (std::is_void_v<std::invoke_result_t<Call, Scheduler&, int64_t>>) {
      make(scheduler_, now_ns_);
      begin_what_can();
    } else {
      auto result = make(scheduler_, now_ns_);
      begin_what_can();
      return result;
    }
  }

  /// Lets the next thing before `until` happen: a load, a copy or the step ends, or a step is
  /// planned. False: there is none.
  bool advance(const Moment& until = kEndOfTime);

  /// Is the next thing before `until` a plan? Then every event of now_ns() has happened.
  bool plans_next(const Moment& until = kEndOfTime);
  /// In place of the next `num_steps` plans and commits: they are Scheduler::stretch() of it, and
  /// the last one ends at `end_ns`, before anything else does.
  void skip_steps(int64_t num_steps, int64_t end_ns);

  int64_t now_ns() const { return now_ns_; }
  const Scheduler& scheduler() const { return scheduler_; }
  /// The step in flight, the older one of two, or the younger one; nullptr if there is none.
  const StepPlan* step(size_t index = 0) const {
    return index < steps_.size() ? steps_[index].plan : nullptr;
  }

 private:
  struct Step {
    const StepPlan* plan;
    std::optional<int64_t> start_ns{};  // none: it waits for its adapters
  };
  void on_decision(const Decision& decision) override;
  void move_to(int64_t time_ns);
  void end(const Completion& completion);
  void end_step();
  bool plan_step();
  void begin_what_can();
  void begin_transfers();

  Executor& executor_;
  std::vector<DecisionSink*> sinks_;
  StepObserver* observer_;
  Scheduler scheduler_;
  int64_t now_ns_ = 0;
  bool is_news_ = false;  // something happened since the last plan
  size_t max_steps_;
  std::vector<Step> steps_;  // in flight, the older one first
};

}  // namespace loratory::sim
