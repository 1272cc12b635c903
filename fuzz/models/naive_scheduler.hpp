#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fuzz/models/naive_block_pool.hpp"
#include "fuzz/models/naive_residency.hpp"
#include "scheduler_sim/scheduler/scheduler.hpp"

namespace loratory::sim {

/// The step (docs/scheduler.md) as one would do it by hand: every walk looks at every waiting
/// request in order, every question is a loop over all requests. It knows requests by id and
/// adapters by uid.
class NaiveScheduler {
 public:
  explicit NaiveScheduler(const SchedulerConfig& config)
      : config_(config), tiers(config.residency), pool(config.num_blocks) {}

  struct Request {
    uint64_t id;
    Uid uid;
    int priority;
    uint64_t arrival, admission = 0;
    uint32_t num_prompt, max_new, generated = 0, computed = 0, seen = 0;
    bool preempted = false, running = false;
    bool ends_at_commit = false;
    FinishReason end_reason = FinishReason::abort;
    bool match = true, publish = true;
    std::vector<std::string> contents = {};  // of the prompt's full blocks, or of its tokens
    std::vector<int32_t> tokens = {};        // prompt and output, if the prompt was given as tokens
    std::vector<int32_t> stops = {};
    std::vector<uint32_t> table = {};
    int64_t rejections = 0, first_rejection_ns = -1, reservation = -1;

    uint32_t total() const { return num_prompt + generated; }
    uint32_t remaining() const { return max_new - generated; }
  };
  struct Row {
    uint64_t id;
    uint32_t computed, tokens;
    bool decode, samples;
    bool operator==(const Row&) const = default;
  };

  void submit(const RequestSpec& spec, int64_t now_ns);
  void abort(uint64_t id, int64_t now_ns);
  void unload(const std::string& name, bool abort_requests, int64_t now_ns);
  bool pin(Uid uid, int64_t now_ns);
  void unpin(Uid uid, int64_t now_ns);
  Uid add_adapter(const std::string& name, bool replace, int64_t now_ns);
  void load_done(Uid uid, bool ok, int64_t now_ns);
  void copy_done(int64_t now_ns);
  const std::vector<Row>& plan(int64_t now_ns);
  void commit(const std::vector<int32_t>& sampled, int64_t now_ns);

  std::vector<uint64_t> waiting() const;  // in order

 private:
  using Ids = std::vector<uint64_t>;
  void schedule_running(int64_t now_ns);
  bool schedule(uint64_t id, int64_t now_ns);
  void preempt(uint64_t id, int64_t now_ns);
  Ids walk_order() const;
  void walk(int64_t now_ns);
  void count_overtaken(const Ids& missed, const Ids& admitted, const Ids& in_order, int64_t now_ns);
  void reserve(int64_t now_ns);
  void drain(int64_t now_ns);
  bool outranks_reservation(Uid uid) const;
  bool gate_passes(const Request& r, const std::vector<Uid>& rejected) const;
  bool admit(Request& r, int64_t now_ns);
  void add_row(const Request& r, uint32_t tokens, bool decode);
  void commit_row(const Row& row, int32_t token, int64_t now_ns);
  void publish_full(Request& r, uint32_t before);
  void end(uint64_t id, FinishReason reason, int64_t now_ns);
  void give_back(Request& r);
  uint32_t pages_for(uint64_t tokens) const;
  uint32_t chunk(uint32_t wanted) const;
  std::string key(const Request& r, uint32_t block) const;
  void settle(int64_t now_ns);
  void note(int64_t now_ns, const Request& r, const decision::Any& what);
  void note(int64_t now_ns, Uid uid, const decision::Any& what);

 public:
  SchedulerConfig config_;
  NaiveResidency tiers;
  NaiveBlockPool pool;
  std::map<uint64_t, Request> requests;  // live
  Ids running;                           // in order of admission
  std::vector<Row> rows;                 // of the step in flight
  std::vector<Uid> waits_for;            // blocking mode
  std::vector<Uid> failed_in_step;       // ... and could not be loaded
  bool in_flight = false;
  Uid draining = 0, reserved = 0;
  int reserved_priority = 0;  // of the request that has the reservation
  int64_t drain_left = 0;
  std::vector<Decision> decisions;

 private:
  uint32_t budget_ = 0;
  bool preempted_now_ = false;
  int64_t next_reservation_ = 0;
  uint64_t arrivals_ = 0, admissions_ = 0;
};

}  // namespace loratory::sim
