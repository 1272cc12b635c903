#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "check/schedulers/scheduler_under_test.hpp"
#include "fuzz/bug_zoo/note.hpp"

namespace loratory::zoo {

using check::Uid;

/// A right scheduler in pieces that a wrong one replaces: loads, slots, KV blocks with a prefix
/// cache, chunked prefill, preemption, pins, unloads. It looks at everything in every plan.
class NaiveScheduler : public check::SchedulerUnderTest {
 public:
  check::Reply exchange(const check::Message& message) final;

 protected:
  struct Adapter {
    Uid uid = check::kBaseUid;
    std::string name{};
    bool retiring = false, pinned = false, unloaded = false;
    bool loading = false, on_cpu = false, copying = false;
    int32_t slot = check::kNoSlot;
    int64_t num_live = 0;   ///< requests
    int64_t last_used = 0;  ///< plan
  };
  struct Slot {
    Uid owner = check::kBaseUid;
    uint64_t generation = 0;
  };
  struct Request {
    uint64_t id = 0, serial = 0;
    Uid uid = check::kBaseUid;
    std::string name{};
    int32_t priority = 0;
    std::vector<int32_t> tokens{};
    uint32_t num_prompt = 0, max_new_tokens = 0;
    std::vector<int32_t> stop_tokens{};
    bool prefix_cache = true;
    bool running = false, in_flight = false, aborted = false;
    uint32_t num_computed = 0;
    std::vector<uint32_t> blocks{};
    int num_skipped = 0;  ///< plans in which later ones were admitted

    uint32_t num_generated() const { return uint32_t(tokens.size()) - num_prompt; }
  };
  using Key = std::pair<uint64_t, std::vector<int32_t>>;  ///< namespace, all tokens to block's end
  static constexpr int kMostSkips = 8;

  // --- messages ------------------------------------------------------------------------------
  virtual void begin(const check::message::Hello& m);
  virtual void answer(const check::message::Register& m);
  virtual void answer(const check::message::Unload& m);
  virtual void answer(const check::message::Pin& m);
  virtual void answer(const check::message::Unpin& m);
  virtual void answer(const check::message::Submit& m);
  virtual void answer(const check::message::Abort& m);
  virtual void answer(const check::message::LoadDone& m);
  virtual void answer(const check::message::CopyDone& m);
  virtual void answer(const check::message::Plan& m);
  virtual void answer(const check::message::Commit& m);

  // --- adapters ------------------------------------------------------------------------------
  virtual Uid next_uid() { return ++last_uid_; }
  virtual Uid uid_of(const std::string& name) const;  ///< kBaseUid: nobody has it
  virtual bool is_ready(const Request& r) const;
  virtual bool holds_slot(const Adapter& a) const;  ///< somebody runs with it
  virtual bool may_leave_slot(const Adapter& a) const;
  virtual bool may_leave_cpu(const Adapter& a) const;
  virtual bool has_cpu_place() const;
  virtual bool goes_before(const Adapter& a, const Adapter& b) const;  ///< evicted first
  virtual uint64_t next_generation(const Slot& slot) const { return slot.generation + 1; }
  virtual void give_up(Adapter& a);
  virtual bool may_unload(const Adapter& a) const;
  /// In whose favour transfers begin: who runs, who is pinned, who waits; as many as have slots.
  virtual std::vector<Uid> wanted() const;
  virtual int32_t find_slot(const std::vector<Uid>& wanted);
  void start_transfers();
  void start_load(Adapter& a, const std::vector<Uid>& wanted);
  void start_copy(Adapter& a, const std::vector<Uid>& wanted);
  void retire(Adapter& a, bool aborts);
  void unload_if_done(Adapter& a);
  bool in_flight(Uid uid) const;

  // --- blocks --------------------------------------------------------------------------------
  virtual uint64_t namespace_of(const Request& r) const { return r.uid; }
  /// Most tokens that a request may find computed.
  virtual uint32_t hit_limit(const Request& r) const { return uint32_t(r.tokens.size()) - 1; }
  virtual uint32_t num_to_publish(const Request& r) const { return r.num_computed; }  ///< tokens
  virtual bool leaves_blocks(const Request& r) const { return r.prefix_cache; }
  virtual std::vector<uint32_t> match(const Request& r) const;
  virtual std::optional<uint32_t> take_block();
  virtual void publish(const Request& r);
  virtual void release(const std::vector<uint32_t>& blocks);
  virtual void undo(const std::vector<uint32_t>& blocks) { release(blocks); }
  void unpublish(uint32_t block);
  Key key_of(const Request& r, uint32_t num_blocks) const;
  void hold(uint32_t block);

  // --- requests ------------------------------------------------------------------------------
  virtual bool comes_before(const Request& a, const Request& b) const;
  virtual void end(Request& r, check::FinishReason reason);
  virtual void release_blocks(Request& r);
  virtual void preempt(Request& r);
  virtual bool admit(Request& r);  ///< false: no blocks
  virtual bool is_barrier(const Request& r) const { return r.num_skipped >= kMostSkips; }
  virtual uint32_t row_limit() const { return limits_.max_num_seqs; }
  virtual uint32_t num_tokens_now(const Request& r) const;
  virtual bool samples(const Request& r, uint32_t num_tokens) const;
  bool grow(Request& r, uint32_t num_tokens);
  void add_row(Request& r, uint32_t num_tokens);
  void plan_running();
  void plan_waiting();
  virtual std::vector<Request*> in_order(bool running);

  Request* find(uint64_t id);
  void add(const check::Event& event) { reply_.events.push_back(event); }

  check::Limits limits_;
  std::map<Uid, Adapter> adapters_;
  std::map<std::string, Uid> names_;
  std::vector<Slot> slots_;
  std::map<uint64_t, Request> requests_;  // by id, the live ones
  std::deque<uint32_t> free_;             // blocks that nobody has, the first to be taken in front
  std::vector<int32_t> num_users_;        // by block
  std::map<Key, uint32_t> published_;
  std::map<uint32_t, Key> key_of_block_;
  std::vector<check::Row> step_;  // in flight
  uint32_t budget_ = 0;           // tokens left in the plan that is being made
  Uid last_uid_ = 0;
  uint64_t next_serial_ = 0;
  int64_t num_plans_ = 0;
  bool preempted_now_ = false;
  check::Reply reply_;
};

struct ZooScheduler {
  Note note;
  std::function<std::unique_ptr<NaiveScheduler>()> make;
};

const std::vector<ZooScheduler>& wrong_schedulers();
const std::vector<ZooScheduler>& right_schedulers();

}  // namespace loratory::zoo
