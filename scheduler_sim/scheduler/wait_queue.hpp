#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "scheduler_sim/scheduler/request.hpp"

namespace loratory::sim {

/// Requests by place. Most of them come last and leave first: they are in one array, and cost no
/// search. What comes before others (a higher priority, a preempted request) is in a map, and what
/// leaves from the middle (an abort) leaves a gap until the gaps outnumber the others.
class WaitQueue {
 public:
  struct Entry {
    WaitKey place;
    RequestRef ref = kNoRequest;  ///< kNoRequest: there is none
  };
  bool empty() const { return first_ == in_turn_.size() && others_.empty(); }
  /// There is one.
  RequestRef front() const { return first_of_array_leads() ? in_turn_[first_].ref : first_other(); }
  /// There is one.
  const WaitKey& front_place() const {
    return first_of_array_leads() ? in_turn_[first_].place : others_.begin()->first;
  }
  /// The first one behind this place.
  Entry first_behind(const WaitKey& place) const;
  /// No request of the queue has the place.
  void insert(const WaitKey& place, RequestRef ref);
  /// A request of the queue has the place.
  void erase(const WaitKey& place);
  /// Entries in memory: no more than twice those that wait.
  size_t footprint() const { return in_turn_.size() + others_.size(); }
  /// All of them, in order.
  std::vector<RequestRef> all() const;

 private:
  bool first_of_array_leads() const {
    if (first_ == in_turn_.size()) return false;
    return others_.empty() || in_turn_[first_].place < others_.begin()->first;
  }
  RequestRef first_other() const { return others_.begin()->second; }
  size_t first_not_before(const WaitKey& place) const;
  void leave_gap(const WaitKey& place);
  void close_gaps();
  void skip_gaps();

  // Ascending, gaps have no ref. Those before first_ are gone; the first one is no gap. At most
  // half of it is gone or gaps.
  std::vector<Entry> in_turn_;
  size_t first_ = 0, num_gaps_ = 0;  // gaps behind first_
  std::map<WaitKey, RequestRef> others_;
};

}  // namespace loratory::sim
