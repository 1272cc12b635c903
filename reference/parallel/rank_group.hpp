#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "reference/parallel/local_buffers.hpp"

namespace loratory::reference {

/// An adapter in host memory, unsharded: the master copy. Nothing writes through its views.
struct MasterAdapter {
  std::vector<LoraPairs> layers;  ///< of every layer of the group, one pair for each slice
};

struct SlotState {
  uint64_t uid = 0;         ///< 0: empty
  uint64_t generation = 0;  ///< how often the slot was written or cleared

  friend bool operator==(const SlotState&, const SlotState&) = default;
};

/// What one process knows of adapters. It does what the leader says, and decides nothing.
struct TpRank {
  using Weights = std::vector<LocalPairs>;  ///< of every layer

  std::map<uint64_t, Weights> staged;    ///< cut, and not yet visible
  std::map<uint64_t, Weights> registry;  ///< by uid
  std::vector<SlotState> slots;          ///< [L]
  std::vector<LocalBuffers> buffers;     ///< of every layer
};

enum class CommandKind : uint8_t {
  load,        ///< cut and register; refused: the uid is registered
  copy,        ///< into a slot; refused: not registered, or in a slot; the slot is not empty
  evict,       ///< empty the slot; refused: it is empty
  unregister,  ///< forget the uid, and empty its slot; refused: not registered
};

struct Command {
  CommandKind kind = CommandKind::load;
  uint64_t uid = 0;                                ///< not for evict
  int32_t slot = 0;                                ///< copy, evict
  std::shared_ptr<const MasterAdapter> adapter{};  ///< load; the file every tp_rank reads
};

enum class Outcome : uint8_t {
  done,
  refused,  ///< the leader's own tables forbid it; nobody was asked
  failed,   ///< one tp_rank or more failed, and all went back to what was before
};

/// The processes of a tensor-parallel group and their leader, as a state machine: whoever uses it
/// says which tp_rank does its next piece of work when, and whether that fails.
///
/// The leader alone decides, and carries out one command at a time in phases; a phase begins when
/// every tp_rank has answered the one before:
///   load        stage on all; all well: publish on all; else discard on all
///   copy        write on all; one failed: clear on all
///   evict, unregister   forget at the leader, then clear and erase on all; these cannot fail
/// The leader's tables (is_visible, slots) promise what every tp_rank holds: they grow after the
/// last answer and shrink before the first message. A step that uses them is right at any moment,
/// also while messages are under way.
///
/// Failure  of a stage or a write may leave its work behind; the phase after it removes that. A
///          tp_rank that refuses an adapter (InputError of slice_pairs) has failed.
/// Errors   submit: InputError for a slot outside [0, L), uid 0, a load without adapter.
/// Repeats  bitwise; the final state does not depend on who answered first.
/// Source   statements [3.19], [4.17], [4.18].
class RankGroup {
 public:
  RankGroup(std::vector<LayerShards> layers, int32_t max_loras, Dtype dtype);

  void submit(Command command);
  /// Nothing is under way or queued.
  bool idle() const { return queue_.empty(); }
  /// tp_rank p has something to do. While not idle, one of them has.
  bool has_work(int64_t p) const { return !inboxes_[size_t(p)].empty(); }
  /// tp_rank p does it and answers. `fails` counts for stage and write.
  void work(int64_t p, bool fails = false);
  /// Every tp_rank in turn until idle.
  void finish();

  int64_t tp_size() const { return int64_t(ranks_.size()); }
  const TpRank& tp_rank(int64_t p) const { return ranks_[size_t(p)]; }
  /// The buffers of one layer on every tp_rank, for a layer's run().
  std::vector<LocalBuffers> buffers(size_t layer) const;

  bool is_visible(uint64_t uid) const { return visible_.contains(uid); }
  const std::vector<SlotState>& slots() const { return slots_; }
  /// Of each command that ended, in the order of submission.
  const std::vector<Outcome>& outcomes() const { return outcomes_; }

 private:
  enum class Task : uint8_t { stage, publish, discard, write, clear, erase };
  struct Message {
    Task task{};
    uint64_t uid = 0;
    int32_t slot = -1;
    uint64_t generation = 0;
  };

  bool is_refused(const Command& command) const;
  int32_t slot_of(uint64_t uid) const;
  void begin_commands();
  void begin(const Command& command);
  void send(Message message);
  void phase_done();
  void end(Outcome outcome);
  bool carry_out(TpRank& rank, int64_t p, const Message& message) const;
  void stage(TpRank& rank, int64_t p, uint64_t uid) const;

  std::vector<LayerShards> layers_;
  std::vector<TpRank> ranks_;
  std::vector<std::deque<Message>> inboxes_;

  std::deque<Command> queue_;  ///< the first is under way
  Message phase_;
  int64_t num_unanswered_ = 0;
  bool some_failed_ = false;

  std::set<uint64_t> visible_;
  std::vector<SlotState> slots_;
  std::vector<Outcome> outcomes_;
};

}  // namespace loratory::reference
