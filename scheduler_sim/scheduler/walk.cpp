// The waiting half of a plan: the adapter gate and admission.
//
// A walk visits waiting requests in order and admits what it can. It stops when the token budget
// or max_num_seqs is used up or a request does not fit; requests the adapter gate turns away are
// skipped and the walk goes on. Only requests that may pass the gate are visited, at most one head
// for each GPU place besides what is admitted: the rejected ones are all those of adapters without
// a claim to a GPU place, so Starvation counts them afterwards, without a visit.
#include <algorithm>

#include "scheduler_sim/scheduler/scheduler.hpp"

namespace loratory::sim {

// The adapter gate [7.9]: may a request of this adapter run now, as far as GPU places go?
bool Scheduler::gate_rejects(const Request& r) const {
  if (r.adapter == kBaseRef) return false;
  if (starvation_.outlasts_drain(r)) return true;
  if (residency_.claims_place(r.adapter)) return false;
  return has_no_place() || starvation_.keeps_place_from(r);
}

// The first that waits for the adapter, if there is one. The request itself is not looked at: it
// came long ago, and is far from any cache.
void Scheduler::add_candidate(AdapterRef adapter) {
  if (const WaitQueue* queue = waiting_.queue(adapter)) {
    heap_.emplace_back(walk_order_.place(queue->front_place(), adapter), queue->front());
  }
}

void Scheduler::push_candidate(RequestRef ref) {
  if (ref == kNoRequest) return;
  heap_.emplace_back(walk_order_.place(requests_[ref]), ref);
  std::ranges::push_heap(heap_, std::greater<>{});
}

void Scheduler::push_next_of(const Request& r) {
  const auto [place, ref] = waiting_.next_of_adapter(r.adapter, r.wait_key);
  if (ref == kNoRequest) return;
  heap_.emplace_back(walk_order_.place(place, r.adapter), ref);
  std::ranges::push_heap(heap_, std::greater<>{});
}

// An adapter that has its promise and is on its way would only be promised again.
void Scheduler::add_head_of_claimant(AdapterRef adapter) {
  const bool is_coming = config_.load_mode == LoadMode::overlap && residency_.promised(adapter) &&
                         !residency_.ready(adapter);
  if (!is_coming) add_candidate(adapter);
}

// Looks at every claimant or at every adapter with a queue, whichever are fewer.
void Scheduler::add_heads_of_claimants() {
  const std::vector<AdapterRef>& claimants = residency_.claimants();
  if (claimants.size() <= waiting_.heads(false).size() + waiting_.heads(true).size()) {
    for (const AdapterRef a : claimants) add_head_of_claimant(a);
    return;
  }
  for (const bool reserving : {false, true}) {
    for (const auto& [place, ref] : waiting_.heads(reserving)) {
      const AdapterRef a = requests_[ref].adapter;
      if (a != kBaseRef && residency_.claims_place(a)) add_head_of_claimant(a);
    }
  }
}

// The heads of the queues whose adapters may pass.
void Scheduler::collect_candidates() {
  heap_.clear();
  add_candidate(kBaseRef);
  add_heads_of_claimants();
  std::ranges::make_heap(heap_, std::greater<>{});
  has_newcomer_ = {};
  if (has_no_place()) return;
  push_newcomers(WaitKey::before_all());
  if (walk_order_.is_by_arrival()) return;
  for (int32_t slot = 0; slot < config_.residency.max_loras; ++slot) {
    const AdapterRef adapter = residency_.owner(slot);
    if (comes_from_slot(adapter)) push_candidate(waiting_.head(adapter));
  }
}

// Packed admission visits these before the other newcomers that do not reserve.
bool Scheduler::comes_from_slot(AdapterRef adapter) const {
  return adapter != kBaseRef && !walk_order_.is_by_arrival() && residency_.ready(adapter) &&
         !residency_.claims_place(adapter) && !waiting_.reserves(adapter);
}

// Of the newcomers that reserve one is a candidate at a time, and one of the others: the first of
// its kind behind those that had their turn.
void Scheduler::push_newcomers(const WaitKey& place) {
  for (const bool reserving : {false, true}) {
    bool& has_one = has_newcomer_[size_t(reserving)];
    if (has_one || has_no_place()) continue;
    const RequestRef next = next_newcomer(walk_order_.behind(place, reserving), reserving);
    has_one = next != kNoRequest;
    push_candidate(next);
  }
}

// While the reservation keeps the free places from the bound requests, its own adapter is next: of
// those that reserve, among whom it is, and of the others none.
RequestRef Scheduler::next_newcomer(const WaitKey& wait_key, bool reserving) const {
  const WaitingSet::InOrder& heads = waiting_.heads(reserving);
  for (auto head = heads.upper_bound(wait_key); head != heads.end();) {
    const Request& r = requests_[head->second];
    if (!is_newcomer(r) || comes_from_slot(r.adapter)) {
      ++head;
    } else if (!starvation_.keeps_place_from(r)) {
      return head->second;
    } else {
      head = heads.find(requests_[waiting_.head(starvation_.reserved())].wait_key);
    }
  }
  return kNoRequest;
}

// Merges the queues of the candidates in the walk's order. A queue whose head is turned away as a
// whole (no place, or its adapter is still on its way to the GPU) is dropped.
WalkEnd Scheduler::visit_candidates(int64_t now_ns) {
  WalkEnd end;
  if (is_walk_over()) return {.stop = WaitKey::before_all(), .last_admitted = {}};
  collect_candidates();
  while (!heap_.empty()) {
    std::ranges::pop_heap(heap_, std::greater<>{});
    const auto [key, ref] = heap_.back();
    heap_.pop_back();
    const Request& r = requests_[ref];
    const bool comes_in = is_newcomer(r) && !comes_from_slot(r.adapter);
    if (comes_in) has_newcomer_[size_t(waiting_.reserves(r.adapter))] = false;
    const bool drains = r.adapter != kBaseRef && r.adapter == starvation_.draining();
    if (gate_rejects(r)) {
      if (drains) push_next_of(r);
      continue;
    }
    const bool on_its_way = config_.load_mode == LoadMode::overlap && r.adapter != kBaseRef &&
                            !residency_.ready(r.adapter);
    if (on_its_way) {
      residency_.promise(r.adapter);
    } else if (try_admit(ref, now_ns)) {
      end.last_admitted = std::max(end.last_admitted, std::optional(r.wait_key));
      if (is_walk_over()) {
        end.stop = key;
        return end;
      }
      push_next_of(r);
    } else {
      walk_stopped_at_drain_ = drains;
      end.stop = key;
      return end;
    }
    if (comes_in) push_newcomers(key);
  }
  return end;
}

// All or nothing: on shortage no count, reference or order has changed.
bool Scheduler::try_admit(RequestRef ref, int64_t now_ns) {
  Request& r = requests_[ref];
  const uint32_t num_matched = match_prefix(r);
  const uint32_t num_cached = num_matched * config_.block_size;
  const uint32_t wanted = r.num_total() - num_cached;
  const uint32_t num_tokens = chunk_tokens(wanted, budget_);
  if (!config_.chunked_prefill && num_tokens < wanted) return false;
  if (!take_blocks(r, num_matched, blocks_for(num_cached + num_tokens))) return false;
  walk_order_.admits(r);
  waiting_.remove(ref);
  plan_->num_waiting_seen += config_.count_waiting_seen;
  r.state = RequestState::prefilling;
  r.num_computed = num_cached;
  r.admission_seq = next_admission_seq_++;
  running_.push_back(ref);
  if (r.adapter != kBaseRef) residency_.admitted(r.adapter);
  note(now_ns, r, decision::Admission{num_cached, num_tokens});
  add_row(ref, num_tokens, /*is_decode=*/false);
  return true;
}

// The matched blocks, then new ones up to `num_blocks`; none at all if the pool lacks some.
bool Scheduler::take_blocks(Request& r, uint32_t num_matched, uint32_t num_blocks) {
  uint32_t num_revived = 0;  // matched blocks that leave the cached-free queue
  for (uint32_t i = 0; i < num_matched; ++i) {
    num_revived += pool_.ref_count(pool_.find(key_of(r, i))) == 0;
  }
  const uint32_t num_new = num_blocks - num_matched;
  if (num_new + num_revived > pool_.num_allocatable()) return false;
  for (uint32_t i = 0; i < num_matched; ++i) {
    r.blocks.push_back(pool_.find(key_of(r, i)));
    pool_.acquire(r.blocks.back());
  }
  r.room = num_matched * config_.block_size;
  for (uint32_t i = 0; i < num_new; ++i) add_block(r);
  return true;
}

// Longest run of published blocks from the start, such that at least one token is left to compute.
// One that matches nothing but its own goes no further than it had computed: beyond, a block of
// somebody else would hide rows whose logits it has never seen.
uint32_t Scheduler::match_prefix(Request& r) {
  const uint32_t num_known = r.match_prefix ? r.num_total() - 1 : r.num_recoverable;
  const uint32_t most = num_known / config_.block_size;
  uint32_t num_matched = 0;
  while (num_matched < most && pool_.find(key_of(r, num_matched)) != kNullBlock) ++num_matched;
  return num_matched;
}

}  // namespace loratory::sim
