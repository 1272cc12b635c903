// The waiting half of a plan: the adapter gate, reservations and drains, admission.
//
// A walk visits waiting requests in order and admits what it can. It stops when the token budget
// or max_num_seqs is used up or a request does not fit; requests the adapter gate turns away are
// skipped and the walk goes on. Only requests that may pass the gate are visited: the rejected
// ones are all those of adapters without a claim to a GPU place, so they are counted afterwards,
// without a visit.
#include <algorithm>
#include <cmath>

#include "reference/base/check.hpp"
#include "scheduler_sim/scheduler/scheduler.hpp"

namespace loratory::sim {

void Scheduler::walk_waiting(int64_t now_ns) {
  begin_walk(now_ns);
  visit_candidates(now_ns);
  count_rejections(now_ns);
}

void Scheduler::begin_walk(int64_t now_ns) {
  if (draining_ != kBaseRef) --drain_left_;
  walk_stopped_ = false;
  collect_reservations(now_ns);
  reserved_ = find_reserved_adapter();
  end_drain(now_ns);
  start_drain(now_ns);
}

// A request that was turned away too often or for too long reserves the next free GPU place.
void Scheduler::collect_reservations(int64_t now_ns) {
  if (!starvation_counts()) return;
  for (RequestRef ref = waiting_.first_young(); ref != kNoRequest;) {
    const RequestRef next = waiting_.next_young(ref);
    const Request& r = requests_[ref];
    const bool too_often = r.num_rejections >= config_.n_starve;
    const bool too_long = config_.t_starve_ns != SchedulerConfig::kNever &&
                          r.first_rejection_ns >= 0 &&
                          now_ns - r.first_rejection_ns >= config_.t_starve_ns;
    if (too_often || too_long) {
      note(now_ns, r, decision::Reservation{next_reservation_});
      waiting_.make_reserving(ref, next_reservation_++);
    }
    ref = next;
  }
}

AdapterRef Scheduler::find_reserved_adapter() const {
  for (const auto& [number, adapter] : waiting_.reserving()) {
    if (!residency_.claims_place(adapter)) return adapter;
  }
  return kBaseRef;
}

void Scheduler::end_drain(int64_t now_ns) {
  if (draining_ == kBaseRef) return;
  if (reserved_ != kBaseRef && residency_.num_running(draining_) > 0) return;
  note(now_ns, draining_uid_, decision::DrainEnd{});
  draining_ = kBaseRef;
}

// The reservation needs a place: the adapter that will be done first takes no long requests more.
void Scheduler::start_drain(int64_t now_ns) {
  const bool needed = reserved_ != kBaseRef && draining_ == kBaseRef &&
                      residency_.num_claimants() >= config_.residency.max_loras;
  if (!needed) return;
  largest_remaining_.assign(residency_.ref_limit(), -1);
  for (const RequestRef ref : running_) {
    const Request& r = requests_[ref];
    if (r.adapter == kBaseRef || residency_.pinned(r.adapter)) continue;
    int64_t& largest = largest_remaining_[r.adapter];
    largest = std::max<int64_t>(largest, r.num_remaining());
  }
  std::pair<int64_t, Uid> best{0, 0};
  for (AdapterRef adapter = 0; adapter < residency_.ref_limit(); ++adapter) {
    if (largest_remaining_[adapter] < 0) continue;
    const std::pair<int64_t, Uid> candidate{largest_remaining_[adapter], uid_of(adapter)};
    if (draining_ == kBaseRef || candidate < best) draining_ = adapter, best = candidate;
  }
  if (draining_ == kBaseRef) return;
  draining_uid_ = best.second;
  drain_left_ = int64_t(std::floor(config_.drain_factor * double(best.first)));
  note(now_ns, draining_uid_, decision::Drain{drain_left_});
}

/// The adapter gate: may a request of this adapter run now, as far as GPU places are concerned?
bool Scheduler::gate_rejects(const Request& r) const {
  if (r.adapter == kBaseRef) return false;
  if (r.adapter == draining_) return int64_t{r.num_remaining()} > drain_left_;
  if (residency_.claims_place(r.adapter)) return false;
  if (residency_.num_claimants() >= config_.residency.max_loras) return true;
  // The reservation ends when its adapter has a claim; the next one is chosen by the next walk.
  const bool reserved = reserved_ != kBaseRef && !residency_.claims_place(reserved_);
  return reserved && reserved_ != r.adapter;
}

void Scheduler::push_candidate(RequestRef ref) {
  if (ref == kNoRequest) return;
  heap_.emplace_back(requests_[ref].wait_key, ref);
  std::ranges::push_heap(heap_, std::greater<>{});
}

// Merges the queues of the adapters that may pass, in waiting order. A queue whose head is turned
// away as a whole (no place, or its adapter is still on its way to the GPU) is dropped.
void Scheduler::visit_candidates(int64_t now_ns) {
  if (budget_ == 0 || running_.size() >= config_.max_num_seqs) return stop_walk({INT32_MIN, 0, 0});
  heap_.clear();
  if (residency_.num_claimants() < config_.residency.max_loras) {
    for (const AdapterRef adapter : waiting_.adapters()) push_candidate(waiting_.head(adapter));
  } else {
    push_candidate(waiting_.head(kBaseRef));
    for (const AdapterRef adapter : residency_.claimants()) push_candidate(waiting_.head(adapter));
  }
  while (!heap_.empty()) {
    std::ranges::pop_heap(heap_, std::greater<>{});
    const auto [key, ref] = heap_.back();
    heap_.pop_back();
    const Request& r = requests_[ref];
    const RequestRef next = waiting_.next_of_adapter(ref);
    if (gate_rejects(r)) {
      if (r.adapter == draining_) push_candidate(next);
      continue;
    }
    const bool on_its_way = config_.load_mode == LoadMode::overlap && r.adapter != kBaseRef &&
                            !residency_.ready(r.adapter);
    if (on_its_way) {
      if (!residency_.promised(r.adapter)) steady_ = false;
      residency_.promise(r.adapter);
      continue;
    }
    if (!try_admit(ref, now_ns)) {
      if (r.adapter == draining_) steady_ = false;  // a later walk may pass it over and go on
      return stop_walk(key);
    }
    if (budget_ == 0 || running_.size() >= config_.max_num_seqs) return stop_walk(key);
    push_candidate(next);
  }
}

void Scheduler::stop_walk(const WaitKey& at) {
  walk_stopped_ = true;
  walk_stop_ = at;
}

// All or nothing: on shortage no count, reference or order has changed.
bool Scheduler::try_admit(RequestRef ref, int64_t now_ns) {
  Request& r = requests_[ref];
  const uint32_t num_matched = match_prefix(r);
  const uint32_t num_cached = num_matched * config_.block_size;
  const uint32_t wanted = r.num_total() - num_cached;
  const uint32_t num_tokens = chunk_tokens(wanted);
  if (!config_.chunked_prefill && num_tokens < wanted) return false;
  uint32_t num_revived = 0;  // matched blocks that leave the cached-free queue
  for (uint32_t i = 0; i < num_matched; ++i) {
    num_revived += pool_.ref_count(pool_.find(key_of(r, i))) == 0;
  }
  const uint32_t needed = blocks_for(num_cached + num_tokens) - num_matched;
  if (needed + num_revived > pool_.num_allocatable()) return false;

  for (uint32_t i = 0; i < num_matched; ++i) {
    r.blocks.push_back(pool_.find(key_of(r, i)));
    pool_.acquire(r.blocks.back());
  }
  for (uint32_t i = 0; i < needed; ++i) r.blocks.push_back(pool_.allocate());
  waiting_.remove(ref);
  r.state = RequestState::prefilling;
  r.num_computed = num_cached;
  r.admission_seq = next_admission_seq_++;
  running_.push_back(ref);
  if (r.adapter != kBaseRef) residency_.admitted(r.adapter);
  steady_ = false;
  note(now_ns, r, decision::Admission{num_cached, num_tokens});
  add_row(ref, num_tokens, /*is_decode=*/false);
  return true;
}

// Longest run of published blocks from the start, such that at least one token is left to compute.
// One that matches nothing but its own goes no further than it had computed: beyond, a block of
// somebody else would hide rows whose logits it has never seen.
uint32_t Scheduler::match_prefix(Request& r) {
  const bool recovers = r.state == RequestState::preempted && r.publish_prefix;
  if (!recovers && (!r.match_prefix || r.keys.empty())) return 0;
  uint32_t most = (r.num_total() - 1) / config_.block_size;
  if (!r.match_prefix) most = std::min(most, r.num_recoverable / config_.block_size);
  uint32_t num_matched = 0;
  while (num_matched < most && pool_.find(key_of(r, num_matched)) != kNullBlock) ++num_matched;
  return num_matched;
}

// The walk reached this waiting request and the gate turned it away.
bool Scheduler::was_rejected(const Request& r) const {
  if (walk_stopped_ && !(r.wait_key < walk_stop_)) return false;
  return r.adapter == draining_ ? gate_rejects(r) : !residency_.claims_place(r.adapter);
}

// An adapter claims a place with its first request that passes, and keeps the claim: so a request
// was turned away exactly if its adapter has none now.
void Scheduler::count_rejections(int64_t now_ns) {
  if (!starvation_counts()) return;
  for (RequestRef ref = waiting_.first_young(); ref != kNoRequest; ref = waiting_.next_young(ref)) {
    Request& r = requests_[ref];
    if (walk_stopped_ && !(r.wait_key < walk_stop_)) break;
    if (!was_rejected(r)) continue;
    if (r.num_rejections++ == 0) r.first_rejection_ns = now_ns;
  }
}

}  // namespace loratory::sim
