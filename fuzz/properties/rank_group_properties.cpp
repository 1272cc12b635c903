// A tensor-parallel group under any schedule and any failures: P29, P30.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "fuzz/support/lora_case.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "reference/parallel/rank_group.hpp"

namespace loratory::reference {
namespace {

constexpr int kMaxCommands = 120;
constexpr uint64_t kNumAdapters = 5;

// Adapters in host memory, and a copy of their bytes from before anything happened.
class Masters {
 public:
  Masters(sim::Draw& draw, const std::vector<LayerShards>& layers) {
    for (uint64_t i = 0; i < kNumAdapters; ++i) {
      adapters_.push_back(make_adapter(draw, layers, /*fits=*/i != 0 || draw.one_in(2)));
    }
    for (const auto& tensor : tensors_) before_.push_back(tensor->bytes());
  }

  std::shared_ptr<const MasterAdapter> of(uint64_t uid) const {
    return adapters_[uid % kNumAdapters];
  }
  bool fits(uint64_t uid) const { return fits_[uid % kNumAdapters]; }
  bool unchanged() const {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i]->bytes() != before_[i]) return false;
    }
    return true;
  }

 private:
  std::shared_ptr<const MasterAdapter> make_adapter(sim::Draw& draw,
                                                    const std::vector<LayerShards>& layers,
                                                    bool fits) {
    MasterAdapter master;
    for (const LayerShards& layer : layers) {
      LoraPairs pairs;
      for (const int64_t num_out : layer.num_out) {
        const int64_t rank = draw.between(1, layer.parallel.max_lora_rank);
        const Tensor& a = random_tensor(draw, {rank, layer.num_in});
        const Tensor& b = random_tensor(draw, {fits ? num_out : num_out + 1, rank});
        pairs.emplace_back(LoraPair{a.view(), b.view(), float(draw.between(1, 4))});
        if (fits && draw.one_in(4)) pairs.back().reset();
      }
      master.layers.push_back(std::move(pairs));
    }
    fits_.push_back(fits);
    return std::make_shared<const MasterAdapter>(std::move(master));
  }

  const Tensor& random_tensor(sim::Draw& draw, Extents shape) {
    tensors_.push_back(std::make_unique<Tensor>(Dtype::bf16, std::move(shape)));
    for (int64_t i = 0; i < num_numbers(*tensors_.back()); ++i) {
      set_number(*tensors_.back(), i, double(draw.between(-100, 100)));
    }
    return *tensors_.back();
  }

  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::vector<std::vector<std::byte>> before_;
  std::vector<std::shared_ptr<const MasterAdapter>> adapters_;
  std::vector<bool> fits_;
};

std::vector<LayerShards> random_layers(sim::Draw& draw) {
  const int64_t p = int64_t(1) << draw(4);
  const ParallelConfig parallel{
      .tp_size = p, .fully_sharded = draw.one_in(2), .max_lora_rank = p * draw.between(1, 2)};
  const QkvSizes qkv{.num_heads = 8, .num_kv_heads = 2, .head_dim = 2, .q_size = 16};
  return {draw.one_in(2) ? qkv_shards(parallel, 3, qkv) : column_shards(parallel, 3, 8),
          row_shards(parallel, 8, 8)};
}

std::vector<Command> random_commands(sim::Draw& draw, int num_commands, int32_t max_loras,
                                     const Masters& masters) {
  std::vector<Command> commands;
  for (int i = 0; i < num_commands; ++i) {
    Command command{.kind = draw.one_of({CommandKind::load, CommandKind::load, CommandKind::copy,
                                         CommandKind::copy, CommandKind::copy, CommandKind::evict,
                                         CommandKind::unregister})};
    command.uid = uint64_t(draw.between(1, kNumAdapters + 1));
    command.slot = int32_t(draw(max_loras));
    if (command.kind == CommandKind::load) command.adapter = masters.of(command.uid);
    commands.push_back(std::move(command));
  }
  return commands;
}

// Whether tp_rank p fails in command k, whatever the schedule.
bool injected(uint64_t seed, size_t k, int64_t p, int64_t tp_size) {
  return random_bits(seed, 1000 + k, uint64_t(p)) % uint64_t(8 * tp_size) == 0;
}

// What the commands should come to: one after the other, whole or not at all.
struct Model {
  std::set<uint64_t> registered;
  std::vector<SlotState> slots;
  std::vector<Outcome> outcomes;

  int64_t slot_of(uint64_t uid) const {
    const auto at =
        std::find_if(slots.begin(), slots.end(), [&](const SlotState& s) { return s.uid == uid; });
    return at == slots.end() ? -1 : at - slots.begin();
  }
  void clear(size_t slot) { slots[slot] = {0, slots[slot].generation + 1}; }

  Outcome apply(const Command& c, bool fails, bool fits) {
    const bool known = registered.contains(c.uid);
    SlotState& slot = slots[size_t(c.slot)];
    switch (c.kind) {
      case CommandKind::load:
        if (known) return Outcome::refused;
        if (fails || !fits) return Outcome::failed;
        registered.insert(c.uid);
        return Outcome::done;
      case CommandKind::copy:
        if (!known || slot_of(c.uid) >= 0 || slot.uid != 0) return Outcome::refused;
        slot = {fails ? 0 : c.uid, slot.generation + (fails ? 2 : 1)};
        return fails ? Outcome::failed : Outcome::done;
      case CommandKind::evict:
        if (slot.uid == 0) return Outcome::refused;
        clear(size_t(c.slot));
        return Outcome::done;
      case CommandKind::unregister:
        break;
    }
    if (!known) return Outcome::refused;
    if (slot_of(c.uid) >= 0) clear(size_t(slot_of(c.uid)));
    registered.erase(c.uid);
    return Outcome::done;
  }
};

bool same_pairs(const TpRank::Weights& left, const TpRank::Weights& right) {
  bool same = left.size() == right.size();
  for (size_t i = 0; same && i < left.size(); ++i) {
    same = left[i].size() == right[i].size();
    for (size_t j = 0; same && j < left[i].size(); ++j) {
      const LocalPair &l = left[i][j], &r = right[i][j];
      same = same_bits(l.a, r.a) && same_bits(l.b, r.b) && l.shrink_rank == r.shrink_rank &&
             l.expand_rank == r.expand_rank && l.scaling == r.scaling;
    }
  }
  return same;
}

struct Group {
  Group(const std::vector<LayerShards>& layers, const Masters& all_masters, int32_t max_loras)
      : masters(all_masters), group(layers, max_loras, Dtype::bf16) {
    for (int64_t p = 0; p < group.tp_size(); ++p) {
      cuts.emplace_back(kNumAdapters);
      for (uint64_t i = 0; i < kNumAdapters; ++i) {
        if (!masters.fits(i)) continue;
        for (size_t layer = 0; layer < layers.size(); ++layer) {
          cuts.back()[i].push_back(
              slice_pairs(layers[layer], p, masters.of(i)->layers[layer], Dtype::bf16));
        }
      }
    }
  }

  // What tp_rank p should hold of the uid: cut before anything happened.
  const TpRank::Weights& cut(int64_t p, uint64_t uid) const {
    return cuts[size_t(p)][uid % kNumAdapters];
  }

  // The slot holds exactly what cutting the master gives.
  bool slot_holds(const TpRank& rank, size_t slot, const TpRank::Weights& weights) const {
    for (size_t i = 0; i < weights.size(); ++i) {
      for (size_t j = 0; j < weights[i].size(); ++j) {
        const LocalSlice& slice = rank.buffers[i].slices[j];
        const LocalPair& pair = weights[i][j];
        const auto equal = [&](const Tensor& buffer, const Tensor& part) {
          return std::equal(part.bytes().begin(), part.bytes().end(),
                            buffer.bytes().begin() + int64_t(slot * part.bytes().size()));
        };
        const bool same_ranks = slice.shrink_ranks[slot] == pair.shrink_rank &&
                                slice.expand_ranks[slot] == pair.expand_rank &&
                                slice.scalings[slot] == pair.scaling;
        if (!same_ranks || !equal(slice.a, pair.a) || !equal(slice.b, pair.b)) return false;
      }
    }
    return true;
  }

  // What the leader promises now, every tp_rank holds now.
  bool promises_hold() const {
    for (int64_t p = 0; p < group.tp_size(); ++p) {
      const TpRank& rank = group.tp_rank(p);
      for (uint64_t uid = 1; uid <= kNumAdapters + 1; ++uid) {
        if (group.is_visible(uid) && !rank.registry.contains(uid)) return false;
      }
      for (size_t s = 0; s < group.slots().size(); ++s) {
        const SlotState& promised = group.slots()[s];
        if (promised.uid == 0) continue;
        if (rank.slots[s] != promised || !slot_holds(rank, s, cut(p, promised.uid))) return false;
      }
    }
    return true;
  }

  // Runs all commands; tp_ranks and submissions take turns as `schedule` says.
  void run(const std::vector<Command>& commands, uint64_t seed, sim::Draw schedule) {
    size_t next = 0;
    while (next < commands.size() || !group.idle()) {
      const int64_t p = schedule(group.tp_size() + 1);
      if (p == group.tp_size()) {
        if (next < commands.size()) group.submit(commands[next++]);
      } else if (group.has_work(p)) {
        group.work(p, injected(seed, group.outcomes().size(), p, group.tp_size()));
      }
      if (!group.idle()) RC_ASSERT(someone_has_work());
      RC_ASSERT(promises_hold());
    }
  }

  bool someone_has_work() const {
    for (int64_t p = 0; p < group.tp_size(); ++p) {
      if (group.has_work(p)) return true;
    }
    return false;
  }

  const Masters& masters;
  RankGroup group;
  std::vector<std::vector<TpRank::Weights>> cuts;  // [P][kNumAdapters]
};

// [3.19] [4.17] [4.18] P29: after any commands, delays and failures all tp_ranks hold the registry,
// slots and generations that the commands should come to; at every moment they hold what the leader
// promises. [1.11] P30: the bytes of the master copies are those from before, and what is in a slot
// or registry is cut from them, the second time as the first.
RC_GTEST_PROP(RankGroup, P29P30AllTpRanksAgreeAndMastersStay, ()) {
  const auto seeded = sim::any_seeded_case(kMaxCommands);
  sim::Draw draw(seeded.seed);
  const std::vector<LayerShards> layers = random_layers(draw);
  const Masters masters(draw, layers);
  const auto max_loras = int32_t(draw.between(1, 3));
  const auto commands = random_commands(draw, seeded.num_ops, max_loras, masters);
  Group g(layers, masters, max_loras);
  const int64_t tp_size = g.group.tp_size();
  g.run(commands, seeded.seed, sim::Draw(seeded.seed + uint64_t(draw(3))));

  Model model{.registered = {}, .slots = std::vector<SlotState>(size_t(max_loras)), .outcomes = {}};
  int64_t num_failed = 0;
  for (size_t k = 0; k < commands.size(); ++k) {
    bool fails = false;
    for (int64_t p = 0; p < tp_size; ++p) fails = fails || injected(seeded.seed, k, p, tp_size);
    model.outcomes.push_back(model.apply(commands[k], fails, masters.fits(commands[k].uid)));
    num_failed += model.outcomes.back() == Outcome::failed ? 1 : 0;
  }
  RC_ASSERT(g.group.outcomes() == model.outcomes);
  RC_ASSERT(g.group.slots() == model.slots);
  for (int64_t p = 0; p < tp_size; ++p) {
    const TpRank& rank = g.group.tp_rank(p);
    RC_ASSERT(rank.slots == model.slots);
    RC_ASSERT(rank.staged.empty());
    RC_ASSERT(rank.registry.size() == model.registered.size());
    for (const uint64_t uid : model.registered) {
      RC_ASSERT(g.group.is_visible(uid));
      RC_ASSERT(rank.registry.contains(uid));
      RC_ASSERT(same_pairs(rank.registry.at(uid), g.cut(p, uid)));
    }
    for (size_t s = 0; s < model.slots.size(); ++s) {
      const bool is_empty = model.slots[s].uid == 0;
      RC_ASSERT(!is_empty || rank.buffers[0].slices[0].expand_ranks[s] == 0);
    }
  }
  RC_ASSERT(masters.unchanged());
  RC_TAG("P = " + std::to_string(tp_size));
  RC_CLASSIFY(num_failed > 0, "some failed");
  RC_CLASSIFY(std::any_of(model.slots.begin(), model.slots.end(),
                          [](const SlotState& s) { return s.generation > 2; }),
              "slots used again");
}

// [3.19] P29: who works when changes nothing of the end.
RC_GTEST_PROP(RankGroup, P29TheScheduleDoesNotMatter, ()) {
  const auto seeded = sim::any_seeded_case(kMaxCommands);
  sim::Draw draw(seeded.seed);
  const std::vector<LayerShards> layers = random_layers(draw);
  const Masters masters(draw, layers);
  const auto commands = random_commands(draw, seeded.num_ops, 2, masters);
  Group one(layers, masters, 2);
  Group other(layers, masters, 2);
  one.run(commands, seeded.seed, sim::Draw(1));
  other.run(commands, seeded.seed, sim::Draw(2));
  RC_ASSERT(one.group.outcomes() == other.group.outcomes());
  for (int64_t p = 0; p < one.group.tp_size(); ++p) {
    const TpRank &left = one.group.tp_rank(p), &right = other.group.tp_rank(p);
    RC_ASSERT(left.slots == right.slots);
    RC_ASSERT(left.registry.size() == right.registry.size());
    for (const auto& [uid, weights] : left.registry) {
      RC_ASSERT(right.registry.contains(uid));
      RC_ASSERT(same_pairs(weights, right.registry.at(uid)));
    }
  }
}

}  // namespace
}  // namespace loratory::reference
