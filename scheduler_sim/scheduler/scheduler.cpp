// Submission, the life of adapters, commit. plan.cpp holds the running half of a plan, walk.cpp
// the waiting half, starvation.cpp whom it must not turn away for ever, stretch.cpp the repetition
// of regular steps.
#include "scheduler_sim/scheduler/scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reference/base/check.hpp"

namespace loratory::sim {
namespace {

constexpr int32_t kNoToken = -1;

bool reached_its_end(const Request& r) { return r.num_generated >= r.max_new_tokens; }

}  // namespace

const char* describe(SubmitStatus status) {
  switch (status) {
    case SubmitStatus::ok:
      return "accepted";
    case SubmitStatus::empty_prompt:
      return "the prompt is empty";
    case SubmitStatus::bad_content:
      return "the prompt's content does not fit its length";
    case SubmitStatus::duplicate_id:
      return "a live request has this id";
    case SubmitStatus::too_long:
      return "prompt + output exceed max_model_len";
    case SubmitStatus::never_fits:
      return "needs more KV blocks than the pool has";
    case SubmitStatus::unknown_adapter:
      return "no such adapter";
  }
  return "?";
}

Scheduler::Scheduler(const SchedulerConfig& config, DecisionSink* sink)
    : config_(config), notes_(sink), residency_(config.residency), pool_(config.num_blocks) {
  const std::string problem = config.problem();
  LORATORY_ASSERT(problem.empty(), problem.c_str());
}

void Scheduler::note(int64_t now_ns, const Request& r, const decision::Any& what) {
  notes_.note({now_ns, r.id, uid_of(r.adapter), what});
}

void Scheduler::note(int64_t now_ns, Uid uid, const decision::Any& what) {
  notes_.note({now_ns, kNoRequestId, uid, what});
}

RequestRef Scheduler::find_request(uint64_t id) const { return by_id_.find(id); }

uint32_t Scheduler::blocks_for(uint64_t num_tokens) const {
  return uint32_t((num_tokens + config_.block_size - 1) / config_.block_size);
}

// --- submission -----------------------------------------------------------------------------

SubmitStatus Scheduler::validate(const RequestSpec& spec) const {
  if (spec.num_prompt_tokens == 0) return SubmitStatus::empty_prompt;
  const bool bad_tokens = !spec.tokens.empty() && spec.tokens.size() != spec.num_prompt_tokens;
  const bool bad_blocks = spec.block_contents.size() > spec.num_prompt_tokens / config_.block_size;
  if (bad_tokens || bad_blocks || (!spec.tokens.empty() && !spec.block_contents.empty())) {
    return SubmitStatus::bad_content;
  }
  const uint64_t max_total = uint64_t{spec.num_prompt_tokens} + spec.max_new_tokens;
  if (max_total > config_.max_model_len) return SubmitStatus::too_long;
  // The last sampled token needs no KV.
  const uint64_t max_kv = max_total - (spec.max_new_tokens > 0);
  if ((max_kv + config_.block_size - 1) / config_.block_size > config_.num_blocks - 1) {
    return SubmitStatus::never_fits;
  }
  if (by_id_.find(spec.id) != kNoRequest) return SubmitStatus::duplicate_id;
  if (spec.adapter == kBaseUid) return SubmitStatus::ok;
  const AdapterRef adapter = residency_.find_uid(spec.adapter);
  const bool is_served = adapter != kBaseRef && !residency_.retiring(adapter);
  return is_served ? SubmitStatus::ok : SubmitStatus::unknown_adapter;
}

SubmitStatus Scheduler::submit(const RequestSpec& spec, int64_t now_ns) {
  const SubmitStatus status = validate(spec);
  if (status == SubmitStatus::ok) accept(spec, now_ns);
  return status;
}

SubmitStatus Scheduler::submit(std::span<const RequestSpec> specs, int64_t now_ns,
                               size_t& failed_index) {
  for (size_t i = 0; i < specs.size(); ++i) {
    failed_index = i;
    if (const auto status = validate(specs[i]); status != SubmitStatus::ok) return status;
    for (size_t j = 0; j < i; ++j) {
      if (specs[j].id == specs[i].id) return SubmitStatus::duplicate_id;
    }
  }
  for (const RequestSpec& spec : specs) accept(spec, now_ns);
  return SubmitStatus::ok;
}

void Scheduler::accept(const RequestSpec& spec, int64_t now_ns) {
  RequestRef ref;
  if (free_refs_.empty()) {
    ref = RequestRef(requests_.size());
    requests_.emplace_back();
  } else {
    ref = free_refs_.back();
    free_refs_.pop_back();
  }
  Request& r = requests_[ref];
  r.id = spec.id;
  r.arrival_seq = next_arrival_seq_++;
  r.adapter = residency_.find_uid(spec.adapter);  // of uid 0: kBaseRef
  r.priority = config_.use_priorities ? spec.priority : 0;
  r.num_prompt = spec.num_prompt_tokens;
  r.max_new_tokens = spec.max_new_tokens;
  r.state = RequestState::queued;
  r.match_prefix = config_.prefix_cache && !spec.disable_prefix_cache && !spec.prompt_logprobs;
  r.publish_prefix = config_.prefix_cache && !spec.disable_prefix_cache;
  r.tokens.assign(spec.tokens.begin(), spec.tokens.end());
  r.stop_tokens.assign(spec.stop_tokens.begin(), spec.stop_tokens.end());
  r.wait_key = {.priority = r.priority, .arrival_seq = r.arrival_seq};
  if (r.publish_prefix) {
    for (const uint64_t content : spec.block_contents) {
      r.keys.push_back(
          interner_.key(r.keys.empty() ? kNoKey : r.keys.back(), uid_of(r.adapter), content));
    }
    extend_keys(r);
  }
  by_id_.insert(r.id, ref);
  waiting_.insert(ref);
  note(now_ns, r, decision::Arrival{r.num_prompt, r.max_new_tokens});
  if (r.adapter != kBaseRef) {
    residency_.submitted(r.adapter);
    settle_transfers(now_ns);
  }
}

// Keys of the full blocks whose tokens are known.
void Scheduler::extend_keys(Request& r) {
  const uint32_t size = config_.block_size;
  while ((r.keys.size() + 1) * size <= r.tokens.size()) {
    const auto block = std::span<const int32_t>(r.tokens).subspan(r.keys.size() * size, size);
    r.keys.push_back(
        interner_.key(r.keys.empty() ? kNoKey : r.keys.back(), uid_of(r.adapter), block));
  }
}

// Blocks past the known content (a prompt's tail, generated tokens that nobody told us) are the
// request's own.
BlockKey Scheduler::key_of(Request& r, uint32_t block_index) {
  return block_index < r.keys.size() ? r.keys[block_index]
                                     : BlockKeyInterner::unique(r.arrival_seq, block_index);
}

// --- adapters -------------------------------------------------------------------------------

Scheduler::Registered Scheduler::register_adapter(std::string_view name, uint32_t rank,
                                                  int64_t bytes, bool replace, int64_t now_ns) {
  const auto [status, adapter] = residency_.register_adapter(name, rank, bytes, replace);
  settle_transfers(now_ns);
  return {status, uid_of(adapter)};
}

bool Scheduler::unload_adapter(std::string_view name, bool abort_requests, int64_t now_ns) {
  const AdapterRef adapter = residency_.find(name);
  if (adapter == kBaseRef) return false;
  if (abort_requests) {
    std::vector<uint64_t> ids;
    for (const RequestRef ref : running_) {
      if (requests_[ref].adapter == adapter) ids.push_back(requests_[ref].id);
    }
    for (const RequestRef ref : waiting_.of_adapter(adapter)) ids.push_back(requests_[ref].id);
    for (const uint64_t id : ids) abort(id, now_ns);
  }
  residency_.unload(name);
  settle_transfers(now_ns);
  return true;
}

PinStatus Scheduler::pin(Uid uid, int64_t now_ns) {
  const AdapterRef adapter = residency_.find_uid(uid);
  if (adapter == kBaseRef) return PinStatus::unknown;
  const PinStatus status = residency_.pin(adapter);
  settle_transfers(now_ns);
  return status;
}

void Scheduler::unpin(Uid uid, int64_t now_ns) {
  const AdapterRef adapter = residency_.find_uid(uid);
  if (adapter == kBaseRef) return;
  residency_.unpin(adapter);
  settle_transfers(now_ns);
}

void Scheduler::load_done(Uid uid, bool ok, int64_t now_ns) {
  const AdapterRef adapter = residency_.find_uid(uid);
  LORATORY_ASSERT(adapter != kBaseRef, "only a load that was asked for ends");
  const LoadOutcome outcome = residency_.load_done(adapter, ok);
  if (ok) {
    note(now_ns, uid, decision::LoadDone{});
  } else {
    note(now_ns, uid, decision::LoadFailure{outcome == LoadOutcome::retried});
  }
  if (outcome == LoadOutcome::failed) fail_requests_of(adapter, now_ns);
  settle_transfers(now_ns);
}

// Nobody else's request fails, and none is served by the base model instead. Rows of the step in
// flight lose their slot: what they compute counts for nothing.
void Scheduler::fail_requests_of(AdapterRef adapter, int64_t now_ns) {
  std::erase(plan_->wait_for, adapter);
  if (num_in_flight_ > 0) bind_slots_of(adapter);
  for (const RequestRef ref : running_) {
    Request& r = requests_[ref];
    if (r.adapter != adapter || r.end_at_commit) continue;
    r.end_at_commit = true;
    r.end_reason = FinishReason::error;
  }
  for (const RequestRef ref : waiting_.of_adapter(adapter)) {
    finish_waiting(ref, FinishReason::error, now_ns);
  }
}

void Scheduler::copy_done(Uid uid, int64_t now_ns) {
  const AdapterRef adapter = residency_.find_uid(uid);
  LORATORY_ASSERT(adapter != kBaseRef, "only a copy that was asked for ends");
  const int32_t slot = residency_.slot(adapter);
  note(now_ns, uid, decision::CopyDone{slot});
  if (std::ranges::count(plan_->wait_for, adapter) > 0) bind_slots_of(adapter);
  residency_.copy_done(adapter);
  settle_transfers(now_ns);
}

void Scheduler::bind_slots_of(AdapterRef adapter) {
  for (StepRow& row : plan_->rows) {
    if (row.adapter == adapter) bind_slot(row);
  }
}

bool Scheduler::step_can_start() const {
  return std::ranges::all_of(plan_->wait_for, [&](AdapterRef a) { return residency_.ready(a); });
}

void Scheduler::settle_transfers(int64_t now_ns) {
  residency_.start_transfers();
  ResidencyActions& actions = residency_.actions();
  for (const Eviction& e : actions.evictions) {
    note(now_ns, e.uid, decision::Eviction{e.slot, e.from_cpu});
  }
  for (const LoadStart& load : actions.loads) {
    note(now_ns, load.uid, decision::Load{load.bytes});
    starts_.loads.push_back(load);
  }
  for (const CopyStart& copy : actions.copies) {
    note(now_ns, copy.uid, decision::Copy{copy.slot, copy.bytes});
    starts_.copies.push_back(copy);
  }
  actions.clear();
  for (const Uid uid : residency_.take_unloaded()) {
    const uint32_t num_freed = pool_.evict_namespace(uid);
    pool_.forget_namespace(uid);
    note(now_ns, uid, decision::Unload{num_freed});
  }
}

// --- commit ---------------------------------------------------------------------------------

void Scheduler::commit(const StepResult& result, int64_t now_ns) {
  LORATORY_ASSERT(num_in_flight_ > 0, "commit without a plan");
  const StepPlan& plan = *std::exchange(in_flight_[0], std::exchange(in_flight_[1], nullptr));
  --num_in_flight_;
  const bool has_tokens = !result.sampled.empty();
  if (has_tokens) regular_at_change_.reset();  // anyone may stop
  size_t num_sampled = 0;
  for (const StepRow& row : plan.rows) {
    const bool takes_one = has_tokens && row.samples;
    LORATORY_ASSERT(!takes_one || num_sampled < result.sampled.size(),
                    "one token per sampling row");
    if (takes_one || !commit_decode(row)) {
      commit_row(row, takes_one ? result.sampled[num_sampled] : kNoToken, now_ns);
    }
    num_sampled += takes_one;
  }
  drop_ended_from_running();
  settle_transfers(now_ns);
}

void Scheduler::commit_row(const StepRow& row, int32_t token, int64_t now_ns) {
  Request& r = requests_[row.request];
  --r.num_in_flight;
  if (r.state == RequestState::finished) return let_go(row.request);        // at the commit before
  const bool has_weights = row.adapter == kBaseRef || row.slot != kNoSlot;  // else its load failed
  if (has_weights) {
    r.num_computed += row.num_tokens;
    if (r.publish_prefix) publish_full_blocks(r, row.num_computed);
  }
  if (r.end_at_commit) return finish_running(row.request, r.end_reason, now_ns);
  if (r.num_computed < r.num_total()) return;
  r.state = RequestState::decoding;
  if (!row.samples) return finish_running(row.request, FinishReason::length, now_ns);
  if (++r.num_generated == 1) note(now_ns, r, decision::FirstToken{});
  if (token != kNoToken) {
    append_token(r, token);
    if (ends_with(r, token)) return finish_running(row.request, FinishReason::stop, now_ns);
  }
  if (reached_its_end(r)) finish_running(row.request, FinishReason::length, now_ns);
}

// Without the prompt's tokens those that follow it name no block.
void Scheduler::append_token(Request& r, int32_t token) {
  if (r.tokens.empty()) return;
  r.tokens.push_back(token);
  if (r.publish_prefix) extend_keys(r);
}

bool Scheduler::ends_with(const Request& r, int32_t token) const {
  return std::ranges::find(r.stop_tokens, token) != r.stop_tokens.end();
}

void Scheduler::publish_full_blocks(Request& r, uint32_t from_tokens) {
  const uint32_t end = r.num_computed / config_.block_size;
  for (uint32_t i = from_tokens / config_.block_size; i < end; ++i) {
    pool_.publish(r.blocks[i], key_of(r, i), uid_of(r.adapter));
  }
}

void Scheduler::release_blocks(Request& r) {
  key_scratch_.clear();
  if (r.publish_prefix) {
    const uint32_t num_full = r.num_computed / config_.block_size;
    for (uint32_t i = 0; i < num_full; ++i) key_scratch_.push_back(key_of(r, i));
  }
  pool_.release(r.blocks, key_scratch_, uid_of(r.adapter));
  r.blocks.clear();
  r.room = r.num_computed = 0;
}

// While a younger step computes for it, the request keeps what that step writes and reads.
void Scheduler::finish_running(RequestRef ref, FinishReason reason, int64_t now_ns) {
  Request& r = requests_[ref];
  const bool is_in_flight = r.num_in_flight > 0;
  note(now_ns, r, decision::Finish{reason, r.num_generated});
  ended_.push_back(ref);
  by_id_.erase(r.id);
  r.state = RequestState::finished;
  if (is_in_flight) {
    ++in_flight_[0]->num_discarded;
  } else {
    let_go(ref);
  }
}

void Scheduler::let_go(RequestRef ref) {
  Request& r = requests_[ref];
  if (!r.blocks.empty()) release_blocks(r);
  if (r.adapter != kBaseRef) residency_.left_running(r.adapter);
  forget(ref);
}

void Scheduler::finish_waiting(RequestRef ref, FinishReason reason, int64_t now_ns) {
  Request& r = requests_[ref];
  waiting_.remove(ref);
  note(now_ns, r, decision::Finish{reason, r.num_generated});
  if (r.adapter != kBaseRef) residency_.left_waiting(r.adapter);
  by_id_.erase(r.id);
  r.state = RequestState::finished;
  forget(ref);
}

// The entry is reused by a later request; its vectors keep their memory.
void Scheduler::forget(RequestRef ref) {
  Request& r = requests_[ref];
  r.keys.clear();
  r.num_generated = r.num_recoverable = 0;
  r.end_at_commit = false;
  free_refs_.push_back(ref);
}

// In the order of admission, as running_ is: one pass that looks at no request.
void Scheduler::drop_ended_from_running() {
  if (ended_.empty()) return;
  std::ranges::sort(ended_, {}, [&](RequestRef ref) { return requests_[ref].admission_seq; });
  auto next = ended_.begin();
  std::erase_if(running_, [&](RequestRef ref) {
    if (next == ended_.end() || *next != ref) return false;
    ++next;
    return true;
  });
  ended_.clear();
}

void Scheduler::abort(uint64_t id, int64_t now_ns) {
  const RequestRef ref = find_request(id);
  if (ref == kNoRequest || requests_[ref].end_at_commit) return;
  Request& r = requests_[ref];
  note(now_ns, r, decision::Abort{});
  if (r.num_in_flight > 0) {
    r.end_at_commit = true;
    r.end_reason = FinishReason::abort;
    return;
  }
  if (r.state == RequestState::queued || r.state == RequestState::preempted) {
    finish_waiting(ref, FinishReason::abort, now_ns);
  } else {
    finish_running(ref, FinishReason::abort, now_ns);
    drop_ended_from_running();
  }
  settle_transfers(now_ns);
}

}  // namespace loratory::sim
