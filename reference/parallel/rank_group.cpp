#include "reference/parallel/rank_group.hpp"

#include <fmt/format.h>

#include "reference/base/input_error.hpp"

namespace loratory::reference {

RankGroup::RankGroup(std::vector<LayerShards> layers, int32_t max_loras, Dtype dtype)
    : layers_(std::move(layers)), slots_(size_t(max_loras)) {
  LORATORY_ASSERT(!layers_.empty(), "a group has layers");
  for (int64_t p = 0; p < layers_[0].tp_size(); ++p) {
    TpRank rank{.staged = {}, .registry = {}, .slots = slots_, .buffers = {}};
    for (const LayerShards& layer : layers_) {
      LORATORY_ASSERT(layer.tp_size() == layers_[0].tp_size(), "layers of one group");
      rank.buffers.emplace_back(layer, p, max_loras, dtype);
    }
    ranks_.push_back(std::move(rank));
  }
  inboxes_.resize(ranks_.size());
}

void RankGroup::submit(Command command) {
  const bool has_slot = command.kind == CommandKind::copy || command.kind == CommandKind::evict;
  if (has_slot && (command.slot < 0 || command.slot >= int32_t(slots_.size()))) {
    throw InputError("slot", fmt::format("{} is outside [0, {})", command.slot, slots_.size()));
  }
  if (command.kind != CommandKind::evict && command.uid == 0) {
    throw InputError("uid", "0 is the base model");
  }
  if (command.kind == CommandKind::load && !command.adapter) {
    throw InputError("adapter", "is missing");
  }
  queue_.push_back(std::move(command));
  if (queue_.size() == 1) begin_commands();
}

int32_t RankGroup::slot_of(uint64_t uid) const {
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].uid == uid) return int32_t(s);
  }
  return -1;
}

bool RankGroup::is_refused(const Command& command) const {
  switch (command.kind) {
    case CommandKind::load:
      return is_visible(command.uid);
    case CommandKind::copy:
      return !is_visible(command.uid) || slot_of(command.uid) >= 0 ||
             slots_[size_t(command.slot)].uid != 0;
    case CommandKind::evict:
      return slots_[size_t(command.slot)].uid == 0;
    case CommandKind::unregister:
      break;
  }
  return !is_visible(command.uid);
}

// Starts the first command of the queue that is not refused.
void RankGroup::begin_commands() {
  while (!queue_.empty() && is_refused(queue_.front())) {
    outcomes_.push_back(Outcome::refused);
    queue_.pop_front();
  }
  if (!queue_.empty()) begin(queue_.front());
}

void RankGroup::begin(const Command& command) {
  const uint64_t uid = command.uid;
  switch (command.kind) {
    case CommandKind::load:
      send({.task = Task::stage, .uid = uid});
      break;
    case CommandKind::copy:
      send({Task::write, uid, command.slot, ++slots_[size_t(command.slot)].generation});
      break;
    case CommandKind::evict:
      slots_[size_t(command.slot)].uid = 0;
      send({Task::clear, 0, command.slot, ++slots_[size_t(command.slot)].generation});
      break;
    case CommandKind::unregister: {
      const int32_t slot = slot_of(uid);
      visible_.erase(uid);
      if (slot < 0) {
        send({.task = Task::erase, .uid = uid});
      } else {
        slots_[size_t(slot)].uid = 0;
        send({Task::clear, uid, slot, ++slots_[size_t(slot)].generation});
      }
      break;
    }
  }
}

void RankGroup::send(Message message) {
  phase_ = message;
  num_unanswered_ = tp_size();
  some_failed_ = false;
  for (auto& inbox : inboxes_) inbox.push_back(message);
}

void RankGroup::work(int64_t p, bool fails) {
  LORATORY_ASSERT(has_work(p), "a message for this tp_rank");
  const Message message = inboxes_[size_t(p)].front();
  inboxes_[size_t(p)].pop_front();
  const bool can_fail = message.task == Task::stage || message.task == Task::write;
  const bool succeeded = carry_out(ranks_[size_t(p)], p, message) && !(fails && can_fail);
  some_failed_ = some_failed_ || !succeeded;
  if (--num_unanswered_ == 0) phase_done();
}

void RankGroup::finish() {
  while (!idle()) {
    for (int64_t p = 0; p < tp_size(); ++p) {
      if (has_work(p)) work(p);
    }
  }
}

// Every tp_rank has answered: the next phase, or the end of the command.
void RankGroup::phase_done() {
  const Command& command = queue_.front();
  switch (phase_.task) {
    case Task::stage:
      send({.task = some_failed_ ? Task::discard : Task::publish, .uid = command.uid});
      return;
    case Task::publish:
      visible_.insert(command.uid);
      return end(Outcome::done);
    case Task::discard:
      return end(Outcome::failed);
    case Task::write:
      if (some_failed_) {
        send({Task::clear, 0, phase_.slot, ++slots_[size_t(phase_.slot)].generation});
        return;
      }
      slots_[size_t(phase_.slot)].uid = command.uid;
      return end(Outcome::done);
    case Task::clear:
      if (command.kind == CommandKind::unregister) {
        send({.task = Task::erase, .uid = command.uid});
        return;
      }
      return end(command.kind == CommandKind::copy ? Outcome::failed : Outcome::done);
    case Task::erase:
      return end(Outcome::done);
  }
}

void RankGroup::end(Outcome outcome) {
  outcomes_.push_back(outcome);
  queue_.pop_front();
  begin_commands();
}

void RankGroup::stage(TpRank& rank, int64_t p, uint64_t uid) const {
  const MasterAdapter& master = *queue_.front().adapter;
  if (master.layers.size() != layers_.size()) {
    throw InputError("adapter",
                     fmt::format("{} layers for {}", master.layers.size(), layers_.size()));
  }
  const Dtype dtype = rank.buffers[0].slices[0].a.dtype();
  TpRank::Weights weights;
  for (size_t i = 0; i < layers_.size(); ++i) {
    weights.push_back(slice_pairs(layers_[i], p, master.layers[i], dtype));
  }
  rank.staged[uid] = std::move(weights);
}

// False: this tp_rank could not.
bool RankGroup::carry_out(TpRank& rank, int64_t p, const Message& message) const {
  switch (message.task) {
    case Task::stage:
      try {
        stage(rank, p, message.uid);
      } catch (const InputError&) {
        return false;
      }
      break;
    case Task::publish:
      rank.registry[message.uid] = std::move(rank.staged.at(message.uid));
      rank.staged.erase(message.uid);
      break;
    case Task::discard:
      rank.staged.erase(message.uid);
      break;
    case Task::write: {
      const TpRank::Weights& weights = rank.registry.at(message.uid);
      for (size_t i = 0; i < weights.size(); ++i) {
        rank.buffers[i].write_slot(message.slot, weights[i]);
      }
      rank.slots[size_t(message.slot)] = {message.uid, message.generation};
      break;
    }
    case Task::clear:
      for (LocalBuffers& buffers : rank.buffers) buffers.clear_slot(message.slot);
      rank.slots[size_t(message.slot)] = {0, message.generation};
      break;
    case Task::erase:
      rank.registry.erase(message.uid);
      break;
  }
  return true;
}

std::vector<LocalBuffers> RankGroup::buffers(size_t layer) const {
  std::vector<LocalBuffers> out;
  for (const TpRank& rank : ranks_) out.push_back(rank.buffers[layer]);
  return out;
}

}  // namespace loratory::reference
