#include "scheduler_sim/scheduler/wait_queue.hpp"

#include <algorithm>

#include "reference/base/check.hpp"

namespace loratory::sim {

void WaitQueue::insert(const WaitKey& place, RequestRef ref) {
  if (in_turn_.empty() || in_turn_.back().place < place) {
    in_turn_.push_back({place, ref});
  } else {
    others_.emplace(place, ref);
  }
}

void WaitQueue::erase(const WaitKey& place) {
  if (others_.erase(place) > 0) return;
  LORATORY_ASSERT(first_ < in_turn_.size(), "a request of the queue has the place");
  if (in_turn_[first_].place == place) {
    ++first_;
    skip_gaps();
  } else {
    leave_gap(place);
  }
  if (first_ + num_gaps_ > in_turn_.size() / 2) close_gaps();
}

void WaitQueue::leave_gap(const WaitKey& place) {
  const size_t index = first_not_before(place);
  LORATORY_ASSERT(index < in_turn_.size() && in_turn_[index].place == place &&
                      in_turn_[index].ref != kNoRequest,
                  "a request of the queue has the place");
  in_turn_[index].ref = kNoRequest;
  ++num_gaps_;
}

void WaitQueue::skip_gaps() {
  for (; first_ < in_turn_.size() && in_turn_[first_].ref == kNoRequest; ++first_) --num_gaps_;
}

// Costs as much as those that left have saved.
void WaitQueue::close_gaps() {
  in_turn_.erase(in_turn_.begin(), in_turn_.begin() + ptrdiff_t(first_));
  std::erase_if(in_turn_, [](const Entry& e) { return e.ref == kNoRequest; });
  first_ = num_gaps_ = 0;
}

size_t WaitQueue::first_not_before(const WaitKey& place) const {
  const auto begin = in_turn_.begin() + ptrdiff_t(first_);
  return size_t(std::ranges::lower_bound(begin, in_turn_.end(), place, {}, &Entry::place) -
                in_turn_.begin());
}

WaitQueue::Entry WaitQueue::first_behind(const WaitKey& place) const {
  const auto is_none = [&](const Entry& e) { return e.ref == kNoRequest || !(place < e.place); };
  size_t index = first_;
  if (index < in_turn_.size() && !(place < in_turn_[index].place)) index = first_not_before(place);
  while (index < in_turn_.size() && is_none(in_turn_[index])) ++index;
  const bool has_one = index < in_turn_.size();
  const auto other = others_.upper_bound(place);
  if (other == others_.end()) return has_one ? in_turn_[index] : Entry{};
  if (has_one && in_turn_[index].place < other->first) return in_turn_[index];
  return {other->first, other->second};
}

std::vector<RequestRef> WaitQueue::all() const {
  std::vector<RequestRef> refs;
  auto other = others_.begin();
  const auto take_others_until = [&](const WaitKey* place) {
    for (; other != others_.end() && (place == nullptr || other->first < *place); ++other) {
      refs.push_back(other->second);
    }
  };
  for (size_t i = first_; i < in_turn_.size(); ++i) {
    take_others_until(&in_turn_[i].place);
    if (in_turn_[i].ref != kNoRequest) refs.push_back(in_turn_[i].ref);
  }
  take_others_until(nullptr);
  return refs;
}

}  // namespace loratory::sim
