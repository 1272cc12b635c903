#pragma once

#include <cstdint>

#include "scheduler_sim/scheduler/scheduler.hpp"
#include "scheduler_sim/time.hpp"

namespace loratory::sim {

/// What ends next at an executor, and when. Of one nanosecond, a load ends before a copy and a copy
/// before the step.
struct Completion {
  enum class Kind : uint8_t { load, copy, step, none };
  int64_t time_ns = kNever;
  Kind kind = Kind::none;
};

/// A load that ended; not `ok`: the weights could not be had.
struct LoadEnd {
  Uid uid = kBaseUid;
  bool ok = true;
};

/// Does what the scheduler has decided: moves adapters, runs steps. EngineLoop drives it, and knows
/// of it no more than this:
///   CostExecutor       virtual time; computes how long things take and no tensor
///   ReferenceExecutor  virtual time; runs a model on the CPU
///   ClockedReferenceExecutor   the same in the time of a clock
///   gpu::GpuExecutor   real time; begin_* starts a copy or a forward pass on a stream, and next()
///                      waits for one
///
/// An adapter has its uid here, from registration to unload. `now_ns` never falls from call to
/// call. At most one step (two, if the loop plans ahead) and one copy are under way, and at most
/// num_load_workers loads. Steps end in the order in which they began.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Disk to CPU.
  virtual void begin_load(const LoadStart& load, int64_t now_ns) = 0;
  /// CPU to a slot. From here to its end nothing reads the slot.
  virtual void begin_copy(const CopyStart& copy, int64_t now_ns) = 0;
  /// One forward pass. Its adapters are in their slots. If another step is under way, this one
  /// comes behind it; the last token of a row may then be the one that the older step samples for
  /// the request, which the host does not know yet (row.num_computed + row.num_tokens is one more
  /// than the request has tokens). Requests move on while their step is under way, so all that the
  /// pass needs of them is taken here; blocks and slots that it names keep their owner until it
  /// ends.
  virtual void begin_step(const StepPlan& plan, const Scheduler& scheduler, int64_t now_ns) = 0;

  /// What ends next, if it does by `until_ns`; else kind none. Asking changes nothing. On a real
  /// clock: waits until something ends, `until_ns` at the latest.
  virtual Completion next(int64_t until_ns) = 0;
  /// Each ends what next() has named.
  virtual LoadEnd end_load(int64_t now_ns) = 0;
  virtual Uid end_copy(int64_t now_ns) = 0;
  /// The sampled tokens stay valid until the next call.
  virtual StepResult end_step(const StepPlan& plan, const Scheduler& scheduler) = 0;

  /// The adapter lost its place in host memory; its slot, if it had one, will be given away.
  virtual void evicted_from_cpu(Uid) {}
  /// The adapter will never be asked for again.
  virtual void unloaded(Uid) {}
};

}  // namespace loratory::sim
