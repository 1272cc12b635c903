#include "scheduler_sim/scheduler/waiting.hpp"

namespace loratory::sim {
namespace {

// An intrusive list in waiting order through one pair of links of Request.
struct OrderedList {
  std::vector<Request>& requests;
  RequestRef Request::*prev;
  RequestRef Request::*next;
  RequestRef& head;
  RequestRef& tail;

  // Arrivals belong at the tail and preempted requests at the head: look from the nearer end.
  void insert(RequestRef ref) {
    const WaitKey& key = requests[ref].wait_key;
    RequestRef after = tail;
    if (key.not_preempted == 0) {
      after = kNoRequest;
      for (RequestRef r = head; r != kNoRequest && requests[r].wait_key < key;
           r = requests[r].*next) {
        after = r;
      }
    } else {
      while (after != kNoRequest && key < requests[after].wait_key) after = requests[after].*prev;
    }
    link(ref, after);
  }

  void link(RequestRef ref, RequestRef after) {
    const RequestRef before = after == kNoRequest ? head : requests[after].*next;
    requests[ref].*prev = after;
    requests[ref].*next = before;
    (after == kNoRequest ? head : requests[after].*next) = ref;
    (before == kNoRequest ? tail : requests[before].*prev) = ref;
  }

  void remove(RequestRef ref) {
    const RequestRef before = requests[ref].*prev, after = requests[ref].*next;
    (before == kNoRequest ? head : requests[before].*next) = after;
    (after == kNoRequest ? tail : requests[after].*prev) = before;
    requests[ref].*prev = requests[ref].*next = kNoRequest;
  }
};

}  // namespace

WaitingSet::Queue& WaitingSet::queue_of(AdapterRef adapter) {
  const size_t index = size_t(adapter + 1);
  if (index >= queues_.size()) queues_.resize(index + 1);
  return queues_[index];
}

RequestRef WaitingSet::head(AdapterRef adapter) const {
  const size_t index = size_t(adapter + 1);
  return index < queues_.size() ? queues_[index].head : kNoRequest;
}

void WaitingSet::insert(RequestRef ref) {
  Request& r = requests_[ref];
  r.num_rejections = 0;
  r.first_rejection_ns = -1;
  r.reservation = -1;
  Queue& queue = queue_of(r.adapter);
  if (queue.head == kNoRequest) {
    queue.active_index = uint32_t(active_.size());
    active_.push_back(r.adapter);
  }
  OrderedList{requests_, &Request::adapter_prev, &Request::adapter_next, queue.head, queue.tail}
      .insert(ref);
  if (r.adapter != kBaseRef) {  // the gate never rejects the base model
    OrderedList{requests_, &Request::young_prev, &Request::young_next, young_head_, young_tail_}
        .insert(ref);
  }
  ++size_;
}

void WaitingSet::drop_young(RequestRef ref) {
  OrderedList{requests_, &Request::young_prev, &Request::young_next, young_head_, young_tail_}
      .remove(ref);
}

void WaitingSet::remove(RequestRef ref) {
  Request& r = requests_[ref];
  Queue& queue = queue_of(r.adapter);
  OrderedList{requests_, &Request::adapter_prev, &Request::adapter_next, queue.head, queue.tail}
      .remove(ref);
  if (queue.head == kNoRequest) {
    active_[queue.active_index] = active_.back();
    queue_of(active_.back()).active_index = queue.active_index;
    active_.pop_back();
  }
  if (r.reservation >= 0) {
    change_reservations(r.adapter, [&](auto& keys) { keys.erase({r.priority, r.reservation}); });
    r.reservation = -1;
  } else if (r.adapter != kBaseRef) {
    drop_young(ref);
  }
  --size_;
}

void WaitingSet::make_reserving(RequestRef ref, int64_t number) {
  drop_young(ref);
  Request& r = requests_[ref];
  r.reservation = number;
  change_reservations(r.adapter, [&](auto& keys) { keys.insert({r.priority, number}); });
}

// reserving_ knows every adapter by its first reservation.
template <typename Change>
void WaitingSet::change_reservations(AdapterRef adapter, Change change) {
  std::set<ReservationKey>& keys = queue_of(adapter).reservations;
  if (!keys.empty()) reserving_.erase({*keys.begin(), adapter});
  change(keys);
  if (!keys.empty()) reserving_.emplace(*keys.begin(), adapter);
}

std::vector<RequestRef> WaitingSet::of_adapter(AdapterRef adapter) const {
  std::vector<RequestRef> out;
  for (RequestRef r = head(adapter); r != kNoRequest; r = requests_[r].adapter_next) {
    out.push_back(r);
  }
  return out;
}

}  // namespace loratory::sim
