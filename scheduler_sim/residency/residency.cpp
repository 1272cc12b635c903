#include "scheduler_sim/residency/residency.hpp"

#include <algorithm>
#include <utility>

#include "reference/base/check.hpp"

namespace loratory::sim {

Residency::Residency(const ResidencyConfig& config) : config_(config), slots_(config.max_loras) {
  LORATORY_ASSERT(config.max_loras >= 1, "the engine needs at least one slot");
  LORATORY_ASSERT(config.max_cpu_loras >= config.max_loras, "the tiers are inclusive");
  LORATORY_ASSERT(config.num_load_workers >= 1, "somebody must read from disk");
}

// --- registry -------------------------------------------------------------------------------

Residency::Registered Residency::register_adapter(std::string_view name, uint32_t rank,
                                                  int64_t bytes, bool replace) {
  const AdapterRef old = find(name);
  if (old != kBaseRef && !replace) return {RegisterStatus::exists, kBaseRef};
  if (old != kBaseRef) retire(old);
  AdapterRef ref;
  if (free_refs_.empty()) {
    ref = AdapterRef(adapters_.size());
    adapters_.emplace_back();
    places_.emplace_back();
  } else {
    ref = free_refs_.back();
    free_refs_.pop_back();
  }
  Adapter& a = adapters_[ref];
  a.uid = next_uid_++;
  a.name = name;
  a.rank = rank;
  a.bytes = bytes;
  by_name_[a.name] = ref;
  by_uid_.resize(next_uid_, kBaseRef);
  by_uid_[a.uid] = ref;
  return {RegisterStatus::ok, ref};
}

AdapterRef Residency::find(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? kBaseRef : it->second;
}

bool Residency::unload(std::string_view name) {
  const AdapterRef ref = find(name);
  if (ref == kBaseRef) return false;
  retire(ref);
  return true;
}

void Residency::retire(AdapterRef ref) {
  Adapter& a = adapters_[ref];
  by_name_.erase(a.name);
  a.retiring = true;
  unpin(ref);
  finish_unload_if_idle(ref);
}

// The unload completes when no request needs the adapter and no transfer of it is in flight.
void Residency::finish_unload_if_idle(AdapterRef ref) {
  Adapter& a = adapters_[ref];
  if (!a.retiring || a.num_inflight > 0) return;
  if (a.state == AdapterState::loading || a.state == AdapterState::copying) return;
  if (on_cpu_or_better(a)) evict_from_cpu(ref);
  unloaded_.push_back(a.uid);
  by_uid_[a.uid] = kBaseRef;
  settle_departures();
  a = Adapter{};
  free_refs_.push_back(ref);
}

std::vector<Uid> Residency::take_unloaded() { return std::exchange(unloaded_, {}); }

// --- claims ---------------------------------------------------------------------------------

template <typename Change>
void Residency::change_claim(AdapterRef ref, Change change) {
  Adapter& a = adapters_[ref];
  const bool had_claim = claims_place(a);
  change(a);
  changed_ = true;
  ++num_claim_changes_;
  if (claims_place(a) == had_claim) return;
  if (had_claim) {
    adapters_[claimants_.back()].claimant_index = a.claimant_index;
    claimants_[a.claimant_index] = claimants_.back();
    claimants_.pop_back();
  } else {
    a.claimant_index = uint32_t(claimants_.size());
    claimants_.push_back(ref);
  }
  update_departure(ref);
  LORATORY_ASSERT(num_claimants() <= config_.max_loras, "more claims than GPU places");
}

PinStatus Residency::pin(AdapterRef ref) {
  const Adapter& a = adapters_[ref];
  if (a.uid == 0) return PinStatus::unknown;
  if (a.pinned) return PinStatus::ok;
  const bool no_place = !claims_place(a) && num_claimants() + 1 > config_.max_loras;
  if (a.retiring || no_place || num_pinned_ + 1 > config_.max_loras - 1) return PinStatus::busy;
  ++num_pinned_;
  change_claim(ref, [](Adapter& x) { x.pinned = true; });
  if (a.num_running == 0 || a.state != AdapterState::on_gpu) promise(ref);
  return PinStatus::ok;
}

void Residency::unpin(AdapterRef ref) {
  if (!adapters_[ref].pinned) return;
  --num_pinned_;
  change_claim(ref, [](Adapter& a) { a.pinned = false; });
  drop_unneeded_promise(ref);
  cancel_job_if_idle(ref);
}

void Residency::promise(AdapterRef ref) {
  if (adapters_[ref].promised) return;
  set_promised(ref, true);
  promised_.push_back(ref);
  queue_job(ref);
}

void Residency::drop_promise(AdapterRef ref) {
  if (!adapters_[ref].promised) return;
  set_promised(ref, false);
  std::erase(promised_, ref);
}

// Its queued job becomes one of the other kind and keeps its number.
void Residency::set_promised(AdapterRef ref, bool promised) {
  Adapter& a = adapters_[ref];
  jobs_like(a).erase({a.job, ref});
  change_claim(ref, [promised](Adapter& x) { x.promised = promised; });
  if (a.job != 0) jobs_like(a).emplace(a.job, ref);
}

// A promise is kept while a request of the adapter waits, while it is pinned, and in blocking mode
// while a step waits for it.
void Residency::drop_unneeded_promise(AdapterRef ref) {
  const Adapter& a = adapters_[ref];
  const bool a_step_waits = a.num_running > 0 && a.state != AdapterState::on_gpu;
  if (a.num_inflight == a.num_running && !a.pinned && !a_step_waits) drop_promise(ref);
}

// --- life of a request ----------------------------------------------------------------------

void Residency::submitted(AdapterRef ref) {
  Adapter& a = adapters_[ref];
  ++a.num_inflight;
  if (a.state == AdapterState::on_cpu) a.cpu_clock = ++clock_;
  update_departure(ref);
  if (config_.prefetch) queue_job(ref);
}

void Residency::admitted(AdapterRef ref) {
  change_claim(ref, [](Adapter& a) { ++a.num_running; });
  drop_promise(ref);
}

void Residency::preempted(AdapterRef ref) {
  change_claim(ref, [](Adapter& a) { --a.num_running; });
}

void Residency::left_running(AdapterRef ref) {
  change_claim(ref, [](Adapter& a) { --a.num_running; });
  request_ended(ref);
}

void Residency::left_waiting(AdapterRef ref) { request_ended(ref); }

void Residency::request_ended(AdapterRef ref) {
  Adapter& a = adapters_[ref];
  --a.num_inflight;
  LORATORY_ASSERT(a.num_inflight >= a.num_running, "a running request is in flight");
  changed_ = true;
  update_departure(ref);
  drop_unneeded_promise(ref);
  cancel_job_if_idle(ref);
  finish_unload_if_idle(ref);
}

// --- disk -> CPU ----------------------------------------------------------------------------

void Residency::queue_job(AdapterRef ref) {
  Adapter& a = adapters_[ref];
  if (a.job != 0 || a.state != AdapterState::on_disk) return;  // joined
  a.job = ++last_job_;
  jobs_like(a).emplace(a.job, ref);
  changed_ = true;
}

void Residency::cancel_job_if_idle(AdapterRef ref) {
  Adapter& a = adapters_[ref];
  if (a.job == 0 || a.num_inflight > 0 || a.pinned) return;
  jobs_like(a).erase({std::exchange(a.job, 0), ref});
  a.num_failures = 0;
}

// A free worker takes the first demand job that can get a place, else the first such prefetch job.
// Whether a place can be had depends on the kind of the job alone, not on the job.
bool Residency::start_one_load() {
  if (num_loading_ >= config_.num_load_workers) return false;
  const bool room = num_on_cpu_ < config_.max_cpu_loras;
  for (Jobs* const jobs : {&demand_jobs_, &prefetch_jobs_}) {
    if (jobs->empty()) continue;
    const AdapterRef victim = room ? kBaseRef : cpu_victim(/*demand=*/jobs == &demand_jobs_);
    if (!room && victim == kBaseRef) continue;
    const AdapterRef ref = jobs->begin()->second;
    jobs->erase(jobs->begin());
    if (victim != kBaseRef) evict_from_cpu(victim);
    Adapter& a = adapters_[ref];
    a.job = 0;
    a.state = AdapterState::loading;
    ++num_on_cpu_, ++num_loading_;
    actions_.loads.push_back({a.uid, a.bytes});
    return true;
  }
  return false;
}

// Lower groups go first; -1 = never. Idle and not on the GPU, idle on the GPU, and for a demand job
// the same two among adapters that somebody waits for.
int Residency::departure_group(const Adapter& a) const {
  const bool on_gpu = a.state == AdapterState::on_gpu;
  const bool stays = a.state != AdapterState::on_cpu && !on_gpu;  // or is not there
  if (stays || claims_place(a)) return -1;
  if (config_.cpu_eviction == CpuEviction::lru) return 0;
  if (config_.cpu_eviction == CpuEviction::gpu_last) return on_gpu;
  return 2 * (a.num_inflight > 0) + on_gpu;
}

// To be called when the state, a claim, num_inflight or cpu_clock may have changed. While host
// memory has room nobody asks who leaves, so only the last change before a question counts.
void Residency::update_departure(AdapterRef ref) {
  Adapter& a = adapters_[ref];
  if (std::exchange(a.may_have_moved, true)) return;
  moved_.push_back(ref);
}

void Residency::settle_departures() {
  for (const AdapterRef ref : moved_) settle_departure(ref);
  moved_.clear();
}

void Residency::settle_departure(AdapterRef ref) {
  Adapter& a = adapters_[ref];
  a.may_have_moved = false;
  std::optional<std::pair<int, uint64_t>> now;
  if (const int group = departure_group(a); group >= 0) now.emplace(group, a.cpu_clock);
  if (a.departure) departures_.erase({*a.departure, ref});
  if (now) departures_.emplace(*now, ref);
  a.departure = now;
}

AdapterRef Residency::cpu_victim(bool demand) {
  settle_departures();
  if (departures_.empty()) return kBaseRef;
  const auto& [place, ref] = *departures_.begin();
  const bool only_idle = config_.cpu_eviction == CpuEviction::idle_first && !demand;
  return only_idle && adapters_[ref].num_inflight > 0 ? kBaseRef : ref;
}

void Residency::evict_from_cpu(AdapterRef ref) {
  Adapter& a = adapters_[ref];
  actions_.evictions.push_back({a.uid, a.slot, /*from_cpu=*/true});
  free_slot_of(ref);
  a.state = AdapterState::on_disk;
  update_departure(ref);
  --num_on_cpu_;
  changed_ = true;
}

LoadOutcome Residency::load_done(AdapterRef ref, bool ok) {
  Adapter& a = adapters_[ref];
  LORATORY_ASSERT(a.state == AdapterState::loading, "load_done without a load");
  --num_loading_;
  changed_ = true;
  const bool wanted = a.num_inflight > 0 || a.pinned;
  if (ok) {
    a.num_failures = 0;
    a.state = AdapterState::on_cpu;
    a.cpu_clock = ++clock_;
    update_departure(ref);
    if (a.retiring && !wanted) {
      finish_unload_if_idle(ref);
      return LoadOutcome::dropped;
    }
    return LoadOutcome::installed;
  }
  a.state = AdapterState::on_disk;
  --num_on_cpu_;
  if (++a.num_failures == 1 && a.num_inflight > 0) {
    queue_job(ref);
    return LoadOutcome::retried;
  }
  a.num_failures = 0;
  free_slot_of(ref);  // blocking mode had given it one
  unpin(ref);
  drop_promise(ref);
  finish_unload_if_idle(ref);
  return LoadOutcome::failed;
}

// --- CPU -> GPU -----------------------------------------------------------------------------

// One at a time.
void Residency::start_copy() {
  if (copying_ != kBaseRef) return;
  const auto next = std::find_if(promised_.begin(), promised_.end(), [&](AdapterRef r) {
    return adapters_[r].state == AdapterState::on_cpu;
  });
  if (next == promised_.end()) return;
  const AdapterRef ref = *next;
  Adapter& a = adapters_[ref];
  if (a.slot == kNoSlot) {
    const bool taken = take_slot(ref);
    LORATORY_ASSERT(taken, "with no copy in flight a promised adapter can get a slot");
  }
  a.state = AdapterState::copying;
  a.cpu_clock = a.gpu_clock = a.slot_loaded_clock = ++clock_;
  copying_ = ref;
  update_departure(ref);
  actions_.copies.push_back({a.uid, a.slot, slots_[a.slot].generation, a.bytes});
}

// Free slots first (lowest index), then the least recent by policy. The adapter has a claim and no
// slot, so at most max_loras - 1 other claimants have one: only a copy in flight for an adapter
// that nobody wants any more can be in the way.
bool Residency::take_slot(AdapterRef ref) {
  auto slot =
      std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.owner == kBaseRef; });
  if (slot == slots_.end()) {
    const AdapterRef victim = gpu_victim();
    if (victim == kBaseRef) return false;
    slot = slots_.begin() + adapters_[victim].slot;
    evict_from_gpu(victim);
  }
  Adapter& a = adapters_[ref];
  slot->owner = ref;
  ++slot->generation;
  a.slot = int32_t(slot - slots_.begin());
  places_[ref] = {a.slot, slot->generation};
  ++num_on_gpu_;
  return true;
}

AdapterRef Residency::gpu_victim() const {
  AdapterRef best = kBaseRef;
  for (const Slot& slot : slots_) {
    if (slot.owner == kBaseRef) continue;
    const Adapter& a = adapters_[slot.owner];
    if (a.state != AdapterState::on_gpu || claims_place(a)) continue;
    if (best == kBaseRef || older_on_gpu(a, adapters_[best])) best = slot.owner;
  }
  return best;
}

bool Residency::older_on_gpu(const Adapter& a, const Adapter& b) const {
  switch (config_.gpu_eviction) {
    case EvictionPolicy::lru:
      return a.gpu_clock < b.gpu_clock;
    case EvictionPolicy::fifo:
      return a.slot_loaded_clock < b.slot_loaded_clock;
    case EvictionPolicy::lfu:
      return std::pair(a.num_uses, a.gpu_clock) < std::pair(b.num_uses, b.gpu_clock);
  }
  return false;
}

void Residency::evict_from_gpu(AdapterRef ref) {
  Adapter& a = adapters_[ref];
  actions_.evictions.push_back({a.uid, a.slot, /*from_cpu=*/false});
  free_slot_of(ref);
  a.state = AdapterState::on_cpu;
  update_departure(ref);
  changed_ = true;
}

void Residency::free_slot_of(AdapterRef ref) {
  Adapter& a = adapters_[ref];
  places_[ref] = {};
  a.num_uses = 0;
  if (a.slot == kNoSlot) return;
  slots_[a.slot].owner = kBaseRef;
  a.slot = kNoSlot;
  --num_on_gpu_;
}

void Residency::assign_slot_now(AdapterRef ref) {
  promise(ref);
  if (adapters_[ref].slot == kNoSlot) take_slot(ref);
}

void Residency::copy_done(AdapterRef ref) {
  LORATORY_ASSERT(copying_ == ref, "copy_done without a copy");
  Adapter& a = adapters_[ref];
  copying_ = kBaseRef;
  a.state = AdapterState::on_gpu;
  update_departure(ref);
  changed_ = true;
  // Blocking mode: its request was admitted before the copy.
  if (a.num_running > 0) drop_promise(ref);
  finish_unload_if_idle(ref);
}

void Residency::start_transfers() {
  if (!changed_) return;
  while (start_one_load()) {
  }
  start_copy();
  changed_ = false;
}

}  // namespace loratory::sim
