#include "scheduler_sim/executors/batch_shape.hpp"

#include <algorithm>

namespace loratory::sim {

BatchShape batch_shape(const StepPlan& plan, const Residency& residency) {
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

const BatchShape& BatchShapes::next(const StepPlan& plan, const Residency& residency) {
  BatchShape shape = batch_shape(plan, residency);
  // A row that comes has prefill tokens, so equal numbers of decoding rows are the same rows.
  shape.rows_changed = shape.num_prefill_tokens > 0 || shape_.num_prefill_tokens > 0 ||
                       shape.num_seqs != shape_.num_seqs;
  return shape_ = shape;
}

void BatchShapes::skip_steps(int64_t num_steps) {
  shape_.decode_context_tokens += num_steps * shape_.num_seqs;
  shape_.longest_decode_context += num_steps;
  if (num_steps > 0) shape_.rows_changed = false;
}

}  // namespace loratory::sim
