#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler_sim/residency/residency.hpp"
#include "scheduler_sim/scheduler/decision.hpp"
#include "scheduler_sim/scheduler/scheduler_config.hpp"
#include "scheduler_sim/scheduler/step_plan.hpp"
#include "scheduler_sim/scheduler/waiting.hpp"
#include "scheduler_sim/scheduler/walk_order.hpp"

namespace loratory::sim {

/// Who waits too long for a GPU place, and how that ends: docs/scheduler.md [7.10], [5.36].
///
/// It counts the walks that turned a waiting request away. After too many, or too long after the
/// first, the request *reserves*. The first of them by (priority, number) has *the* reservation:
/// the next free place is kept for its adapter. While no place is free, another adapter *drains*:
/// it takes only requests so short that its place comes free soon. Reservation and drain bind
/// requests of the same and of lower priority, nobody else.
///
///   begin_walk(running, now);                 reservations, the reservation, the drain
///   keeps_place_from(r), outlasts_drain(r)    two questions of the adapter gate [7.9]
///   end_walk(end, now);                       counts whom the walk turned away
///
/// A walk costs the requests that it turned away and whose rejections still count, which is each of
/// them at most n_starve times (once if only the time counts); plus what runs, when a drain begins
/// or claims change while one drains.
class Starvation {
 public:
  /// Everything outlives this object.
  Starvation(const SchedulerConfig& config, const Residency& residency,
             std::vector<Request>& requests, WaitingSet& waiting, const WalkOrder& order,
             DecisionNotes& notes)
      : config_(config),
        residency_(residency),
        requests_(requests),
        waiting_(waiting),
        order_(order),
        notes_(notes) {}

  void begin_walk(const std::vector<RequestRef>& running, int64_t now_ns);
  void end_walk(const WalkEnd& end, int64_t now_ns);
  /// The effect of `num_walks` that are the last one again.
  void repeat_walk(int64_t num_walks);
  /// Shortens the stretch, so that nobody begins to reserve in it.
  void limit(Stretch& stretch) const;

  /// Another adapter has the reservation, claims no place yet, and the reservation binds `r`.
  bool keeps_place_from(const Request& r) const;
  /// The adapter of the reservation; there is one.
  AdapterRef reserved() const { return reserved_->adapter; }
  /// kBaseRef while nobody drains.
  AdapterRef draining() const { return draining_; }
  /// A request of the draining adapter has more to generate than the drain has steps left, and the
  /// reservation binds it. Not asked of requests of the base model.
  bool outlasts_drain(const Request& r) const {
    return r.adapter == draining_ && binds(r) && r.num_remaining() > drain_left_;
  }

 private:
  struct Reserved {
    AdapterRef adapter;
    int32_t priority;
  };
  bool is_off() const { return !config_.bounds_starvation(); }
  bool binds(const Request& r) const { return reserved_ && r.priority >= reserved_->priority; }
  void collect_reservations(int64_t now_ns);
  void find_due(int64_t now_ns);
  std::optional<Reserved> find_reserved() const;
  bool drain_goes_on(const std::vector<RequestRef>& running);
  void end_drain(const std::vector<RequestRef>& running, int64_t now_ns);
  void start_drain(const std::vector<RequestRef>& running, int64_t now_ns);
  AdapterRef first_to_be_done(const std::vector<RequestRef>& running);
  void count_rejections(RequestRef ref, int64_t num_walks);
  template <typename Act>
  void for_each_turned_away(Act act);

  const SchedulerConfig& config_;
  const Residency& residency_;
  std::vector<Request>& requests_;
  WaitingSet& waiting_;
  const WalkOrder& order_;
  DecisionNotes& notes_;

  std::optional<Reserved> reserved_;  // it has the reservation, as of the last walk's begin
  int64_t next_reservation_ = 0;
  AdapterRef draining_ = kBaseRef;
  Uid draining_uid_ = kBaseUid;  // known even if its unload completed before the drain ended
  int64_t drain_left_ = 0;
  std::pair<uint64_t, int32_t> drain_checked_at_;  // number of claim changes, priority
  WalkEnd walk_end_;                               // of the last walk
  int64_t most_rejections_ = 0;                    // of those it turned away, 0 = nobody counts
  std::vector<RequestRef> due_;                    // turned away n_starve times since the last walk
  std::vector<int64_t> largest_remaining_;         // scratch of first_to_be_done, by AdapterRef
};

}  // namespace loratory::sim
