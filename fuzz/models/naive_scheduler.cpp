#include "fuzz/models/naive_scheduler.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace loratory::sim {

void NaiveScheduler::note(int64_t now_ns, const Request& r, const decision::Any& what) {
  decisions.push_back({now_ns, r.id, r.uid, what});
}

void NaiveScheduler::note(int64_t now_ns, Uid uid, const decision::Any& what) {
  decisions.push_back({now_ns, kNoRequestId, uid, what});
}

uint32_t NaiveScheduler::pages_for(uint64_t tokens) const {
  return uint32_t((tokens + config_.block_size - 1) / config_.block_size);
}

uint32_t NaiveScheduler::chunk(uint32_t wanted) const {
  uint32_t c = std::min(wanted, budget_);
  if (config_.long_prefill_threshold > 0) c = std::min(c, config_.long_prefill_threshold);
  return c;
}

// The text of the block and of everything before it; a block with unknown content is its owner's.
std::string NaiveScheduler::key(const Request& r, uint32_t block) const {
  std::string text = fmt::format("uid {}", r.uid);
  for (uint32_t i = 0; i <= block; ++i) {
    const size_t begin = size_t{i} * config_.block_size, end = begin + config_.block_size;
    if (i < r.contents.size()) {
      text += "|" + r.contents[i];
    } else if (end <= r.tokens.size()) {
      text += fmt::format("|{}", fmt::join(r.tokens.begin() + begin, r.tokens.begin() + end, " "));
    } else {
      text += fmt::format("|request {} block {}", r.arrival, i);
    }
  }
  return text;
}

// --- requests and adapters ------------------------------------------------------------------

void NaiveScheduler::submit(const RequestSpec& spec, int64_t now_ns) {
  const Uid uid = spec.adapter;
  Request r{.id = spec.id,
            .uid = uid,
            .priority = config_.use_priorities ? spec.priority : 0,
            .arrival = arrivals_++,
            .num_prompt = spec.num_prompt_tokens,
            .max_new = spec.max_new_tokens};
  r.match = config_.prefix_cache && !spec.disable_prefix_cache && !spec.prompt_logprobs;
  r.publish = config_.prefix_cache && !spec.disable_prefix_cache;
  r.tokens.assign(spec.tokens.begin(), spec.tokens.end());
  r.stops.assign(spec.stop_tokens.begin(), spec.stop_tokens.end());
  for (const uint64_t id : spec.block_contents) r.contents.push_back(fmt::format("block {}", id));
  note(now_ns, r, decision::Arrival{r.num_prompt, r.max_new});
  requests.emplace(r.id, r);
  if (uid != 0) tiers.submitted(uid);
  settle(now_ns);
}

void NaiveScheduler::abort(uint64_t id, int64_t now_ns) {
  const auto it = requests.find(id);
  if (it == requests.end() || it->second.ends_at_commit) return;
  note(now_ns, it->second, decision::Abort{});
  if (in_flight && std::ranges::find(rows, id, &Row::id) != rows.end()) {
    it->second.ends_at_commit = true;
    it->second.end_reason = FinishReason::abort;
  } else {
    end(id, FinishReason::abort, now_ns);
  }
  settle(now_ns);
}

void NaiveScheduler::unload(const std::string& name, bool abort_requests, int64_t now_ns) {
  const Uid uid = tiers.find(name);
  if (uid == 0) return;
  if (abort_requests) {
    Ids ids = running;
    for (const uint64_t id : waiting()) ids.push_back(id);
    for (const uint64_t id : ids) {
      if (requests.at(id).uid == uid) abort(id, now_ns);
    }
  }
  tiers.unload(name);
  settle(now_ns);
}

bool NaiveScheduler::pin(Uid uid, int64_t now_ns) {
  const bool ok = tiers.pin(uid);
  settle(now_ns);
  return ok;
}

void NaiveScheduler::unpin(Uid uid, int64_t now_ns) {
  tiers.unpin(uid);
  settle(now_ns);
}

Uid NaiveScheduler::add_adapter(const std::string& name, bool replace, int64_t now_ns) {
  const Uid uid = replace ? tiers.replace(name) : tiers.add(name);
  settle(now_ns);
  return uid;
}

void NaiveScheduler::load_done(Uid uid, bool ok, int64_t now_ns) {
  const LoadOutcome outcome = tiers.load_done(uid, ok);
  if (ok) note(now_ns, uid, decision::LoadDone{});
  if (!ok) {
    note(now_ns, uid, decision::LoadFailure{outcome == LoadOutcome::retried});
  }
  if (outcome == LoadOutcome::failed) {  // [5.21]: its requests fail, nobody else's
    std::erase(waits_for, uid);
    if (in_flight) failed_in_step.push_back(uid);
    for (const uint64_t id : running) {
      Request& r = requests.at(id);
      if (r.uid != uid || r.ends_at_commit) continue;
      r.ends_at_commit = true;
      r.end_reason = FinishReason::error;
    }
    for (const uint64_t id : waiting()) {
      if (requests.at(id).uid == uid) end(id, FinishReason::error, now_ns);
    }
  }
  settle(now_ns);
}

void NaiveScheduler::copy_done(int64_t now_ns) {
  note(now_ns, tiers.copying, decision::CopyDone{tiers.slot_of(tiers.copying)});
  tiers.copy_done();
  settle(now_ns);
}

void NaiveScheduler::settle(int64_t now_ns) {
  tiers.start_transfers();
  for (const TierEvent& e : tiers.take_events()) {
    switch (e.kind) {
      case TierEvent::Kind::load:
        note(now_ns, e.uid, decision::Load{1});
        break;
      case TierEvent::Kind::copy:
        note(now_ns, e.uid, decision::Copy{e.slot, 1});
        break;
      case TierEvent::Kind::eviction:
        note(now_ns, e.uid, decision::Eviction{e.slot, e.from_cpu});
        break;
      case TierEvent::Kind::unloaded:
        note(now_ns, e.uid, decision::Unload{pool.evict_namespace(e.uid)});
        break;
    }
  }
}

// --- plan: running [7.6] --------------------------------------------------------------------

const std::vector<NaiveScheduler::Row>& NaiveScheduler::plan(int64_t now_ns) {
  rows.clear();
  waits_for.clear();
  failed_in_step.clear();
  budget_ = config_.max_num_batched_tokens;
  preempted_now_ = false;
  schedule_running(now_ns);
  if (!preempted_now_) walk(now_ns);  // [7.7]
  in_flight = !rows.empty();
  std::vector<Uid> used;  // in order of first appearance [5.12]
  for (const Row& row : rows) {
    const Uid uid = requests.at(row.id).uid;
    if (uid == 0 || NaiveResidency::has(used, uid)) continue;
    used.push_back(uid);
    tiers.used_in_step(uid);
  }
  const bool prefill_only = std::ranges::none_of(rows, &Row::decode);
  if (config_.pack == PackMode::on || (config_.pack == PackMode::prefill_only && prefill_only)) {
    std::ranges::stable_sort(rows, {}, [&](const Row& row) { return requests.at(row.id).uid; });
  }
  for (const Uid uid : used) {
    if (config_.load_mode == LoadMode::overlap || tiers.on_gpu(uid)) continue;
    tiers.needed_by_step(uid);
    waits_for.push_back(uid);
  }
  settle(now_ns);
  return rows;
}

void NaiveScheduler::schedule_running(int64_t now_ns) {
  Ids seen;  // each gets its turn once, however the list shrinks meanwhile
  for (size_t i = 0; i < running.size();) {
    const uint64_t id = running[i];
    if (std::ranges::find(seen, id) != seen.end()) {
      ++i;
      continue;
    }
    seen.push_back(id);
    schedule(id, now_ns);
    i = 0;
  }
}

bool NaiveScheduler::schedule(uint64_t id, int64_t now_ns) {
  Request& r = requests.at(id);
  const uint32_t wanted = r.total() - r.computed;
  const uint32_t c = chunk(wanted);
  if (c == 0) return false;
  while (pages_for(r.computed + c) > r.table.size() + pool.num_allocatable()) {
    uint64_t victim = running.front();
    for (const uint64_t other : running) {
      const Request &a = requests.at(other), &b = requests.at(victim);
      if (std::tuple(a.priority, a.admission) > std::tuple(b.priority, b.admission)) victim = other;
    }
    preempt(victim, now_ns);
    if (victim == id) return false;
  }
  while (pages_for(r.computed + c) > r.table.size()) r.table.push_back(pool.allocate());
  const bool decode = wanted == 1 && r.generated > 0;
  if (!decode) note(now_ns, r, decision::Chunk{c, r.computed});
  add_row(r, c, decode);
  return true;
}

void NaiveScheduler::preempt(uint64_t id, int64_t now_ns) {
  Request& r = requests.at(id);
  preempted_now_ = true;
  for (const Row& row : rows) budget_ += row.id == id ? row.tokens : 0;
  std::erase_if(rows, [&](const Row& row) { return row.id == id; });
  note(now_ns, r, decision::Preemption{r.computed});
  give_back(r);
  std::erase(running, id);
  r.running = false;
  r.preempted = true;
  r.rejections = 0, r.first_rejection_ns = -1, r.reservation = -1;
  if (r.uid != 0) tiers.preempted(r.uid);
}

void NaiveScheduler::add_row(const Request& r, uint32_t tokens, bool decode) {
  const bool samples = r.computed + tokens == r.total() && r.max_new > 0;
  rows.push_back({r.id, r.computed, tokens, decode, samples});
  budget_ -= tokens;
}

// --- plan: waiting [7.8] [7.9] [7.10] -------------------------------------------------------

std::vector<uint64_t> NaiveScheduler::waiting() const {
  Ids ids;
  for (const auto& [id, r] : requests) {
    if (!r.running) ids.push_back(id);
  }
  std::ranges::sort(ids, {}, [&](uint64_t id) {
    const Request& r = requests.at(id);
    return std::tuple(r.priority, !r.preempted, r.arrival);
  });
  return ids;
}

// [7.23]: the base model, adapters on the GPU and those with a reserving request first.
NaiveScheduler::Ids NaiveScheduler::walk_order() const {
  Ids ids = waiting();
  if (config_.admission_order == AdmissionOrder::arrival) return ids;
  const auto reserves = [&](Uid uid) {
    return std::ranges::any_of(ids, [&](uint64_t id) {
      return requests.at(id).uid == uid && requests.at(id).reservation >= 0;
    });
  };
  Ids order = ids;
  std::ranges::stable_sort(order, {}, [&](uint64_t id) {
    const Request& r = requests.at(id);
    const bool packed = r.uid == 0 || tiers.on_gpu(r.uid) || reserves(r.uid);
    return std::tuple(r.priority, !r.preempted, !packed);
  });
  return order;
}

void NaiveScheduler::walk(int64_t now_ns) {
  if (waiting().empty()) return;
  reserve(now_ns);
  drain(now_ns);
  std::vector<Uid> rejected;
  const Ids in_order = waiting(), order = walk_order();
  Ids admitted;
  size_t next = 0;
  for (; next < order.size(); ++next) {
    if (budget_ == 0 || running.size() >= config_.max_num_seqs) break;
    Request& r = requests.at(order[next]);
    if (!gate_passes(r, rejected)) {
      rejected.push_back(r.uid);
      if (r.rejections++ == 0) r.first_rejection_ns = now_ns;
      continue;
    }
    const bool ready = r.uid == 0 || tiers.on_gpu(r.uid);
    if (config_.load_mode == LoadMode::overlap && !ready) {
      tiers.promise(r.uid);
      continue;
    }
    if (!admit(r, now_ns)) break;
    admitted.push_back(r.id);
  }
  count_overtaken({order.begin() + std::ptrdiff_t(next), order.end()}, admitted, in_order, now_ns);
}

// [7.23]: one that was not reached, or stopped the walk, while another behind it was admitted.
void NaiveScheduler::count_overtaken(const Ids& missed, const Ids& admitted, const Ids& in_order,
                                     int64_t now_ns) {
  const auto place = [&](uint64_t id) {
    return std::ranges::find(in_order, id) - in_order.begin();
  };
  for (const uint64_t id : missed) {
    Request& r = requests.at(id);
    const bool overtaken =
        std::ranges::any_of(admitted, [&](uint64_t other) { return place(other) > place(id); });
    if (!overtaken || r.uid == 0) continue;
    if (r.rejections++ == 0) r.first_rejection_ns = now_ns;
  }
}

// [7.10] (a) and (b).
void NaiveScheduler::reserve(int64_t now_ns) {
  constexpr int64_t kOff = kNever;
  for (const uint64_t id : waiting()) {
    Request& r = requests.at(id);
    if (r.reservation >= 0 || r.uid == 0) continue;
    const bool often = config_.n_starve != kOff && r.rejections >= config_.n_starve;
    const bool long_ago = config_.t_starve_ns != kOff && r.first_rejection_ns >= 0 &&
                          now_ns - r.first_rejection_ns >= config_.t_starve_ns;
    if (!often && !long_ago) continue;
    r.reservation = next_reservation_++;
    note(now_ns, r, decision::Reservation{r.reservation});
  }
  reserved = 0;
  std::pair<int, int64_t> first;  // by (priority, number)
  for (const uint64_t id : waiting()) {
    const Request& r = requests.at(id);
    if (r.reservation < 0 || tiers.claims_place(r.uid)) continue;
    const std::pair order(r.priority, r.reservation);
    if (reserved == 0 || order < first) reserved = r.uid, first = order;
  }
  reserved_priority = first.first;
}

// [7.10] (d) and (e), [5.36].
void NaiveScheduler::drain(int64_t now_ns) {
  if (draining != 0) --drain_left;
  const bool runs =
      draining != 0 && tiers.adapters.contains(draining) && tiers.adapters.at(draining).running > 0;
  if (draining != 0 && (reserved == 0 || !runs || outranks_reservation(draining))) {
    note(now_ns, draining, decision::DrainEnd{});
    draining = 0;
  }
  if (reserved == 0 || draining != 0 || tiers.num_claimants() < config_.residency.max_loras) return;
  std::map<Uid, uint32_t> longest;  // by uid: its largest number of remaining tokens
  for (const uint64_t id : running) {
    const Request& r = requests.at(id);
    if (r.uid == 0 || NaiveResidency::has(tiers.pinned, r.uid)) continue;
    if (outranks_reservation(r.uid)) continue;
    longest[r.uid] = std::max(longest[r.uid], r.remaining());
  }
  if (longest.empty()) return;
  const auto shortest = std::ranges::min_element(  // ties: lowest uid
      longest, [](const auto& a, const auto& b) { return a.second < b.second; });
  draining = shortest->first;
  drain_left = int64_t(std::floor(config_.drain_factor * double(shortest->second)));
  note(now_ns, draining, decision::Drain{drain_left});
}

// Runs a request that the reservation does not bind.
bool NaiveScheduler::outranks_reservation(Uid uid) const {
  return std::ranges::any_of(running, [&](uint64_t id) {
    return requests.at(id).uid == uid && requests.at(id).priority < reserved_priority;
  });
}

bool NaiveScheduler::gate_passes(const Request& r, const std::vector<Uid>& rejected) const {
  if (r.uid == 0) return true;
  const bool is_bound = r.priority >= reserved_priority;
  if (r.uid == draining && is_bound) return int64_t{r.remaining()} <= drain_left;
  if (tiers.claims_place(r.uid)) return true;
  if (NaiveResidency::has(rejected, r.uid)) return false;
  if (tiers.num_claimants() >= config_.residency.max_loras) return false;
  return reserved == 0 || !is_bound || reserved == r.uid || tiers.claims_place(reserved);
}

bool NaiveScheduler::admit(Request& r, int64_t now_ns) {
  std::vector<uint32_t> hit;
  if (r.match || (r.preempted && r.publish)) {
    while (hit.size() < (r.total() - 1) / config_.block_size) {  // [6.3]
      const bool is_new_to_it = (hit.size() + 1) * config_.block_size > r.seen;
      if (!r.match && is_new_to_it) break;  // [6.4]
      const uint32_t page = pool.find(key(r, uint32_t(hit.size())));
      if (page == 0) break;
      hit.push_back(page);
    }
  }
  const auto cached = uint32_t(hit.size()) * config_.block_size;
  const uint32_t c = chunk(r.total() - cached);
  if (!config_.chunked_prefill && c < r.total() - cached) return false;
  const NaiveBlockPool before = pool;
  for (const uint32_t page : hit) pool.acquire(page);
  if (pages_for(cached + c) > hit.size() + pool.num_allocatable()) {
    pool = before;
    return false;
  }
  r.table = hit;
  while (r.table.size() < pages_for(cached + c)) r.table.push_back(pool.allocate());
  r.computed = cached;
  r.running = true;
  r.admission = admissions_++;
  running.push_back(r.id);
  if (r.uid != 0) tiers.admitted(r.uid);
  r.reservation = -1;
  note(now_ns, r, decision::Admission{cached, c});
  add_row(r, c, false);
  return true;
}

// --- commit [6.8] [6.9] [7.4] ---------------------------------------------------------------

void NaiveScheduler::commit(const std::vector<int32_t>& sampled, int64_t now_ns) {
  in_flight = false;
  size_t next = 0;
  for (const Row& row : rows) {
    const bool takes_one = row.samples && !sampled.empty();
    commit_row(row, takes_one ? sampled[next++] : -1, now_ns);
  }
  settle(now_ns);
}

void NaiveScheduler::commit_row(const Row& row, int32_t token, int64_t now_ns) {
  Request& r = requests.at(row.id);
  // The weights of a failed row never came: it computed nothing.
  if (NaiveResidency::has(failed_in_step, r.uid)) return end(row.id, r.end_reason, now_ns);
  const uint32_t before = r.computed;
  r.computed += row.tokens;
  r.seen = std::max(r.seen, r.computed);
  publish_full(r, before);
  if (r.ends_at_commit) return end(row.id, r.end_reason, now_ns);
  if (r.computed < r.total()) return;
  if (r.max_new == 0) return end(row.id, FinishReason::length, now_ns);
  if (++r.generated == 1) note(now_ns, r, decision::FirstToken{});
  if (token >= 0) {
    if (!r.tokens.empty()) r.tokens.push_back(token);
    if (std::ranges::find(r.stops, token) != r.stops.end()) {
      return end(row.id, FinishReason::stop, now_ns);
    }
  }
  if (r.generated == r.max_new || r.total() == config_.max_model_len) {
    end(row.id, FinishReason::length, now_ns);
  }
}

void NaiveScheduler::publish_full(Request& r, uint32_t before) {
  if (!r.publish) return;
  for (uint32_t i = before / config_.block_size; i < r.computed / config_.block_size; ++i) {
    pool.publish(r.table[i], key(r, i), r.uid);
  }
}

void NaiveScheduler::give_back(Request& r) {
  std::vector<std::string> keys;
  for (uint32_t i = 0; r.publish && i < r.computed / config_.block_size; ++i) {
    keys.push_back(key(r, i));
  }
  pool.release(r.table, keys, r.uid);
  r.table.clear();
  r.computed = 0;
}

void NaiveScheduler::end(uint64_t id, FinishReason reason, int64_t now_ns) {
  Request& r = requests.at(id);
  if (r.running) give_back(r);
  note(now_ns, r, decision::Finish{reason, r.generated});
  if (r.uid != 0 && r.running) tiers.left_running(r.uid);
  if (r.uid != 0 && !r.running) tiers.left_waiting(r.uid);
  std::erase(running, id);
  requests.erase(id);
}

}  // namespace loratory::sim
