#include "check/schedulers/world.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace loratory::check {

World::World(const Limits& limits, const Claims& claims)
    : limits_(limits),
      claims_(claims),
      slots_(size_t(limits.max_loras)),
      written_(size_t{limits.num_blocks} * limits.block_size) {}

const World::Adapter* World::adapter(Uid uid) const {
  const auto found = adapters_.find(uid);
  return found == adapters_.end() ? nullptr : &found->second;
}

Uid World::uid_of(const std::string& name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? kBaseUid : found->second;
}

int32_t World::ready_slot_of(Uid uid) const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].owner == uid && slots_[i].ready) return int32_t(i);
  }
  return kNoSlot;
}

const World::Request* World::request(uint64_t id) const {
  const auto found = live_.find(id);
  return found == live_.end() ? nullptr : &requests_[found->second];
}

bool World::is_moving() const {
  return std::ranges::any_of(
      adapters_, [](const auto& entry) { return entry.second.loading || entry.second.copying; });
}

int64_t World::num_live_of(Uid uid) const {
  return std::ranges::count_if(
      live_, [&](const auto& entry) { return requests_[entry.second].uid == uid; });
}

const World::Step* World::reader_of_slot(int32_t slot) const {
  for (const Step& step : steps_) {
    if (!step.started) continue;
    for (const Row& row : step.rows) {
      if (row.uid != kBaseUid && row.slot == slot) return &step;
    }
  }
  return nullptr;
}

// --- messages -------------------------------------------------------------------------------

void World::said(const Message& message) {
  if (const auto* m = message.get_if<message::Abort>()) {
    if (live_.contains(m->id)) requests_[live_.at(m->id)].aborted = true;
  } else if (const auto* load = message.get_if<message::LoadDone>()) {
    Adapter& a = adapters_.at(load->uid);
    a.loading = false;
    a.on_cpu = load->ok;
    a.num_failed_loads += int64_t(!load->ok);
  } else if (const auto* copy = message.get_if<message::CopyDone>()) {
    adapters_.at(copy->uid).copying = false;
    slots_[size_t(copy->slot)].ready = true;
  } else if (const auto* commit = message.get_if<message::Commit>()) {
    end_step(*commit);
  } else if (const auto* unload = message.get_if<message::Unload>()) {
    const Uid uid = uid_of(unload->name);
    if (uid == kBaseUid || !unload->abort_requests) return;
    for (const auto& [id, serial] : live_) {
      if (requests_[serial].uid == uid) requests_[serial].aborted = true;
    }
  }
}

void World::heard(const Message& message, const Reply& reply) {
  if (reply.status != Status::ok) return;
  if (const auto* m = message.get_if<message::Register>()) {
    retire(m->name);
    add_adapter(m->name, reply.uid);
  } else if (const auto* unload = message.get_if<message::Unload>()) {
    retire(unload->name);
  } else if (const auto* pin = message.get_if<message::Pin>()) {
    set_pinned(pin->name, true);
  } else if (const auto* unpin = message.get_if<message::Unpin>()) {
    set_pinned(unpin->name, false);
  } else if (const auto* submit = message.get_if<message::Submit>()) {
    add_request(*submit);
  }
}

void World::add_adapter(const std::string& name, Uid uid) {
  names_[name] = uid;
  adapters_[uid] = {.uid = uid, .name = name, .on_cpu = !claims_.loads};
}

void World::set_pinned(const std::string& name, bool pinned) {
  const auto found = adapters_.find(uid_of(name));
  if (found != adapters_.end()) found->second.pinned = pinned;
}

void World::retire(const std::string& name) {
  const Uid uid = uid_of(name);
  if (uid == kBaseUid) return;
  adapters_.at(uid).retiring = true;
  adapters_.at(uid).pinned = false;
  names_.erase(name);
}

void World::add_request(const message::Submit& m) {
  const Uid uid = m.adapter.empty() ? kBaseUid : uid_of(m.adapter);
  const size_t serial = requests_.size();
  requests_.push_back({.serial = serial,
                       .id = m.id,
                       .uid = uid,
                       .priority = m.priority,
                       .tokens = m.prompt,
                       .num_prompt = uint32_t(m.prompt.size()),
                       .max_new_tokens = m.max_new_tokens,
                       .stop_tokens = m.stop_tokens,
                       .prefix_cache = m.prefix_cache});
  if (uid != kBaseUid) requests_.back().failed_loads_before = adapters_.at(uid).num_failed_loads;
  live_[m.id] = serial;
}

// --- events ---------------------------------------------------------------------------------

void World::take(const Event& e) {
  switch (e.kind) {
    case Event::Kind::load:
      adapters_.at(e.uid).loading = true;
      return;
    case Event::Kind::copy:
      adapters_.at(e.uid).copying = true;
      slots_[size_t(e.slot)] = {.owner = e.uid, .ready = false, .generation = e.generation};
      return;
    case Event::Kind::evict:
      if (e.from_cpu) adapters_.at(e.uid).on_cpu = false;
      drop_slots_of(e.uid);
      return;
    case Event::Kind::give_up:
      for (Step& step : steps_) {
        if (!step.started) step.given_up.push_back(e.uid);
      }
      adapters_.at(e.uid).pinned = false;
      return;
    case Event::Kind::preempt: {
      Request& r = requests_[live_.at(e.id)];
      r.has_table = false;
      r.table.clear();
      r.num_planned = 0;
      return;
    }
    case Event::Kind::finish:
      return end_request(e.id);
    case Event::Kind::unloaded:
      adapters_.at(e.uid).unloaded = true;
      adapters_.at(e.uid).on_cpu = false;
      return drop_slots_of(e.uid);
  }
}

// An adapter has one slot; a copy into a second one has made the first its own no less.
void World::drop_slots_of(Uid uid) {
  for (Slot& slot : slots_) {
    if (slot.owner == uid) slot = {.generation = slot.generation};
  }
}

void World::end_request(uint64_t id) {
  Request& r = requests_[live_.at(id)];
  r.live = r.has_table = false;
  r.table.clear();
  r.must_end.reset();
  live_.erase(id);
}

// --- steps ----------------------------------------------------------------------------------

std::string World::cannot_take(const Reply& reply) const {
  for (const Row& row : reply.rows) {
    const uint64_t end = uint64_t{row.start} + row.num_tokens;
    const auto is_no_block = [&](uint32_t block) { return block >= limits_.num_blocks; };
    if (request(row.id) == nullptr) return fmt::format("request {} is not live", row.id);
    if (adapter(row.uid) == nullptr && row.uid != kBaseUid) {
      return fmt::format("there is no uid {}", row.uid);
    }
    if (row.slot < kNoSlot || row.slot >= limits_.max_loras) {
      return fmt::format("there is no slot {}", row.slot);
    }
    if (row.blocks.size() * uint64_t{limits_.block_size} < end) {
      return fmt::format("the table of request {} is too short", row.id);
    }
    if (std::ranges::any_of(row.blocks, is_no_block)) {
      return fmt::format("the table of request {} has a block that there is not", row.id);
    }
  }
  return {};
}

void World::take_plan(int64_t number, const Reply& reply) {
  if (reply.rows.empty()) return;
  Step step{.number = number, .rows = reply.rows, .requests = {}, .wait_for = reply.wait_for};
  for (const Row& row : reply.rows) {
    Request& r = requests_[live_.at(row.id)];
    step.requests.push_back(r.serial);
    r.has_run = r.has_table = true;
    r.table = row.blocks;
    r.num_planned = row.start + row.num_tokens;
    r.num_pending += uint32_t(row.samples);
    ++r.num_in_flight;
    for (uint32_t p = row.start; p < row.start + row.num_tokens; ++p) {
      const size_t block = row.blocks[p / limits_.block_size];
      written_[block * limits_.block_size + p % limits_.block_size] = {r.serial, p, number};
    }
  }
  steps_.push_back(std::move(step));
}

bool World::waits(const Step& step) const {
  return std::ranges::any_of(step.wait_for, [&](Uid uid) {
    return !step.leaves_out(uid) && ready_slot_of(uid) == kNoSlot;
  });
}

std::vector<const World::Step*> World::start_steps() {
  std::vector<const Step*> started;
  for (Step& step : steps_) {
    if (step.started) continue;
    if (waits(step)) break;
    step.started = true;
    for (Row& row : step.rows) {
      if (std::ranges::count(step.wait_for, row.uid) == 0) continue;
      row.slot = step.leaves_out(row.uid) ? kNoSlot : ready_slot_of(row.uid);
      if (row.slot != kNoSlot) row.generation = slots_[size_t(row.slot)].generation;
    }
    started.push_back(&step);
  }
  return started;
}

// What a row computed that was left out is no KV. What a request that has ended sampled is nobody's
// token.
void World::end_step(const message::Commit& commit) {
  const Step step = std::move(steps_.front());
  steps_.pop_front();
  size_t next_sampled = 0;
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const Row& row = step.rows[i];
    Request& r = requests_[step.requests[i]];
    --r.num_in_flight;
    r.num_pending -= uint32_t(row.samples);
    const int32_t token = row.samples ? commit.sampled[next_sampled++].token : kNoToken;
    const bool is_left_out = row.uid != kBaseUid && row.slot == kNoSlot;
    if (is_left_out) {
      r.was_left_out = true;
      for (Written& w : written_) {
        if (w.request == r.serial && w.step == step.number) w = {};
      }
    }
    if (!row.samples || is_left_out || !r.live || r.aborted) continue;
    r.tokens.push_back(token);
    if (std::ranges::count(r.stop_tokens, token) > 0) {
      r.must_end = FinishReason::stop;
    } else if (r.num_generated() >= r.max_new_tokens || r.tokens.size() >= limits_.max_model_len) {
      r.must_end = FinishReason::length;
    }
  }
}

}  // namespace loratory::check
