#include "scheduler_sim/executors/reference_executor.hpp"

#include <algorithm>
#include <tuple>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"

namespace loratory::sim {

using Kind = Completion::Kind;

void ReferenceExecutor::begin(Kind kind, int64_t now_ns, Work work) {
  work.end = {now_ns + duration_ns_(), kind};
  under_way_.push_back(work);
}

void ReferenceExecutor::begin_load(const LoadStart& load, int64_t now_ns) {
  begin(Kind::load, now_ns, {.uid = load.uid});
}

void ReferenceExecutor::begin_copy(const CopyStart& copy, int64_t now_ns) {
  runner_.begin_copy(copy.slot);
  begin(Kind::copy, now_ns, {.uid = copy.uid, .slot = copy.slot, .generation = copy.generation});
}

void ReferenceExecutor::begin_step(const StepPlan& plan, const Scheduler& scheduler,
                                   int64_t now_ns) {
  const int64_t start_ns = steps_.empty() ? now_ns : std::max(now_ns, steps_.back().end.time_ns);
  steps_.push_back({runner_.prepare(plan, scheduler), {start_ns + duration_ns_(), Kind::step}});
}

Completion ReferenceExecutor::next(int64_t until_ns) {
  Completion first = steps_.empty() ? Completion{} : steps_.front().end;
  for (const Work& work : under_way_) {
    if (std::tuple(work.end.time_ns, work.end.kind) < std::tuple(first.time_ns, first.kind)) {
      first = work.end;
    }
  }
  return first.time_ns > until_ns ? Completion{} : first;
}

// The first of its kind to end; of those that end together, the first that began.
ReferenceExecutor::Work ReferenceExecutor::take(Kind kind) {
  const auto first = std::ranges::min_element(under_way_, {}, [kind](const Work& work) {
    return std::tuple(work.end.kind != kind, work.end.time_ns);
  });
  LORATORY_ASSERT(first != under_way_.end() && first->end.kind == kind, "only what began ends");
  const Work work = *first;
  under_way_.erase(first);
  return work;
}

LoadEnd ReferenceExecutor::end_load(int64_t) {
  const Uid uid = take(Kind::load).uid;
  try {
    runner_.load(uid);
  } catch (const InputError& error) {
    load_errors_.emplace_back(error.what());
    return {uid, /*ok=*/false};
  }
  return {uid, /*ok=*/true};
}

Uid ReferenceExecutor::end_copy(int64_t) {
  const Work copy = take(Kind::copy);
  runner_.end_copy(copy.uid, copy.slot, copy.generation);
  return copy.uid;
}

StepResult ReferenceExecutor::end_step(const StepPlan&, const Scheduler&) {
  LORATORY_ASSERT(!steps_.empty(), "only what began ends");
  sampled_ = runner_.run(steps_.front().step);
  steps_.erase(steps_.begin());
  return {sampled_};
}

}  // namespace loratory::sim
