#include "scheduler_sim/executors/cost_executor.hpp"

#include <algorithm>

namespace loratory::sim {

BatchShape CostExecutor::shape_of(const StepPlan& plan) {
  BatchShape shape;
  ++call_;
  seen_.resize(residency_.ref_limit(), 0);
  shape.num_seqs = int64_t(plan.rows.size());
  shape.num_tokens = plan.num_tokens;
  for (const StepRow& row : plan.rows) {
    const int64_t tokens = row.num_tokens, before = row.num_computed;
    shape.num_sampled += row.samples;
    if (row.is_decode) {
      shape.decode_context_tokens += before + 1;
    } else {
      shape.num_prefill_tokens += tokens;
      shape.prefill_context_tokens += before + tokens;
      shape.prefill_pairs += tokens * before + tokens * (tokens + 1) / 2;
    }
    if (row.adapter == kBaseRef) continue;
    const int64_t rank = residency_.rank(row.adapter);
    shape.num_lora_tokens += tokens;
    shape.lora_rank_tokens += tokens * rank;
    if (seen_[row.adapter] == call_) continue;
    seen_[row.adapter] = call_;
    ++shape.num_adapters;
    shape.sum_rank += rank;
    shape.max_rank = std::max(shape.max_rank, rank);
  }
  return shape;
}

}  // namespace loratory::sim
