#include "scheduler_sim/scheduler/starvation.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace loratory::sim {

// The order of these steps is that of [7.10].
void Starvation::begin_walk(const std::vector<RequestRef>& running, int64_t now_ns) {
  if (draining_ != kBaseRef) --drain_left_;
  collect_reservations(now_ns);
  reserved_ = find_reserved();
  end_drain(running, now_ns);
  start_drain(running, now_ns);
}

// --- reservations ---------------------------------------------------------------------------

void Starvation::collect_reservations(int64_t now_ns) {
  if (is_off()) return;
  find_due(now_ns);
  std::ranges::sort(due_, {}, [&](RequestRef ref) { return requests_[ref].wait_key; });
  for (const RequestRef ref : due_) {
    const Request& r = requests_[ref];
    if (r.reservation >= 0) continue;  // for both reasons
    notes_.note(
        {now_ns, r.id, residency_.uid(r.adapter), decision::Reservation{next_reservation_}});
    waiting_.make_reserving(ref, next_reservation_++);
  }
  due_.clear();
}

// Those counted since the last walk that still wait: one that left was set back to 0. And those
// whose first rejection is too long ago.
void Starvation::find_due(int64_t now_ns) {
  std::erase_if(due_,
                [&](RequestRef ref) { return requests_[ref].num_rejections < config_.n_starve; });
  if (config_.n_starve == 0) {
    for (const auto& [place, ref] : waiting_.young()) due_.push_back(ref);
  }
  for (RequestRef ref = waiting_.first_turned_away();
       ref != kNoRequest && now_ns - requests_[ref].first_rejection_ns >= config_.t_starve_ns;
       ref = waiting_.next_turned_away(ref)) {
    due_.push_back(ref);
  }
}

std::optional<Starvation::Reserved> Starvation::find_reserved() const {
  for (const auto& [key, adapter] : waiting_.reserving()) {
    if (!residency_.claims_place(adapter)) return Reserved{adapter, key.priority};
  }
  return std::nullopt;
}

// The reservation ends when its adapter claims a place; the next walk chooses the next one.
bool Starvation::keeps_place_from(const Request& r) const {
  return binds(r) && reserved_->adapter != r.adapter &&
         !residency_.claims_place(reserved_->adapter);
}

// --- drains ---------------------------------------------------------------------------------

// Not if it runs a request that the reservation does not bind: others like it may follow for ever.
// Who runs changes with the claims only, so nobody is looked at in between.
bool Starvation::drain_goes_on(const std::vector<RequestRef>& running) {
  if (!reserved_ || residency_.num_running(draining_) == 0) return false;
  const std::pair now{residency_.num_claim_changes(), reserved_->priority};
  if (std::exchange(drain_checked_at_, now) == now) return true;
  return std::ranges::none_of(running, [&](RequestRef ref) {
    return requests_[ref].adapter == draining_ && !binds(requests_[ref]);
  });
}

void Starvation::end_drain(const std::vector<RequestRef>& running, int64_t now_ns) {
  if (draining_ == kBaseRef || drain_goes_on(running)) return;
  notes_.note({now_ns, kNoRequestId, draining_uid_, decision::DrainEnd{}});
  draining_ = kBaseRef;
}

void Starvation::start_drain(const std::vector<RequestRef>& running, int64_t now_ns) {
  const bool is_full = residency_.num_claimants() >= config_.residency.max_loras;
  if (!reserved_ || draining_ != kBaseRef || !is_full) return;
  draining_ = first_to_be_done(running);
  if (draining_ == kBaseRef) return;
  drain_checked_at_ = {residency_.num_claim_changes(), reserved_->priority};
  draining_uid_ = residency_.uid(draining_);
  drain_left_ = int64_t(std::floor(config_.drain_factor * double(largest_remaining_[draining_])));
  notes_.note({now_ns, kNoRequestId, draining_uid_, decision::Drain{drain_left_}});
}

// Of the running adapters, which all have a claim, that are not pinned, and all of whose requests
// the reservation binds, the one whose longest request has the fewest tokens to generate, ties to
// the lowest uid; kBaseRef if there is none.
AdapterRef Starvation::first_to_be_done(const std::vector<RequestRef>& running) {
  largest_remaining_.resize(residency_.ref_limit());
  for (const AdapterRef adapter : residency_.claimants()) largest_remaining_[adapter] = -1;
  for (const RequestRef ref : running) {
    const Request& r = requests_[ref];
    if (r.adapter == kBaseRef || residency_.pinned(r.adapter)) continue;
    int64_t& largest = largest_remaining_[r.adapter];
    largest = std::max(largest, binds(r) ? int64_t{r.num_remaining()} : kNever);
  }
  AdapterRef best = kBaseRef;
  std::pair<int64_t, Uid> best_order;
  for (const AdapterRef adapter : residency_.claimants()) {
    if (largest_remaining_[adapter] < 0 || largest_remaining_[adapter] == kNever) continue;
    const std::pair order{largest_remaining_[adapter], residency_.uid(adapter)};
    if (best == kBaseRef || order < best_order) best = adapter, best_order = order;
  }
  return best;
}

// --- rejections -----------------------------------------------------------------------------

// An adapter claims a place with its first request that passes the gate, and keeps the claim: so a
// request was turned away exactly if its adapter has none now, or drains and the request is too
// long. Of those that a packed walk did not get past, the overtaken ones were turned away [7.23];
// by arrival nobody is overtaken.
template <typename Act>
void Starvation::for_each_turned_away(Act act) {
  const WaitingSet::InOrder& young = waiting_.young();
  for (auto next = young.begin(); next != young.end();) {
    const RequestRef ref = (next++)->second;  // which `act` may make old
    const Request& r = requests_[ref];
    if (walk_end_.stop && order_.place(r) >= *walk_end_.stop) {
      const bool overtaken = r.wait_key < walk_end_.last_admitted;
      if (!overtaken && order_.are_behind(r, *walk_end_.stop)) return;
      if (overtaken) act(ref);
      continue;
    }
    if (!residency_.claims_place(r.adapter) || outlasts_drain(r)) act(ref);
  }
}

void Starvation::count_rejections(RequestRef ref, int64_t num_walks) {
  int64_t& count = requests_[ref].num_rejections;
  const bool was_due = count >= config_.n_starve;
  count += num_walks;
  most_rejections_ = std::max(most_rejections_, count);
  if (!was_due && count >= config_.n_starve) due_.push_back(ref);
}

void Starvation::end_walk(const WalkEnd& end, int64_t now_ns) {
  walk_end_ = end;
  most_rejections_ = 0;
  if (is_off()) return;
  for_each_turned_away([&](RequestRef ref) {
    if (requests_[ref].first_rejection_ns < 0) waiting_.turned_away(ref, now_ns);
    if (config_.n_starve == kNever) return waiting_.make_old(ref);
    count_rejections(ref, 1);
  });
}

void Starvation::repeat_walk(int64_t num_walks) {
  if (draining_ != kBaseRef) drain_left_ -= num_walks;
  if (config_.n_starve == kNever) return;
  for_each_turned_away([&](RequestRef ref) { count_rejections(ref, num_walks); });
}

void Starvation::limit(Stretch& stretch) const {
  const RequestRef first = waiting_.first_turned_away();
  if (first != kNoRequest) {
    stretch.deadline_ns = std::min(stretch.deadline_ns,
                                   later(requests_[first].first_rejection_ns, config_.t_starve_ns));
  }
  if (most_rejections_ > 0) {
    stretch.num_steps = std::min(stretch.num_steps, config_.n_starve - most_rejections_);
  }
}

}  // namespace loratory::sim
