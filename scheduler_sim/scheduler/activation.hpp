#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "scheduler_sim/residency/residency.hpp"
#include "scheduler_sim/scheduler/step_plan.hpp"

namespace loratory::sim {

/// Which adapters are copied to the GPU again because they were in the way of others of the same
/// step: ActivationOrder::one_by_one.
///
/// An adapter's place among those that were activated is its last step, and within the step its
/// place in the set, which stays the same.
class Activation {
 public:
  /// A set of the engine has its elements in an order that says nothing, and keeps it.
  static uint64_t place_in_set(Uid uid);
  /// The adapters ran in this step. Of a stretch the first one is enough: nobody else runs in it.
  void ran(const std::vector<StepAdapter>& adapters, int64_t step);
  /// Of the adapters of the next step, those that are on the GPU and lose their slot before it is
  /// their turn. Asked before those that are missing get theirs. O(slots log slots).
  std::vector<AdapterRef> copied_again(const std::vector<StepAdapter>& adapters,
                                       const Residency& residency) const;

 private:
  std::vector<AdapterRef> by_last_step(const Residency& residency) const;
  int64_t last_step(AdapterRef adapter) const {
    return adapter < last_steps_.size() ? last_steps_[adapter] : 0;
  }

  std::vector<int64_t> last_steps_;  // by AdapterRef
};

}  // namespace loratory::sim
