// The running half of a plan: every running request gets its tokens, or somebody is preempted.
#include <algorithm>

#include "reference/base/check.hpp"
#include "scheduler_sim/scheduler/scheduler.hpp"

namespace loratory::sim {

const StepPlan& Scheduler::plan(int64_t now_ns) {
  LORATORY_ASSERT(num_in_flight_ < 2, "one step at a time, and one ahead of it");
  plan_ = in_flight_[0] == &plans_[0] ? &plans_[1] : &plans_[0];
  plan_->rows.clear();
  plan_->adapters.clear();
  plan_->wait_for.clear();
  plan_->copied_again.clear();
  plan_->num_tokens = plan_->num_decode_rows = plan_->num_waiting_seen = 0;
  plan_->num_discarded = 0;
  budget_ = config_.max_num_batched_tokens;
  preempted_in_plan_ = walk_stopped_at_drain_ = false;

  schedule_running(now_ns);
  const bool walks = !preempted_in_plan_ && !waiting_.empty();
  if (walks) {
    starvation_.begin_walk(running_, now_ns);
    walk_order_.begin_walk();
  }
  const uint64_t num_changes_before = num_changes();
  if (walks) end_walk(visit_candidates(now_ns), now_ns);
  if (!plan_->empty()) begin_step();
  settle_transfers(now_ns);

  regular_at_change_.reset();
  if (num_in_flight_ == 1 && is_regular_plan()) regular_at_change_ = num_changes_before;
  return *plan_;
}

void Scheduler::end_walk(const WalkEnd& end, int64_t now_ns) {
  if (config_.count_waiting_seen) {
    const size_t passed_over = end.stop ? waiting_.num_before(*end.stop) : waiting_.size();
    plan_->num_waiting_seen += uint32_t(passed_over);
  }
  starvation_.end_walk(end, now_ns);
}

void Scheduler::begin_step() {
  plan_->step = ++num_steps_;
  in_flight_[num_in_flight_++] = plan_;
  collect_adapters();
  prepare_adapters();
  pack_rows();
}

// What it says about itself; what was decided meanwhile is counted.
bool Scheduler::is_regular_plan() const {
  return !plan_->empty() && plan_->decode_only() && !preempted_in_plan_ && !walk_stopped_at_drain_;
}

// In admission order: a decode needs one token and comes before any newer prefill.
void Scheduler::schedule_running(int64_t now_ns) {
  cursor_ = 0;
  for (schedule_decodes(); cursor_ < running_.size(); schedule_decodes()) {
    schedule_one_running(running_[cursor_++], now_ns);
  }
}

// Most rows are these: a request that decodes and has a block for its next token, or can have one.
// As many as come before the first other one.
void Scheduler::schedule_decodes() {
  const size_t first = cursor_, most = std::min<size_t>(running_.size() - first, budget_);
  uint32_t num_rows = 0;
  for (; num_rows < most; ++num_rows) {
    const RequestRef ref = running_[first + num_rows];
    Request& r = requests_[ref];
    if (r.state != RequestState::decoding) break;
    if (r.ends_in_flight()) break;
    const uint32_t num_computed = r.num_computed + r.num_in_flight;
    if (num_computed >= r.room) {
      if (pool_.num_allocatable() == 0) break;
      add_block(r);
    }
    ++r.num_in_flight;
    const Residency::Place place = place_of(r.adapter);
    plan_->rows.push_back({.request = ref,
                           .adapter = r.adapter,
                           .slot = place.slot,
                           .num_computed = num_computed,
                           .generation = place.generation,
                           .num_tokens = 1,
                           .is_decode = true,
                           .samples = true});
  }
  cursor_ += num_rows;
  plan_->num_tokens += num_rows;
  plan_->num_decode_rows += num_rows;
  budget_ -= num_rows;
}

void Scheduler::schedule_one_running(RequestRef ref, int64_t now_ns) {
  Request& r = requests_[ref];
  if (r.ends_in_flight()) return;
  const uint32_t num_computed = r.computed_ahead(), num_generated = r.generated_ahead();
  const uint32_t wanted = r.num_prompt + num_generated - num_computed;
  const uint32_t num_tokens = chunk_tokens(wanted, budget_);
  if (num_tokens == 0) return;
  if (!make_room(ref, num_computed + num_tokens, now_ns)) return;
  const bool is_decode = wanted == 1 && num_generated > 0;
  if (!is_decode) {
    note(now_ns, r, decision::Chunk{num_tokens, num_computed});
  }
  add_row(ref, num_tokens, is_decode);
}

uint32_t Scheduler::chunk_tokens(uint32_t wanted, uint32_t budget) const {
  const uint32_t threshold = config_.long_prefill_threshold;
  const uint32_t most = threshold > 0 ? std::min(budget, threshold) : budget;
  return std::min(wanted, most);
}

// Nobody may have to be preempted while a step computes for him.
bool Scheduler::can_plan_ahead() const {
  if (num_in_flight_ != 1) return false;
  uint64_t num_new_blocks = 0;
  uint32_t budget = config_.max_num_batched_tokens;
  for (const RequestRef ref : running_) {
    const Request& r = requests_[ref];
    if (r.ends_in_flight()) continue;
    const uint32_t num_computed = r.computed_ahead();
    const uint32_t wanted = r.num_prompt + r.generated_ahead() - num_computed;
    const uint32_t num_tokens = chunk_tokens(wanted, budget);
    budget -= num_tokens;
    num_new_blocks += missing_blocks(r, num_computed + num_tokens);
  }
  return num_new_blocks <= pool_.num_allocatable();
}

// Blocks for `num_tokens` in all; preempts until they are there. False: the request itself had to
// go.
bool Scheduler::make_room(RequestRef ref, uint32_t num_tokens, int64_t now_ns) {
  Request& r = requests_[ref];
  const uint32_t needed = blocks_for(num_tokens);
  while (needed > r.blocks.size() + pool_.num_allocatable()) {
    const RequestRef victim = preemption_victim();
    preempt(victim, now_ns);
    if (victim == ref) return false;
  }
  while (r.blocks.size() < needed) add_block(r);
  return true;
}

// The last one by (priority, admission).
RequestRef Scheduler::preemption_victim() const {
  return *std::ranges::max_element(running_, {}, [&](RequestRef ref) {
    const Request& r = requests_[ref];
    return std::pair(r.priority, r.admission_seq);
  });
}

// Recompute: its blocks go (published ones stay cached), its generated tokens stay.
void Scheduler::preempt(RequestRef ref, int64_t now_ns) {
  Request& r = requests_[ref];
  LORATORY_ASSERT(num_in_flight_ == 0, "no step computes for a request that is preempted");
  preempted_in_plan_ = true;
  if (r.num_in_flight > 0) remove_row(ref);
  note(now_ns, r, decision::Preemption{r.num_computed});
  r.num_recoverable = std::max(r.num_recoverable, r.num_computed);
  release_blocks(r);
  r.state = RequestState::preempted;
  r.wait_key.not_preempted = 0;
  const auto place = std::ranges::find(running_, ref);
  if (size_t(place - running_.begin()) < cursor_) --cursor_;
  running_.erase(place);
  waiting_.insert(ref);
  if (r.adapter != kBaseRef) residency_.preempted(r.adapter);
}

void Scheduler::add_row(RequestRef ref, uint32_t num_tokens, bool is_decode) {
  Request& r = requests_[ref];
  const uint32_t num_computed = r.computed_ahead();
  const uint32_t num_total = r.num_prompt + r.generated_ahead();
  const bool samples = num_computed + num_tokens == num_total && r.max_new_tokens > 0;
  ++r.num_in_flight;
  r.last_row_tokens = num_tokens;
  const Residency::Place place = place_of(r.adapter);
  plan_->rows.push_back({.request = ref,
                         .adapter = r.adapter,
                         .slot = place.slot,
                         .num_computed = num_computed,
                         .generation = place.generation,
                         .num_tokens = num_tokens,
                         .is_decode = is_decode,
                         .samples = samples});
  plan_->num_tokens += num_tokens;
  plan_->num_decode_rows += is_decode;
  budget_ -= num_tokens;
}

void Scheduler::remove_row(RequestRef ref) {
  const auto row = std::ranges::find(plan_->rows, ref, &StepRow::request);
  plan_->num_tokens -= row->num_tokens;
  plan_->num_decode_rows -= row->is_decode;
  budget_ += row->num_tokens;
  plan_->rows.erase(row);
  --requests_[ref].num_in_flight;
}

// Refreshes GPU recency: once per adapter of the step, in order of first appearance.
void Scheduler::collect_adapters() {
  std::vector<StepAdapter>& adapters = plan_->adapters;
  adapters.resize(size_t(residency_.num_claimants()));  // each of them claims a place
  place_in_step_.resize(residency_.ref_limit());
  uint32_t num_adapters = 0;
  for (const StepRow& row : plan_->rows) {
    if (row.adapter == kBaseRef) continue;
    uint32_t& place = place_in_step_[row.adapter];
    if (place >= num_adapters || adapters[place].adapter != row.adapter) {
      place = num_adapters++;
      adapters[place] = {.adapter = row.adapter, .num_tokens = 0};
      residency_.touch_gpu(row.adapter);
    }
    adapters[place].num_tokens += row.num_tokens;
  }
  adapters.resize(num_adapters);
}

void Scheduler::find_copied_again() {
  const bool all_ready = std::ranges::all_of(
      plan_->adapters, [&](const StepAdapter& a) { return residency_.ready(a.adapter); });
  if (!all_ready) {
    plan_->copied_again = activation_.copied_again(plan_->adapters, residency_);
  }
  activation_.ran(plan_->adapters, plan_->step);
}

// Blocking mode, second phase: every adapter of the step claims its place by now, so none of them
// can be a victim while the missing ones get their slots.
void Scheduler::prepare_adapters() {
  if (config_.load_mode != LoadMode::blocking) return;
  if (config_.activation == ActivationOrder::one_by_one) find_copied_again();
  for (const auto& [adapter, num_tokens] : plan_->adapters) {
    if (residency_.ready(adapter)) continue;
    residency_.assign_slot_now(adapter);
    plan_->wait_for.push_back(adapter);
  }
  if (plan_->wait_for.empty()) return;
  for (StepRow& row : plan_->rows) bind_slot(row);
}

// Rows of one adapter side by side: changes the order of rows, nothing else.
void Scheduler::pack_rows() {
  const bool pack = config_.pack == PackMode::on ||
                    (config_.pack == PackMode::prefill_only && plan_->num_decode_rows == 0);
  if (!pack) return;
  std::ranges::stable_sort(plan_->rows, {},
                           [&](const StepRow& row) { return uid_of(row.adapter); });
}

}  // namespace loratory::sim
