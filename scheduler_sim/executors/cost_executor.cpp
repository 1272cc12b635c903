#include "scheduler_sim/executors/cost_executor.hpp"

#include <algorithm>

namespace loratory::sim {

void CostExecutor::begin_load(const LoadStart& load, int64_t now_ns) {
  disk_.start(load.uid, load.bytes, now_ns);
}

void CostExecutor::begin_copy(const CopyStart& copy, int64_t now_ns) {
  copies_.start(copy.uid, copy.bytes, now_ns);
}

void CostExecutor::begin_step(const StepPlan& plan, const Scheduler& scheduler, int64_t now_ns) {
  BatchShape shape = shape_of(plan, scheduler.residency());
  // A row that comes has prefill tokens, so equal numbers of decoding rows are the same rows.
  shape.rows_changed = shape.num_prefill_tokens > 0 || shape_.num_prefill_tokens > 0 ||
                       shape.num_seqs != shape_.num_seqs;
  shape_ = shape;
  step_end_ns_ = now_ns + model_.step_ns(shape_);
  for (const AdapterRef adapter : plan.copied_again) {
    step_end_ns_ += copies_.duration_ns(scheduler.residency().bytes(adapter));
  }
}

Completion CostExecutor::next(int64_t until_ns) {
  Completion first;
  const auto offer = [&](int64_t time_ns, Completion::Kind kind) {
    if (time_ns <= until_ns && time_ns < first.time_ns) first = {time_ns, kind};
  };
  offer(disk_.next_completion().time_ns, Completion::Kind::load);
  offer(copies_.next_completion().time_ns, Completion::Kind::copy);
  offer(step_end_ns_, Completion::Kind::step);
  return first;
}

StepResult CostExecutor::end_step(const StepPlan&, const Scheduler&) {
  step_end_ns_ = kNever;
  return {};
}

BatchShape CostExecutor::shape_of(const StepPlan& plan, const Residency& residency) {
  BatchShape shape;
  shape.num_seqs = int64_t(plan.rows.size());
  shape.num_tokens = plan.num_tokens;
  shape.num_sampled = plan.num_decode_rows;  // each of them samples
  shape.num_waiting_seen = plan.num_waiting_seen;
  uint32_t longest_before = 0;
  for (const StepRow& row : plan.rows) {
    const int64_t tokens = row.num_tokens, before = row.num_computed;
    if (row.is_decode) [[likely]] {
      shape.decode_context_tokens += before;
      longest_before = std::max(longest_before, row.num_computed);
      continue;
    }
    shape.num_sampled += row.samples;
    shape.num_prefill_tokens += tokens;
    shape.longest_prefill = std::max(shape.longest_prefill, tokens);
    shape.prefill_context_tokens += before + tokens;
    shape.prefill_pairs += tokens * before + tokens * (tokens + 1) / 2;
  }
  if (plan.num_decode_rows > 0) {  // each reads what it has just written, too
    shape.decode_context_tokens += plan.num_decode_rows;
    shape.longest_decode_context = int64_t{longest_before} + 1;
  }
  for (const auto& [adapter, num_tokens] : plan.adapters) {
    const int64_t rank = residency.rank(adapter);
    shape.num_lora_tokens += num_tokens;
    shape.lora_rank_tokens += num_tokens * rank;
    ++shape.num_adapters;
    shape.sum_rank += rank;
    shape.max_rank = std::max(shape.max_rank, rank);
  }
  return shape;
}

}  // namespace loratory::sim
