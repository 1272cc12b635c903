#include "scheduler_sim/scheduler/waiting.hpp"

namespace loratory::sim {

WaitingSet::Queue& WaitingSet::queue_of(AdapterRef adapter) {
  const size_t index = size_t(adapter + 1);
  if (index >= queues_.size()) queues_.resize(index + 1);
  return queues_[index];
}

void WaitingSet::insert(RequestRef ref) {
  Request& r = requests_[ref];
  r.first_rejection_ns = -1;
  r.reservation = -1;
  Queue& queue = queue_of(r.adapter);
  WaitQueue& requests = queue.requests;
  const bool is_head = requests.empty() || r.wait_key < requests.front_place();
  if (is_head && !requests.empty()) heads_like(queue).erase(requests.front_place());
  if (is_head) heads_like(queue).emplace(r.wait_key, ref);
  requests.insert(r.wait_key, ref);
  // The gate never rejects the base model.
  if (r.adapter != kBaseRef && config_.bounds_starvation()) {
    young_.emplace_hint(young_.end(), r.wait_key, ref);
  }
  if (config_.count_waiting_seen) in_order_.insert(r.wait_key);
  ++size_;
}

// The first one goes most often, and needs no search.
void WaitingSet::erase(InOrder& in_order, RequestRef ref) {
  if (!in_order.empty() && in_order.begin()->second == ref) {
    in_order.erase(in_order.begin());
  } else {
    in_order.erase(requests_[ref].wait_key);
  }
}

// The old one has left the queue.
void WaitingSet::change_head(Queue& queue, const WaitKey& old_head) {
  InOrder& heads = heads_like(queue);
  auto head = heads.extract(old_head);
  if (queue.requests.empty()) return;
  head.key() = queue.requests.front_place();
  head.mapped() = queue.requests.front();
  heads.insert(std::move(head));
}

void WaitingSet::remove(RequestRef ref) {
  Request& r = requests_[ref];
  Queue& queue = queue_of(r.adapter);
  const bool is_head = queue.requests.front() == ref;
  queue.requests.erase(r.wait_key);
  if (is_head) change_head(queue, r.wait_key);
  if (r.reservation >= 0) {
    change_reservations(r.adapter, [&](auto& keys) { keys.erase({r.priority, r.reservation}); });
  } else {
    forget_rejections(ref);
  }
  if (config_.count_waiting_seen) in_order_.erase(r.wait_key);
  --size_;
}

// Time does not run backwards, so the last one comes last.
void WaitingSet::turned_away(RequestRef ref, int64_t now_ns) {
  Request& r = requests_[ref];
  r.first_rejection_ns = now_ns;
  r.rejected_prev = rejected_tail_;
  r.rejected_next = kNoRequest;
  (rejected_tail_ == kNoRequest ? rejected_head_ : requests_[rejected_tail_].rejected_next) = ref;
  rejected_tail_ = ref;
}

void WaitingSet::forget_rejections(RequestRef ref) {
  make_old(ref);
  Request& r = requests_[ref];
  r.num_rejections = 0;
  if (r.first_rejection_ns < 0) return;
  const RequestRef before = r.rejected_prev, after = r.rejected_next;
  (before == kNoRequest ? rejected_head_ : requests_[before].rejected_next) = after;
  (after == kNoRequest ? rejected_tail_ : requests_[after].rejected_prev) = before;
}

void WaitingSet::make_reserving(RequestRef ref, int64_t number) {
  forget_rejections(ref);
  Request& r = requests_[ref];
  r.reservation = number;
  change_reservations(r.adapter, [&](auto& keys) { keys.insert({r.priority, number}); });
}

// reserving_ knows every adapter by its first reservation.
template <typename Change>
void WaitingSet::change_reservations(AdapterRef adapter, Change change) {
  Queue& queue = queue_of(adapter);
  std::set<ReservationKey>& keys = queue.reservations;
  if (!queue.requests.empty()) heads_like(queue).erase(queue.requests.front_place());
  if (!keys.empty()) reserving_.erase({*keys.begin(), adapter});
  change(keys);
  if (!keys.empty()) reserving_.emplace(*keys.begin(), adapter);
  if (!queue.requests.empty()) {
    heads_like(queue).emplace(queue.requests.front_place(), queue.requests.front());
  }
}

std::vector<RequestRef> WaitingSet::of_adapter(AdapterRef adapter) const {
  if (head(adapter) == kNoRequest) return {};
  return queues_[size_t(adapter + 1)].requests.all();
}

}  // namespace loratory::sim
