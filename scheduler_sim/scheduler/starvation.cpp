#include "scheduler_sim/scheduler/starvation.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace loratory::sim {

bool Starvation::is_off() const {
  return config_.n_starve == kNever && config_.t_starve_ns == kNever;
}

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
  for (RequestRef ref = waiting_.first_young(); ref != kNoRequest;) {
    const RequestRef next = waiting_.next_young(ref);
    const Request& r = requests_[ref];
    const bool too_often = r.num_rejections >= config_.n_starve;
    const bool too_long = r.first_rejection_ns >= 0 && config_.t_starve_ns != kNever &&
                          now_ns - r.first_rejection_ns >= config_.t_starve_ns;
    if (too_often || too_long) {
      notes_.note(
          {now_ns, r.id, residency_.uid(r.adapter), decision::Reservation{next_reservation_}});
      waiting_.make_reserving(ref, next_reservation_++);
    }
    ref = next;
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

// Of the running adapters that are not pinned, and all of whose requests the reservation binds, the
// one whose longest request has the fewest tokens to generate, ties to the lowest uid; kBaseRef if
// there is none.
AdapterRef Starvation::first_to_be_done(const std::vector<RequestRef>& running) {
  largest_remaining_.assign(residency_.ref_limit(), -1);
  for (const RequestRef ref : running) {
    const Request& r = requests_[ref];
    if (r.adapter == kBaseRef || residency_.pinned(r.adapter)) continue;
    int64_t& largest = largest_remaining_[r.adapter];
    largest = std::max(largest, binds(r) ? int64_t{r.num_remaining()} : kNever);
  }
  AdapterRef best = kBaseRef;
  std::pair<int64_t, Uid> best_order;
  for (AdapterRef adapter = 0; adapter < residency_.ref_limit(); ++adapter) {
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
  for (RequestRef ref = waiting_.first_young(); ref != kNoRequest; ref = waiting_.next_young(ref)) {
    Request& r = requests_[ref];
    if (walk_end_.stop && order_.place(r) >= *walk_end_.stop) {
      if (order_.is_by_arrival()) return;
      if (r.wait_key < walk_end_.last_admitted) act(r);
      continue;
    }
    if (!residency_.claims_place(r.adapter) || outlasts_drain(r)) act(r);
  }
}

void Starvation::end_walk(const WalkEnd& end, int64_t now_ns) {
  walk_end_ = end;
  if (is_off()) return;
  for_each_turned_away([&](Request& r) {
    if (r.num_rejections++ == 0) r.first_rejection_ns = now_ns;
  });
}

void Starvation::repeat_walk(int64_t num_walks) {
  if (draining_ != kBaseRef) drain_left_ -= num_walks;
  for_each_turned_away([&](Request& r) { r.num_rejections += num_walks; });
}

void Starvation::limit(Stretch& stretch) const {
  for (RequestRef ref = waiting_.first_young(); ref != kNoRequest; ref = waiting_.next_young(ref)) {
    const Request& r = requests_[ref];
    if (r.first_rejection_ns < 0) continue;
    if (config_.t_starve_ns != kNever) {
      stretch.deadline_ns =
          std::min(stretch.deadline_ns, r.first_rejection_ns + config_.t_starve_ns);
    }
    if (config_.n_starve != kNever) {
      stretch.num_steps = std::min(stretch.num_steps, config_.n_starve - r.num_rejections);
    }
  }
}

}  // namespace loratory::sim
