#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "check/schedulers/messages.hpp"

namespace loratory::check {

/// What must be true of the engine, as far as messages and replies tell. Judges compare with it; it
/// knows nothing of any scheduler's insides, and takes in only what no judge objected to.
class World {
 public:
  static constexpr size_t kNobody = SIZE_MAX;

  struct Adapter {
    Uid uid = kBaseUid;
    std::string name{};
    bool retiring = false, unloaded = false, pinned = false;
    bool loading = false, on_cpu = false, copying = false;
    int64_t num_failed_loads = 0;
  };
  struct Slot {
    Uid owner = kBaseUid;  ///< also while it is copied there
    bool ready = false;
    uint64_t generation = 0;
  };
  struct Request {
    size_t serial = 0;  ///< in the order of submission; ids are used again
    uint64_t id = 0;
    Uid uid = kBaseUid;
    int32_t priority = 0;
    std::vector<int32_t> tokens{};  ///< the prompt, and what was sampled and committed
    uint32_t num_prompt = 0, max_new_tokens = 0;
    std::vector<int32_t> stop_tokens{};
    bool prefix_cache = true;

    bool live = true, aborted = false;
    bool has_run = false;             ///< had a row
    bool has_table = false;           ///< runs: had a row since it was submitted or preempted
    std::vector<uint32_t> table{};    ///< of its last row
    uint32_t num_planned = 0;         ///< tokens with KV once the steps in flight have ended
    uint32_t num_pending = 0;         ///< tokens that steps in flight sample for it
    uint32_t num_in_flight = 0;       ///< rows in flight
    int64_t failed_loads_before = 0;  ///< of its adapter, when it was submitted
    bool was_left_out = false;        ///< a row of it was, and it has not ended since
    std::optional<FinishReason> must_end{};  ///< the last commit brought its last token

    uint32_t num_generated() const { return uint32_t(tokens.size()) - num_prompt; }
    /// With the tokens that nobody knows yet.
    uint32_t num_total() const { return uint32_t(tokens.size()) + num_pending; }
  };
  struct Step {
    int64_t number = 0;
    std::vector<Row> rows{};
    std::vector<size_t> requests{};  ///< serial of each row's
    std::vector<Uid> wait_for{};
    std::vector<Uid> given_up{};  ///< since it was planned: their rows are left out
    bool started = false;

    bool leaves_out(Uid uid) const { return std::ranges::count(given_up, uid) > 0; }
  };
  /// Who wrote the KV of one position of one block last; kNobody: nothing that may be read.
  struct Written {
    size_t request = kNobody;
    uint32_t position = 0;
    int64_t step = 0;
  };

  explicit World(const Limits& limits = {}, const Claims& claims = {});

  // --- taking in ----------------------------------------------------------------------------
  /// What a message says by itself, before it is answered.
  void said(const Message& message);
  /// What the status of the answer says.
  void heard(const Message& message, const Reply& reply);
  void take(const Event& event);
  /// Why the rows of a plan cannot be taken in at all: they name what the engine does not have.
  /// Empty if they can.
  std::string cannot_take(const Reply& reply) const;
  /// The rows of a plan, if it has any.
  void take_plan(int64_t number, const Reply& reply);
  /// Starts the steps that wait for nothing any more, oldest first. Rows get the slots of adapters
  /// that they waited for. Returns those that have started now.
  std::vector<const Step*> start_steps();

  // --- questions ----------------------------------------------------------------------------
  const Limits& limits() const { return limits_; }
  const Claims& claims() const { return claims_; }
  /// nullptr: there never was such a uid.
  const Adapter* adapter(Uid uid) const;
  /// kBaseUid: nobody has the name.
  Uid uid_of(const std::string& name) const;
  const std::map<Uid, Adapter>& adapters() const { return adapters_; }
  const std::map<std::string, Uid>& names() const { return names_; }
  const std::vector<Slot>& slots() const { return slots_; }
  /// kNoSlot: it is in none, or on its way.
  int32_t ready_slot_of(Uid uid) const;
  /// nullptr: no live request has the id.
  const Request* request(uint64_t id) const;
  const std::vector<Request>& requests() const { return requests_; }
  const std::map<uint64_t, size_t>& live() const { return live_; }
  const std::deque<Step>& steps() const { return steps_; }
  const Written& written(uint32_t block, uint32_t offset) const {
    return written_[size_t{block} * limits_.block_size + offset];
  }
  bool is_moving() const;
  int64_t num_live_of(Uid uid) const;
  /// Has a step in flight, started if `started`, a row that reads this slot?
  const Step* reader_of_slot(int32_t slot) const;

 private:
  void add_adapter(const std::string& name, Uid uid);
  void add_request(const message::Submit& submit);
  void set_pinned(const std::string& name, bool pinned);
  void retire(const std::string& name);
  void end_step(const message::Commit& commit);
  void drop_slots_of(Uid uid);
  void end_request(uint64_t id);
  bool waits(const Step& step) const;

  Limits limits_;
  Claims claims_;
  std::map<Uid, Adapter> adapters_;
  std::map<std::string, Uid> names_;
  std::vector<Slot> slots_;
  std::vector<Request> requests_;    // by serial
  std::map<uint64_t, size_t> live_;  // id to serial
  std::deque<Step> steps_;           // in flight, the oldest first
  std::vector<Written> written_;     // [blocks][block_size]
};

}  // namespace loratory::check
