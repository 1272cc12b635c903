#pragma once

#include <optional>
#include <vector>

#include "scheduler_sim/residency/residency.hpp"
#include "scheduler_sim/scheduler/scheduler_config.hpp"
#include "scheduler_sim/scheduler/waiting.hpp"

namespace loratory::sim {

/// The order in which a walk visits the waiting requests: waiting order, or, with packed admission,
/// those first that need no further adapter on the GPU [7.23]. Requests of one adapter keep their
/// order, so whoever merges queues by place needs only their heads.
class WalkOrder {
 public:
  /// Everything outlives this object.
  WalkOrder(const SchedulerConfig& config, const Residency& residency, const WaitingSet& waiting)
      : config_(config), residency_(residency), waiting_(waiting) {}

  bool is_by_arrival() const { return config_.admission_order == AdmissionOrder::arrival; }
  /// Fixes the order for the walk that begins. A packed one costs what adapters wait.
  void begin_walk();
  WaitKey place(const Request& r) const {
    WaitKey key = r.wait_key;
    key.not_packed = !is_by_arrival() && r.adapter != kBaseRef && !packed_[r.adapter];
    return key;
  }

 private:
  const SchedulerConfig& config_;
  const Residency& residency_;
  const WaitingSet& waiting_;
  std::vector<bool> packed_;  // by AdapterRef
};

/// How a walk ended.
struct WalkEnd {
  std::optional<WaitKey> stop;  ///< place of the first it did not get past; empty = it came through
  std::optional<WaitKey> last_admitted;  ///< the wait_key of the last in waiting order it admitted
};

}  // namespace loratory::sim
