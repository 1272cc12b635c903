#include "fuzz/models/naive_residency.hpp"

#include <algorithm>

namespace loratory::sim {

bool NaiveResidency::has(const std::vector<Uid>& list, Uid u) {
  return std::ranges::find(list, u) != list.end();
}
void NaiveResidency::drop(std::vector<Uid>& list, Uid u) { std::erase(list, u); }
void NaiveResidency::to_back(std::vector<Uid>& list, Uid u) {
  drop(list, u);
  list.push_back(u);
}

// --- registry: [5.1] [5.2] [5.3] [5.26] -----------------------------------------------------

Uid NaiveResidency::find(const std::string& name) const {
  for (const auto& [uid, a] : adapters) {
    if (a.name == name && !a.retiring) return uid;
  }
  return 0;
}

Uid NaiveResidency::add(const std::string& name) {
  if (find(name) != 0) return 0;
  adapters[++last_uid].name = name;
  return last_uid;
}

Uid NaiveResidency::replace(const std::string& name) {
  if (const Uid old = find(name); old != 0) retire(old);
  return add(name);
}

bool NaiveResidency::unload(const std::string& name) {
  const Uid u = find(name);
  if (u == 0) return false;
  retire(u);
  return true;
}

void NaiveResidency::retire(Uid u) {
  adapters[u].retiring = true;
  unpin(u);
  tidy(u);
  finish_unload(u);
}

void NaiveResidency::finish_unload(Uid u) {
  const auto it = adapters.find(u);
  if (it == adapters.end() || !it->second.retiring || it->second.inflight > 0) return;
  if (has(loading, u) || copying == u) return;
  if (has(cpu, u)) evict_cpu(u);
  drop(gpu, u), drop(slot_loads, u);
  unloaded_.push_back({TierEvent::Kind::unloaded, u});
  adapters.erase(it);
}

// --- claims: [7.0] [5.19] [5.23] ------------------------------------------------------------

bool NaiveResidency::claims_place(Uid u) const {
  return adapters.at(u).running > 0 || has(pinned, u) || has(promised, u);
}

int NaiveResidency::num_claimants() const {
  int size = 0;
  for (const auto& [uid, a] : adapters) size += claims_place(uid);
  return size;
}

bool NaiveResidency::pin(Uid u) {
  if (has(pinned, u)) return true;
  const int with_u = num_claimants() + !claims_place(u);
  if (adapters.at(u).retiring || with_u > config_.max_loras) return false;
  if (int(pinned.size()) == config_.max_loras - 1) return false;
  pinned.push_back(u);
  if (adapters.at(u).running == 0 || !on_gpu(u)) promise(u);
  return true;
}

void NaiveResidency::unpin(Uid u) {
  drop(pinned, u);
  tidy(u);
}

void NaiveResidency::promise(Uid u) {
  if (!has(promised, u)) promised.push_back(u);
  want_load(u);
}

// A promise ends when no request of the uid waits, unless it is pinned; a step that waits for it
// (blocking mode) keeps it. A job nobody asks for any more is cancelled [5.22].
void NaiveResidency::tidy(Uid u) {
  const Adapter& a = adapters.at(u);
  const bool a_step_waits = a.running > 0 && !on_gpu(u);
  if (a.inflight == a.running && !has(pinned, u) && !a_step_waits) drop(promised, u);
  if (a.inflight == 0 && !has(pinned, u)) {
    if (has(jobs, u)) adapters.at(u).failures = 0;
    drop(jobs, u);
  }
}

// --- life of a request ----------------------------------------------------------------------

void NaiveResidency::submitted(Uid u) {
  ++adapters.at(u).inflight;
  if (state(u) == AdapterState::on_cpu) to_back(cpu, u);  // [5.11]
  if (config_.prefetch) want_load(u);
}

void NaiveResidency::admitted(Uid u) {
  ++adapters.at(u).running;
  drop(promised, u);
}

void NaiveResidency::preempted(Uid u) { --adapters.at(u).running; }

void NaiveResidency::left_running(Uid u) {
  --adapters.at(u).running;
  ended(u);
}

void NaiveResidency::left_waiting(Uid u) { ended(u); }

void NaiveResidency::ended(Uid u) {
  --adapters.at(u).inflight;
  tidy(u);
  finish_unload(u);
}

void NaiveResidency::used_in_step(Uid u) {
  to_back(gpu, u);
  ++adapters.at(u).uses;
}

void NaiveResidency::needed_by_step(Uid u) {
  promise(u);
  take_slot(u);
}

// --- disk -> CPU: [5.16] [5.17] [5.20] [5.21] -----------------------------------------------

void NaiveResidency::want_load(Uid u) {
  if (state(u) == AdapterState::on_disk && !has(jobs, u)) jobs.push_back(u);
}

// [5.41]: [5.16] without regard to who waits, or to the GPU either.
Uid NaiveResidency::cpu_victim_of_engine() const {
  std::vector<Uid> candidates;  // least recent first
  for (const Uid u : cpu) {
    if (!claims_place(u) && copying != u) candidates.push_back(u);
  }
  if (config_.cpu_eviction == CpuEviction::gpu_last) {
    // std::ranges' does not compile with clang 14 and libstdc++ 12, which the preset fuzz takes.
    std::stable_partition(candidates.begin(), candidates.end(), [&](Uid u) { return !on_gpu(u); });
  }
  return candidates.empty() ? 0 : candidates.front();
}

Uid NaiveResidency::cpu_victim(bool demand) const {
  if (config_.cpu_eviction != CpuEviction::idle_first) return cpu_victim_of_engine();
  for (const bool busy : {false, true}) {
    if (busy && !demand) break;
    for (const bool gpu_too : {false, true}) {
      for (const Uid u : cpu) {  // least recent first
        const bool idle = adapters.at(u).inflight == 0;
        if (claims_place(u) || copying == u || idle == busy || on_gpu(u) != gpu_too) continue;
        return u;
      }
    }
  }
  return 0;
}

bool NaiveResidency::start_a_load() {
  if (int(loading.size()) >= config_.num_load_workers) return false;
  for (const bool demand : {true, false}) {
    for (const Uid u : jobs) {
      if (has(promised, u) != demand) continue;
      const bool room = num_on_cpu() < config_.max_cpu_loras;
      const Uid victim = room ? 0 : cpu_victim(demand);
      if (!room && victim == 0) continue;
      if (victim != 0) evict_cpu(victim);
      drop(jobs, u);
      loading.push_back(u);
      loads_.push_back({TierEvent::Kind::load, u});
      return true;
    }
  }
  return false;
}

void NaiveResidency::evict_cpu(Uid u) {
  evictions_.push_back({TierEvent::Kind::eviction, u, slot_of(u), true});
  free_slot(u);
  drop(cpu, u);
}

LoadOutcome NaiveResidency::load_done(Uid u, bool ok) {
  Adapter& a = adapters.at(u);
  drop(loading, u);
  if (ok) {
    a.failures = 0;
    cpu.push_back(u);
    const bool unwanted = a.retiring && a.inflight == 0;
    finish_unload(u);
    return unwanted ? LoadOutcome::dropped : LoadOutcome::installed;
  }
  if (a.inflight > 0 && ++a.failures == 1) {
    want_load(u);
    return LoadOutcome::retried;
  }
  a.failures = 0;
  free_slot(u);
  drop(pinned, u), drop(promised, u);
  finish_unload(u);
  return LoadOutcome::failed;
}

// --- CPU -> GPU: [5.12] [5.15] [5.18] [5.23] ------------------------------------------------

Uid NaiveResidency::gpu_victim() const {
  const auto evictable = [&](Uid u) { return on_gpu(u) && !claims_place(u); };
  const auto& order = config_.gpu_eviction == EvictionPolicy::fifo ? slot_loads : gpu;
  Uid victim = 0;
  for (const Uid u : order) {  // the first in the order, and for lfu the first of the least used
    if (!evictable(u)) continue;
    if (config_.gpu_eviction != EvictionPolicy::lfu) return u;
    if (victim == 0 || adapters.at(u).uses < adapters.at(victim).uses) victim = u;
  }
  return victim;
}

void NaiveResidency::free_slot(Uid u) {
  std::ranges::replace(slots, u, Uid{0});
  drop(copied, u);
  adapters.at(u).uses = 0;  // counted while resident
}

bool NaiveResidency::take_slot(Uid u) {
  if (slot_of(u) != kNoSlot) return true;
  if (!has(slots, 0)) {
    const Uid victim = gpu_victim();
    if (victim == 0) return false;
    evictions_.push_back({TierEvent::Kind::eviction, victim, slot_of(victim), false});
    free_slot(victim);
  }
  *std::ranges::find(slots, Uid{0}) = u;
  return true;
}

bool NaiveResidency::start_a_copy() {
  if (copying != 0) return false;
  for (const Uid u : promised) {
    if (state(u) != AdapterState::on_cpu) continue;
    take_slot(u);
    copying = u;
    to_back(cpu, u), to_back(gpu, u), to_back(slot_loads, u);
    copies_.push_back({TierEvent::Kind::copy, u, slot_of(u)});
    return true;
  }
  return false;
}

void NaiveResidency::copy_done() {
  const Uid u = copying;
  copying = 0;
  copied.push_back(u);
  if (adapters.at(u).running > 0) drop(promised, u);
  tidy(u);
  finish_unload(u);
}

void NaiveResidency::start_transfers() {
  while (start_a_load()) {
  }
  while (start_a_copy()) {
  }
}

// --- questions ------------------------------------------------------------------------------

int32_t NaiveResidency::slot_of(Uid u) const {
  const auto it = std::ranges::find(slots, u);
  return it == slots.end() ? kNoSlot : int32_t(it - slots.begin());
}

// A slot that a blocking step reserved counts only with the copy.
AdapterState NaiveResidency::state(Uid u) const {
  if (has(loading, u)) return AdapterState::loading;
  if (!has(cpu, u)) return AdapterState::on_disk;
  if (copying == u) return AdapterState::copying;
  return has(copied, u) ? AdapterState::on_gpu : AdapterState::on_cpu;
}

std::vector<TierEvent> NaiveResidency::take_events() {
  std::vector<TierEvent> all;
  for (auto* list : {&evictions_, &loads_, &copies_, &unloaded_}) {
    all.insert(all.end(), list->begin(), list->end());
    list->clear();
  }
  return all;
}

}  // namespace loratory::sim
