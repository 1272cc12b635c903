#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "scheduler_sim/prefix_cache/block_key.hpp"
#include "scheduler_sim/prefix_cache/block_pool.hpp"
#include "scheduler_sim/residency/residency.hpp"
#include "scheduler_sim/scheduler/activation.hpp"
#include "scheduler_sim/scheduler/decision.hpp"
#include "scheduler_sim/scheduler/id_map.hpp"
#include "scheduler_sim/scheduler/request.hpp"
#include "scheduler_sim/scheduler/scheduler_config.hpp"
#include "scheduler_sim/scheduler/starvation.hpp"
#include "scheduler_sim/scheduler/step_plan.hpp"
#include "scheduler_sim/scheduler/waiting.hpp"
#include "scheduler_sim/scheduler/walk_order.hpp"

namespace loratory::sim {

/// The scheduler of a multi-LoRA engine: which requests run in the next step, with how many tokens,
/// in which KV blocks, with which adapters on the GPU. docs/scheduler.md states every rule.
///
/// It decides and moves nothing. EngineLoop drives it and an Executor does what it decides:
///
///   submit(spec, now)                 at any time
///   plan(now)                         when no step is in flight; an empty plan is not a step
///   plan(now)                         also while one is, if can_plan_ahead() [7.17]
///   commit(result, now)               when the executor is done with the (older) step
///   load_done, copy_done              when a transfer that starts() asked for ends
///
/// Every call may start transfers: take them from starts() afterwards. Every decision goes to the
/// sink at once. `now_ns` never goes back.
///
/// Repeats   no clock, no randomness, no hash order: equal calls give equal decisions.
/// Errors    what a client can get wrong is a status; a report or a plan out of turn aborts.
/// Cost      a step costs its rows and what it admits, not what waits (waiting.hpp).
class Scheduler {
 public:
  /// `sink`, if there is one, outlives the scheduler.
  explicit Scheduler(const SchedulerConfig& config, DecisionSink* sink = nullptr);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // --- requests -----------------------------------------------------------------------------
  /// Accepts the request or changes nothing.
  SubmitStatus submit(const RequestSpec& spec, int64_t now_ns);
  /// Accepts all or none; `failed_index` says which one was refused.
  SubmitStatus submit(std::span<const RequestSpec> specs, int64_t now_ns, size_t& failed_index);
  /// Ends a request at any time; unknown or finished ids are ignored. While its step is in flight
  /// its blocks are kept until the commit, and its sampled token is dropped.
  void abort(uint64_t id, int64_t now_ns);

  // --- adapters -----------------------------------------------------------------------------
  struct Registered {
    RegisterStatus status;
    Uid uid;  ///< valid if status is ok
  };
  /// A new uid for the name; `replace` retires the adapter that has the name now.
  Registered register_adapter(std::string_view name, uint32_t rank, int64_t bytes, bool replace,
                              int64_t now_ns);
  /// New submissions fail at once; running and waiting requests of it go on. `abort_requests` ends
  /// them first. Returns false for an unknown name.
  bool unload_adapter(std::string_view name, bool abort_requests, int64_t now_ns);
  /// Keeps the adapter on the GPU until it is unpinned or unloaded; `busy` if that would leave no
  /// slot to move, `unknown` if nobody has this uid.
  PinStatus pin(Uid uid, int64_t now_ns);
  /// No effect on an adapter that is not pinned or not known.
  void unpin(Uid uid, int64_t now_ns);
  /// A load that starts() asked for has ended; after a second failure its requests end with
  /// `error`.
  void load_done(Uid uid, bool ok, int64_t now_ns);
  /// A copy that starts() asked for has ended.
  void copy_done(Uid uid, int64_t now_ns);
  /// Frees what the prefix cache holds for this adapter, and stops it from publishing more. Returns
  /// the number of blocks freed; unknown uids and the base model: nothing happens. An unload does
  /// this by itself. An engine calls it when KV of a registered adapter went bad. [6.24]
  uint32_t evict_lora_namespace(Uid uid) {
    return residency_.find_uid(uid) == kBaseRef ? 0 : pool_.evict_namespace(uid);
  }

  // --- steps --------------------------------------------------------------------------------
  /// What the next step computes. If it has rows, the step is in flight until its commit, and the
  /// plan is valid until the next one behind that.
  ///
  /// Ahead of a step in flight: a request that this step certainly ends has no row. Any other goes
  /// on; its row's last token may be the one that is being sampled. If the request then ends after
  /// all (a stop token, an abort), it ends at the older commit, what its row computes is discarded,
  /// and its blocks and its adapter's claim are given back at the younger commit.
  const StepPlan& plan(int64_t now_ns);
  /// May plan() be called although a step is in flight? Not if it might have to preempt, nor if two
  /// are. O(running requests).
  bool can_plan_ahead() const;
  /// The effects of the older step in flight: tokens, published blocks, requests that end.
  void commit(const StepResult& result, int64_t now_ns);
  /// Blocking load mode: everything the last plan waits for is on the GPU (or failed).
  bool step_can_start() const;
  /// Transfers to start now. The caller takes them and clears the lists.
  ResidencyActions& starts() { return starts_; }

  /// After a commit: how many further steps would repeat the last one exactly, if nothing else
  /// happens. Zero unless the executor samples no real tokens, and behind a step that was planned
  /// ahead.
  Stretch stretch() const;
  /// KV blocks in use when step `num_steps` of the stretch is planned. O(running requests).
  uint32_t num_blocks_after(int64_t num_steps) const;
  /// The effect of `num_steps` plan/commit pairs of the stretch.
  void advance(int64_t num_steps);

  // --- questions ----------------------------------------------------------------------------
  const SchedulerConfig& config() const { return config_; }
  const Request& request(RequestRef ref) const { return requests_[ref]; }
  /// kNoRequest if no live request has this id.
  RequestRef find_request(uint64_t id) const;
  /// What the row of a step in flight samples counts for nothing: its request has ended, or will
  /// at the step's commit.
  bool is_discarded(const StepRow& row) const {
    const Request& r = requests_[row.request];
    return r.end_at_commit || r.state == RequestState::finished;
  }
  /// In the order of their admission.
  const std::vector<RequestRef>& running() const { return running_; }
  const WaitingSet& waiting() const { return waiting_; }
  const BlockPool& blocks() const { return pool_; }
  const Residency& residency() const { return residency_; }
  /// The last plan.
  const StepPlan& last_plan() const { return *plan_; }
  /// Requests that were accepted and have not ended.
  int64_t num_live() const { return int64_t(by_id_.size()); }

 private:
  // plan: running requests (plan.cpp)
  void schedule_running(int64_t now_ns);
  void schedule_decodes();
  void schedule_one_running(RequestRef ref, int64_t now_ns);
  bool make_room(RequestRef ref, uint32_t num_tokens, int64_t now_ns);
  RequestRef preemption_victim() const;
  void preempt(RequestRef ref, int64_t now_ns);
  uint32_t chunk_tokens(uint32_t wanted, uint32_t budget) const;
  void add_row(RequestRef ref, uint32_t num_tokens, bool is_decode);
  void remove_row(RequestRef ref);

  // plan: waiting requests (walk.cpp)
  WalkEnd visit_candidates(int64_t now_ns);
  void end_walk(const WalkEnd& end, int64_t now_ns);
  void collect_candidates();
  void add_candidate(AdapterRef adapter);
  void add_heads_of_claimants();
  void add_head_of_claimant(AdapterRef adapter);
  void push_candidate(RequestRef ref);
  void push_next_of(const Request& r);
  void push_newcomers(const WaitKey& place);
  RequestRef next_newcomer(const WaitKey& wait_key, bool reserving) const;
  bool comes_from_slot(AdapterRef adapter) const;
  bool has_no_place() const { return residency_.num_claimants() >= config_.residency.max_loras; }
  /// Its adapter has no claim and could come to one.
  bool is_newcomer(const Request& r) const {
    return r.adapter != kBaseRef && !residency_.claims_place(r.adapter);
  }
  bool is_walk_over() const { return budget_ == 0 || running_.size() >= config_.max_num_seqs; }
  bool gate_rejects(const Request& r) const;
  bool try_admit(RequestRef ref, int64_t now_ns);
  bool take_blocks(Request& r, uint32_t num_matched, uint32_t num_blocks);
  uint32_t match_prefix(Request& r);

  // what repeats (stretch.cpp)
  bool is_regular_plan() const;
  bool repeats_last_step() const;
  uint64_t num_new_blocks(int64_t num_steps) const;
  uint64_t num_changes() const { return notes_.num_decisions() + residency_.num_claim_changes(); }

  // commit
  /// Most rows are these: a request that decodes, and goes on after this token. False: it is
  /// another case, and nothing happened. (If its adapter failed to load, end_at_commit is set.)
  /// Nobody knows what token it was, so nobody could match a block with it: it is published when
  /// the request lets go of it, for the request itself [6.9].
  bool commit_decode(const StepRow& row) {
    Request& r = requests_[row.request];
    if (r.state != RequestState::decoding || r.end_at_commit) return false;
    if (r.num_generated + 1 >= r.max_new_tokens) return false;  // max_model_len is not below it
    --r.num_in_flight;
    ++r.num_computed;
    ++r.num_generated;
    return true;
  }
  void commit_row(const StepRow& row, int32_t token, int64_t now_ns);
  void drop_ended_from_running();
  /// Those that are full now that the tokens from `from_tokens` on have KV.
  void publish_full_blocks(Request& r, uint32_t from_tokens);
  void append_token(Request& r, int32_t token);
  bool ends_with(const Request& r, int32_t token) const;
  void finish_running(RequestRef ref, FinishReason reason, int64_t now_ns);
  void finish_waiting(RequestRef ref, FinishReason reason, int64_t now_ns);
  void release_blocks(Request& r);
  void let_go(RequestRef ref);
  void forget(RequestRef ref);

  // shared
  SubmitStatus validate(const RequestSpec& spec) const;
  void accept(const RequestSpec& spec, int64_t now_ns);
  uint32_t blocks_for(uint64_t num_tokens) const;
  /// How many more blocks it needs for `num_tokens` in all.
  uint32_t missing_blocks(const Request& r, uint64_t num_tokens) const {
    return blocks_for(std::max<uint64_t>(num_tokens, r.room) - r.room);
  }
  void add_block(Request& r) {
    r.blocks.push_back(pool_.allocate());
    r.room += config_.block_size;
  }
  BlockKey key_of(Request& r, uint32_t block_index);
  void extend_keys(Request& r);
  void fail_requests_of(AdapterRef adapter, int64_t now_ns);
  /// Which slot a row reads, and which of the adapters that the slot has seen it expects there.
  Residency::Place place_of(AdapterRef adapter) const {
    return adapter == kBaseRef ? Residency::Place{} : residency_.place(adapter);
  }
  void bind_slot(StepRow& row) const {
    const Residency::Place place = place_of(row.adapter);
    row.slot = place.slot;
    row.generation = place.generation;
  }
  void bind_slots_of(AdapterRef adapter);
  void prepare_adapters();
  void find_copied_again();
  void collect_adapters();
  void pack_rows();
  void begin_step();
  void settle_transfers(int64_t now_ns);
  void note(int64_t now_ns, const Request& r, const decision::Any& what);
  void note(int64_t now_ns, Uid uid, const decision::Any& what);
  Uid uid_of(AdapterRef adapter) const {
    return adapter == kBaseRef ? kBaseUid : residency_.uid(adapter);
  }

  SchedulerConfig config_;
  DecisionNotes notes_;
  Residency residency_;
  BlockPool pool_;
  BlockKeyInterner interner_;

  std::vector<Request> requests_;
  std::vector<RequestRef> free_refs_;
  IdMap by_id_;
  std::vector<RequestRef> running_;  // in admission order
  WaitingSet waiting_{requests_, config_};
  WalkOrder walk_order_{config_, residency_, waiting_};
  Starvation starvation_{config_, residency_, requests_, waiting_, walk_order_, notes_};
  uint64_t next_arrival_seq_ = 1, next_admission_seq_ = 1;

  ResidencyActions starts_;
  std::array<StepPlan, 2> plans_;
  StepPlan* plan_ = plans_.data();        // the last one
  std::array<StepPlan*, 2> in_flight_{};  // the older one first
  uint32_t num_in_flight_ = 0;
  int64_t num_steps_ = 0;
  uint32_t budget_ = 0;
  size_t cursor_ = 0;  // into running_, while it is scheduled
  bool preempted_in_plan_ = false;

  std::vector<std::pair<WaitKey, RequestRef>> heap_;  // heads of queues that may pass the gate
  std::array<bool, 2> has_newcomer_{};                // of adapters without, with a reservation
  std::vector<uint32_t>
      place_in_step_;  // by AdapterRef: index into plan_->adapters, if it is there
  Activation activation_;
  std::vector<BlockKey> key_scratch_;
  std::vector<RequestRef> ended_;  // since drop_ended_from_running

  // While num_changes() stays at this the next step repeats the last one; empty if it never does.
  // Decisions and claims are counted where they are made, so no operation can forget to tell.
  std::optional<uint64_t> regular_at_change_;
  bool walk_stopped_at_drain_ = false;  // a later walk may pass that request over and go on
};

}  // namespace loratory::sim
