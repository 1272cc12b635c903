#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "scheduler_sim/scheduler/place_counter.hpp"
#include "scheduler_sim/scheduler/request.hpp"
#include "scheduler_sim/scheduler/scheduler_config.hpp"
#include "scheduler_sim/scheduler/wait_queue.hpp"

namespace loratory::sim {

/// The waiting requests, indexed so that a walk costs what it can admit, not what waits:
///   one queue per adapter, and the heads of all queues in waiting order, those of adapters with a
///   reservation apart: a walk takes the few that may have a place and never meets the others;
///   the reservations of each adapter, and adapters in the order of their first one;
///   the "young" requests (those whose rejections still count) in waiting order;
///   those that were turned away and do not reserve yet, by the time of the first rejection.
///
/// Adapters are keyed by AdapterRef + 1, so that the base model (kBaseRef) is queue 0.
class WaitingSet {
 public:
  using InOrder = std::map<WaitKey, RequestRef>;

  /// Both outlive the set. It keeps what `config` makes somebody ask for.
  WaitingSet(std::vector<Request>& requests, const SchedulerConfig& config)
      : requests_(requests), config_(config) {}

  void insert(RequestRef ref);
  void remove(RequestRef ref);
  /// A walk turned the request away for the first time.
  void turned_away(RequestRef ref, int64_t now_ns);
  /// The request's rejections count no more.
  void make_old(RequestRef ref) { erase(young_, ref); }
  /// ... because it has a reservation number.
  void make_reserving(RequestRef ref, int64_t number);

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  /// How many are before this place, with count_waiting_seen.
  size_t num_before(const WaitKey& place) const { return in_order_.num_before(place); }
  /// The requests of the adapter; nullptr if none waits.
  const WaitQueue* queue(AdapterRef adapter) const {
    const size_t index = size_t(adapter + 1);
    const bool is_empty = index >= queues_.size() || queues_[index].requests.empty();
    return is_empty ? nullptr : &queues_[index].requests;
  }
  /// kNoRequest if none of the adapter waits.
  RequestRef head(AdapterRef adapter) const {
    const WaitQueue* requests = queue(adapter);
    return requests == nullptr ? kNoRequest : requests->front();
  }
  /// The first request of the adapter behind this place.
  WaitQueue::Entry next_of_adapter(AdapterRef adapter, const WaitKey& place) const {
    return queues_[size_t(adapter + 1)].requests.first_behind(place);
  }
  /// The first waiting request of each adapter (kBaseRef too) that has a reserving request, or of
  /// each that has none.
  const InOrder& heads(bool reserving) const { return heads_[size_t(reserving)]; }
  /// Does a waiting request of the adapter reserve?
  bool reserves(AdapterRef adapter) const {
    const size_t index = size_t(adapter + 1);
    return index < queues_.size() && !queues_[index].reservations.empty();
  }
  /// Empty if nobody reserves.
  const InOrder& young() const { return young_; }
  /// Of those that were turned away and do not reserve, the one whose first rejection is longest
  /// ago, and the next one.
  RequestRef first_turned_away() const { return rejected_head_; }
  RequestRef next_turned_away(RequestRef ref) const { return requests_[ref].rejected_next; }
  /// Adapters with a reserving request, each by the first of its reservations, in that order.
  const std::set<std::pair<ReservationKey, AdapterRef>>& reserving() const { return reserving_; }
  /// All waiting requests of an adapter, in order.
  std::vector<RequestRef> of_adapter(AdapterRef adapter) const;

 private:
  struct Queue {
    WaitQueue requests;
    std::set<ReservationKey> reservations;
  };
  Queue& queue_of(AdapterRef adapter);
  void erase(InOrder& in_order, RequestRef ref);
  InOrder& heads_like(const Queue& queue) { return heads_[size_t(!queue.reservations.empty())]; }
  void change_head(Queue& queue, const WaitKey& old_head);
  void forget_rejections(RequestRef ref);
  template <typename Change>
  void change_reservations(AdapterRef adapter, Change change);

  std::vector<Request>& requests_;
  const SchedulerConfig& config_;
  std::vector<Queue> queues_;  // by AdapterRef + 1
  std::array<InOrder, 2> heads_;
  InOrder young_;
  PlaceCounter in_order_;  // of all that wait; empty unless count_waiting_seen
  std::set<std::pair<ReservationKey, AdapterRef>> reserving_;
  RequestRef rejected_head_ = kNoRequest, rejected_tail_ = kNoRequest;
  size_t size_ = 0;
};

}  // namespace loratory::sim
