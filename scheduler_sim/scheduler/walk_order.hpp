#pragma once

#include <optional>
#include <utility>
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
  /// Fixes the order for the walk that begins.
  void begin_walk() { had_reservation_.clear(); }
  /// To be called before the request stops waiting, since the order stays what it was.
  void admits(const Request& r) {
    if (r.reservation >= 0) had_reservation_.push_back(r.adapter);
  }
  WaitKey place(const Request& r) const { return place(r.wait_key, r.adapter); }
  WaitKey place(WaitKey key, AdapterRef adapter) const {
    key.not_packed = !is_by_arrival() && !is_packed(adapter);
    return key;
  }
  /// Of the requests for adapters that are packed, or of the others: those with a wait_key behind
  /// this one have their places behind `place`.
  WaitKey behind(const WaitKey& place, bool packed) const;
  /// Are all requests whose wait_key is not before that of `r` visited behind `place`, as `r` is?
  bool are_behind(const Request& r, const WaitKey& place) const {
    return is_by_arrival() || std::pair(r.priority, r.wait_key.not_preempted) >
                                  std::pair(place.priority, place.not_preempted);
  }

 private:
  bool is_packed(AdapterRef adapter) const;

  const SchedulerConfig& config_;
  const Residency& residency_;
  const WaitingSet& waiting_;
  std::vector<AdapterRef> had_reservation_;  // when the walk began
};

/// How a walk ended.
struct WalkEnd {
  std::optional<WaitKey> stop;  ///< place of the first it did not get past; empty = it came through
  std::optional<WaitKey> last_admitted;  ///< the wait_key of the last in waiting order it admitted
};

}  // namespace loratory::sim
