#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "scheduler_sim/scheduler/request.hpp"

namespace loratory::sim {

/// The waiting requests, indexed so that a walk costs what it can admit, not what waits:
/// one queue per adapter in waiting order with its reservations, and the "young" requests (those
/// whose rejections still count) in waiting order.
///
/// Adapters are keyed by AdapterRef + 1, so that the base model (kBaseRef) is queue 0.
class WaitingSet {
 public:
  explicit WaitingSet(std::vector<Request>& requests) : requests_(requests) {}

  void insert(RequestRef ref);
  void remove(RequestRef ref);
  /// The request's rejections count no more: it has a reservation number.
  void make_reserving(RequestRef ref, int64_t number);

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  RequestRef head(AdapterRef adapter) const;
  RequestRef next_of_adapter(RequestRef ref) const { return requests_[ref].adapter_next; }
  /// Adapters (kBaseRef too) with a waiting request, in no particular but repeatable order.
  const std::vector<AdapterRef>& adapters() const { return active_; }
  RequestRef first_young() const { return young_head_; }
  RequestRef next_young(RequestRef ref) const { return requests_[ref].young_next; }
  /// Adapters with a reserving request, each by the first of its reservations, in that order.
  const std::set<std::pair<ReservationKey, AdapterRef>>& reserving() const { return reserving_; }
  /// All waiting requests of an adapter, in order.
  std::vector<RequestRef> of_adapter(AdapterRef adapter) const;

 private:
  struct Queue {
    RequestRef head = kNoRequest, tail = kNoRequest;
    uint32_t active_index = 0;
    std::set<ReservationKey> reservations;
  };
  Queue& queue_of(AdapterRef adapter);
  void drop_young(RequestRef ref);
  template <typename Change>
  void change_reservations(AdapterRef adapter, Change change);

  std::vector<Request>& requests_;
  std::vector<Queue> queues_;  // by AdapterRef + 1
  std::vector<AdapterRef> active_;
  std::set<std::pair<ReservationKey, AdapterRef>> reserving_;
  RequestRef young_head_ = kNoRequest, young_tail_ = kNoRequest;
  size_t size_ = 0;
};

}  // namespace loratory::sim
