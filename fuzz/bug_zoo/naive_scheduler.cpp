#include "fuzz/bug_zoo/naive_scheduler.hpp"

#include <algorithm>
#include <utility>

namespace loratory::zoo {

using check::Event;
using check::FinishReason;
using check::kBaseUid;
using check::kNoSlot;
using check::Status;
namespace message = check::message;

check::Reply NaiveScheduler::exchange(const check::Message& m) {
  reply_ = {};
  if (const auto* hello = m.get_if<message::Hello>()) {
    begin(*hello);
  } else {
    std::visit(
        [&](const auto& what) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(what)>, message::Hello>) answer(what);
        },
        m.what);
  }
  return std::move(reply_);
}

void NaiveScheduler::begin(const message::Hello& m) {
  limits_ = m.limits;
  adapters_.clear();
  names_.clear();
  slots_.assign(size_t(limits_.max_loras), {});
  requests_.clear();
  free_.clear();
  for (uint32_t block = 1; block < limits_.num_blocks; ++block) free_.push_back(block);
  num_users_.assign(limits_.num_blocks, 0);
  published_.clear();
  key_of_block_.clear();
  step_.clear();
  last_uid_ = next_serial_ = 0;
  num_plans_ = 0;
  reply_.name = "zoo";
  reply_.claims = {.loads = true,
                   .prefix_cache = true,
                   .chunked_prefill = true,
                   .preemption = true,
                   .pins = true,
                   .unloads = true,
                   .generations = true,
                   .deterministic = true,
                   .max_overtakes = kMostSkips};
}

// --- adapters ------------------------------------------------------------------------------------

Uid NaiveScheduler::uid_of(const std::string& name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? kBaseUid : found->second;
}

void NaiveScheduler::answer(const message::Register& m) {
  const Uid old = NaiveScheduler::uid_of(m.name);
  if (old != kBaseUid && !m.replace) {
    reply_.status = Status::exists;
    return;
  }
  if (old != kBaseUid) retire(adapters_.at(old), false);
  const Uid uid = next_uid();
  adapters_[uid] = {.uid = uid, .name = m.name};
  names_[m.name] = uid;
  reply_.uid = uid;
}

void NaiveScheduler::answer(const message::Unload& m) {
  const Uid uid = NaiveScheduler::uid_of(m.name);
  if (uid == kBaseUid) {
    reply_.status = Status::unknown;
  } else {
    retire(adapters_.at(uid), m.abort_requests);
  }
}

void NaiveScheduler::retire(Adapter& a, bool aborts) {
  a.retiring = true;
  a.pinned = false;
  names_.erase(a.name);
  std::vector<uint64_t> ids;
  for (const auto& [id, r] : requests_) {
    if (r.uid == a.uid) ids.push_back(id);
  }
  for (const uint64_t id : aborts ? ids : std::vector<uint64_t>{}) answer(message::Abort{id});
  unload_if_done(a);
}

bool NaiveScheduler::may_unload(const Adapter& a) const { return a.num_live == 0; }

void NaiveScheduler::unload_if_done(Adapter& a) {
  if (!a.retiring || a.unloaded || a.loading || a.copying || !may_unload(a)) return;
  a.unloaded = true;
  a.on_cpu = false;
  if (a.slot != kNoSlot) slots_[size_t(a.slot)].owner = kBaseUid;
  a.slot = kNoSlot;
  add({.kind = Event::Kind::unloaded, .uid = a.uid});
}

// One slot is always left to move.
void NaiveScheduler::answer(const message::Pin& m) {
  const Uid uid = NaiveScheduler::uid_of(m.name);
  const auto num_pinned =
      std::ranges::count_if(adapters_, [](const auto& entry) { return entry.second.pinned; });
  if (uid == kBaseUid) {
    reply_.status = Status::unknown;
  } else if (!adapters_.at(uid).pinned && num_pinned + 1 >= limits_.max_loras) {
    reply_.status = Status::busy;
  } else {
    adapters_.at(uid).pinned = true;
  }
}

void NaiveScheduler::answer(const message::Unpin& m) {
  const Uid uid = NaiveScheduler::uid_of(m.name);
  if (uid == kBaseUid) {
    reply_.status = Status::unknown;
  } else {
    adapters_.at(uid).pinned = false;
  }
}

void NaiveScheduler::answer(const message::LoadDone& m) {
  Adapter& a = adapters_.at(m.uid);
  a.loading = false;
  a.on_cpu = m.ok;
  if (!m.ok) give_up(a);
  unload_if_done(a);
}

void NaiveScheduler::give_up(Adapter& a) {
  add({.kind = Event::Kind::give_up, .uid = a.uid});
  a.pinned = false;
  std::vector<uint64_t> ids;
  for (const auto& [id, r] : requests_) {
    if (r.uid == a.uid) ids.push_back(id);
  }
  for (const uint64_t id : ids) end(requests_.at(id), FinishReason::error);
}

void NaiveScheduler::answer(const message::CopyDone& m) {
  Adapter& a = adapters_.at(m.uid);
  a.copying = false;
  unload_if_done(a);
}

bool NaiveScheduler::in_flight(Uid uid) const {
  return std::ranges::count(step_, uid, &check::Row::uid) > 0;
}

bool NaiveScheduler::holds_slot(const Adapter& a) const {
  const auto runs = [&](const auto& entry) {
    return entry.second.uid == a.uid && entry.second.running;
  };
  return in_flight(a.uid) || std::ranges::any_of(requests_, runs);
}

bool NaiveScheduler::may_leave_slot(const Adapter& a) const {
  return !a.copying && !a.pinned && !holds_slot(a);
}

bool NaiveScheduler::may_leave_cpu(const Adapter& a) const { return a.on_cpu && may_leave_slot(a); }

bool NaiveScheduler::has_cpu_place() const {
  const auto is_there = [](const auto& entry) {
    return entry.second.on_cpu || entry.second.loading;
  };
  return std::ranges::count_if(adapters_, is_there) < limits_.max_cpu_loras;
}

bool NaiveScheduler::goes_before(const Adapter& a, const Adapter& b) const {
  return a.last_used != b.last_used ? a.last_used < b.last_used : a.uid < b.uid;
}

bool NaiveScheduler::is_ready(const Request& r) const {
  if (r.uid == kBaseUid) return true;
  const Adapter& a = adapters_.at(r.uid);
  return a.slot != kNoSlot && !a.copying;
}

std::vector<Uid> NaiveScheduler::wanted() const {
  std::vector<Uid> uids;
  const auto want = [&](Uid uid) {
    const bool is_new = uid != kBaseUid && std::ranges::count(uids, uid) == 0;
    if (is_new && int32_t(uids.size()) < limits_.max_loras) uids.push_back(uid);
  };
  for (const auto& [uid, a] : adapters_) {
    if (holds_slot(a)) want(uid);
  }
  for (const auto& [uid, a] : adapters_) {
    if (a.pinned) want(uid);
  }
  for (const Request* r : const_cast<NaiveScheduler*>(this)->in_order(false)) want(r->uid);
  return uids;
}

void NaiveScheduler::start_transfers() {
  const std::vector<Uid> uids = wanted();
  for (const Uid uid : uids) {
    Adapter& a = adapters_.at(uid);
    a.last_used = num_plans_;
    if (a.on_cpu && a.slot == kNoSlot) start_copy(a, uids);
    if (!a.on_cpu && !a.loading) start_load(a, uids);
  }
}

void NaiveScheduler::start_load(Adapter& a, const std::vector<Uid>& wanted) {
  const auto loads = [](const auto& entry) { return entry.second.loading; };
  if (std::ranges::count_if(adapters_, loads) >= limits_.num_load_workers) return;
  if (!has_cpu_place()) {
    Adapter* victim = nullptr;
    for (auto& [uid, other] : adapters_) {
      if (!may_leave_cpu(other) || std::ranges::count(wanted, uid) > 0) continue;
      if (victim == nullptr || goes_before(other, *victim)) victim = &other;
    }
    if (victim == nullptr) return;
    add({.kind = Event::Kind::evict, .uid = victim->uid, .slot = victim->slot, .from_cpu = true});
    if (victim->slot != kNoSlot) slots_[size_t(victim->slot)].owner = kBaseUid;
    victim->slot = kNoSlot;
    victim->on_cpu = false;
  }
  a.loading = true;
  add({.kind = Event::Kind::load, .uid = a.uid});
}

int32_t NaiveScheduler::find_slot(const std::vector<Uid>& wanted) {
  Adapter* victim = nullptr;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].owner == kBaseUid) return int32_t(i);
    Adapter& owner = adapters_.at(slots_[i].owner);
    if (!may_leave_slot(owner) || std::ranges::count(wanted, owner.uid) > 0) continue;
    if (victim == nullptr || goes_before(owner, *victim)) victim = &owner;
  }
  if (victim == nullptr) return kNoSlot;
  const int32_t slot = victim->slot;
  add({.kind = Event::Kind::evict, .uid = victim->uid, .slot = slot});
  slots_[size_t(slot)].owner = kBaseUid;
  victim->slot = kNoSlot;
  return slot;
}

void NaiveScheduler::start_copy(Adapter& a, const std::vector<Uid>& wanted) {
  const int32_t index = find_slot(wanted);
  if (index == kNoSlot) return;
  Slot& slot = slots_[size_t(index)];
  slot = {.owner = a.uid, .generation = next_generation(slot)};
  a.slot = index;
  a.copying = true;
  add({.kind = Event::Kind::copy, .uid = a.uid, .slot = index, .generation = slot.generation});
}

// --- blocks --------------------------------------------------------------------------------------

NaiveScheduler::Key NaiveScheduler::key_of(const Request& r, uint32_t num_blocks) const {
  const auto end = r.tokens.begin() + int64_t(num_blocks) * limits_.block_size;
  return {namespace_of(r), {r.tokens.begin(), end}};
}

std::vector<uint32_t> NaiveScheduler::match(const Request& r) const {
  std::vector<uint32_t> found;
  if (!r.prefix_cache) return found;
  const uint32_t most = hit_limit(r) / limits_.block_size;
  while (found.size() < most) {
    const auto block = published_.find(key_of(r, uint32_t(found.size()) + 1));
    if (block == published_.end()) break;
    found.push_back(block->second);
  }
  return found;
}

void NaiveScheduler::hold(uint32_t block) {
  if (num_users_[block]++ == 0) std::erase(free_, block);
}

void NaiveScheduler::unpublish(uint32_t block) {
  const auto key = key_of_block_.find(block);
  if (key == key_of_block_.end()) return;
  published_.erase(key->second);
  key_of_block_.erase(key);
}

std::optional<uint32_t> NaiveScheduler::take_block() {
  if (free_.empty()) return std::nullopt;
  const uint32_t block = free_.front();
  free_.pop_front();
  unpublish(block);
  num_users_[block] = 1;
  return block;
}

void NaiveScheduler::publish(const Request& r) {
  if (!leaves_blocks(r)) return;
  for (uint32_t i = 0; (i + 1) * limits_.block_size <= num_to_publish(r); ++i) {
    const uint32_t block = r.blocks[i];
    if (key_of_block_.contains(block)) continue;
    const auto [entry, is_new] = published_.try_emplace(key_of(r, i + 1), block);
    if (is_new) key_of_block_[block] = entry->first;
  }
}

// The end of a table is taken again first: what is in front may be somebody's prefix.
void NaiveScheduler::release(const std::vector<uint32_t>& blocks) {
  for (size_t i = blocks.size(); i-- > 0;) {
    if (--num_users_[blocks[i]] == 0) free_.push_back(blocks[i]);
  }
}

void NaiveScheduler::release_blocks(Request& r) {
  release(r.blocks);
  r.blocks.clear();
}

// --- requests ------------------------------------------------------------------------------------

NaiveScheduler::Request* NaiveScheduler::find(uint64_t id) {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : &found->second;
}

void NaiveScheduler::answer(const message::Submit& m) {
  const uint64_t total = m.prompt.size() + m.max_new_tokens;
  const uint64_t num_blocks = (total - 1 + limits_.block_size - 1) / limits_.block_size;
  const Uid uid = m.adapter.empty() ? kBaseUid : uid_of(m.adapter);
  if (m.prompt.empty() || find(m.id) != nullptr || total > limits_.max_model_len ||
      num_blocks > limits_.num_blocks - 1) {
    reply_.status = Status::refused;
  } else if (!m.adapter.empty() && uid == kBaseUid) {
    reply_.status = Status::unknown;
  } else {
    requests_[m.id] = {.id = m.id,
                       .serial = next_serial_++,
                       .uid = uid,
                       .name = m.adapter,
                       .priority = m.priority,
                       .tokens = m.prompt,
                       .num_prompt = uint32_t(m.prompt.size()),
                       .max_new_tokens = m.max_new_tokens,
                       .stop_tokens = m.stop_tokens,
                       .prefix_cache = m.prefix_cache};
    if (uid != kBaseUid) ++adapters_.at(uid).num_live;
  }
}

void NaiveScheduler::answer(const message::Abort& m) {
  Request* const r = find(m.id);
  if (r == nullptr) {
    reply_.status = Status::unknown;
  } else if (r->in_flight) {
    r->aborted = true;
  } else {
    end(*r, FinishReason::abort);
  }
}

void NaiveScheduler::end(Request& r, FinishReason reason) {
  add({.kind = Event::Kind::finish,
       .id = r.id,
       .reason = reason,
       .num_generated = r.num_generated()});
  release_blocks(r);
  const Uid uid = r.uid;
  requests_.erase(r.id);
  if (uid == kBaseUid) return;
  --adapters_.at(uid).num_live;
  unload_if_done(adapters_.at(uid));
}

bool NaiveScheduler::comes_before(const Request& a, const Request& b) const {
  return a.priority != b.priority ? a.priority < b.priority : a.serial < b.serial;
}

std::vector<NaiveScheduler::Request*> NaiveScheduler::in_order(bool running) {
  std::vector<Request*> order;
  for (auto& [id, r] : requests_) {
    if (r.running == running) order.push_back(&r);
  }
  std::ranges::sort(order,
                    [&](const Request* a, const Request* b) { return comes_before(*a, *b); });
  return order;
}

void NaiveScheduler::preempt(Request& r) {
  add({.kind = Event::Kind::preempt, .id = r.id});
  release_blocks(r);
  r.running = false;
  r.num_computed = 0;
  preempted_now_ = true;
}

uint32_t NaiveScheduler::num_tokens_now(const Request& r) const {
  return std::min(uint32_t(r.tokens.size()) - r.num_computed, budget_);
}

bool NaiveScheduler::samples(const Request& r, uint32_t num_tokens) const {
  return r.num_computed + num_tokens == r.tokens.size();
}

// All the blocks that it needs, or none.
bool NaiveScheduler::grow(Request& r, uint32_t num_tokens) {
  const uint32_t end = r.num_computed + num_tokens;
  const size_t needed = (end + limits_.block_size - 1) / limits_.block_size;
  if (needed > r.blocks.size() && needed - r.blocks.size() > free_.size()) return false;
  while (r.blocks.size() < needed) r.blocks.push_back(*take_block());
  return true;
}

void NaiveScheduler::add_row(Request& r, uint32_t num_tokens) {
  check::Row row{.id = r.id,
                 .uid = r.uid,
                 .start = r.num_computed,
                 .num_tokens = num_tokens,
                 .samples = samples(r, num_tokens),
                 .blocks = r.blocks};
  if (r.uid != kBaseUid) {
    row.slot = adapters_.at(r.uid).slot;
    row.generation = row.slot == kNoSlot ? 0 : slots_[size_t(row.slot)].generation;
  }
  reply_.rows.push_back(row);
  r.in_flight = true;
  budget_ -= std::min(budget_, num_tokens);
}

// The oldest first; whoever finds no block takes those of the latest.
void NaiveScheduler::plan_running() {
  std::vector<Request*> running = in_order(true);
  while (!running.empty()) {
    Request& r = *running.front();
    const uint32_t num_tokens = num_tokens_now(r);
    if (num_tokens == 0 && budget_ == 0) return;
    if (grow(r, num_tokens)) {
      add_row(r, num_tokens);
      running.erase(running.begin());
    } else {
      preempt(*running.back());
      running.pop_back();
    }
  }
}

bool NaiveScheduler::admit(Request& r) {
  const std::vector<uint32_t> found = match(r);
  for (const uint32_t block : found) hold(block);
  r.blocks = found;
  r.num_computed = uint32_t(found.size()) * limits_.block_size;
  const uint32_t num_tokens = num_tokens_now(r);
  if (!grow(r, num_tokens)) {
    undo(r.blocks);
    r.blocks.clear();
    r.num_computed = 0;
    return false;
  }
  r.running = true;
  add_row(r, num_tokens);
  return true;
}

// Those whose adapters are not there yet are passed over, but not for ever.
void NaiveScheduler::plan_waiting() {
  std::vector<Request*> passed;
  for (Request* r : in_order(false)) {
    const size_t num_running = in_order(true).size();
    if (budget_ == 0 || num_running >= row_limit() || preempted_now_) return;
    if (!is_ready(*r)) {
      if (is_barrier(*r)) return;
      passed.push_back(r);
      continue;
    }
    if (!admit(*r)) return;
    for (Request* before : passed) ++before->num_skipped;
    passed.clear();
  }
}

void NaiveScheduler::answer(const message::Plan& /*m*/) {
  ++num_plans_;
  budget_ = limits_.max_num_batched_tokens;
  preempted_now_ = false;
  plan_running();
  plan_waiting();
  step_ = reply_.rows;
  start_transfers();
}

void NaiveScheduler::answer(const message::Commit& m) {
  const std::vector<check::Row> step = std::exchange(step_, {});
  size_t next = 0;
  for (const check::Row& row : step) {
    const int32_t token = row.samples ? m.sampled[next++].token : check::kNoToken;
    Request* const r = find(row.id);
    if (r == nullptr) continue;
    r->in_flight = false;
    if (r->aborted) {
      end(*r, FinishReason::abort);
      continue;
    }
    r->num_computed = row.start + row.num_tokens;
    if (row.samples) r->tokens.push_back(token);
    publish(*r);
    if (!row.samples) continue;
    if (std::ranges::count(r->stop_tokens, token) > 0) {
      end(*r, FinishReason::stop);
    } else if (r->num_generated() >= r->max_new_tokens ||
               r->tokens.size() >= limits_.max_model_len) {
      end(*r, FinishReason::length);
    }
  }
}

}  // namespace loratory::zoo
