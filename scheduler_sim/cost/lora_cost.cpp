#include "scheduler_sim/cost/lora_cost.hpp"

#include <algorithm>
#include <set>

namespace loratory::sim {

LoraCost::LoraCost(const ModelSpec& model, const GpuSpec& gpu, const RooflineOptions& options)
    : options_(options),
      grid_(model, options.targets, options.tp, std::max<int64_t>(options.lora_padded_rank, 1),
            options.lora_grid_max_loras) {
  model.require_divisible(options.tp);
  const double byte_ns = 1e9 / (gpu.bandwidth_bytes_per_s * gpu.bandwidth_fraction);
  const double flop_ns = 1e9 / (gpu.flops * gpu.matmul_fraction);
  const double num_experts = std::max<double>(1, double(model.num_experts));
  const double experts_per_token = std::max<double>(1, double(model.experts_per_token));
  const double dtype = double(model.dtype_bytes);
  const double lora_dtype = double(lora_dtype_bytes(model, options_.lora_dtype));
  std::set<int> groups;
  for (const ModuleShape& shape : lora_shapes(model, options_.targets, options_.tp)) {
    // An embedding gathers columns of A; its matrix is never read as a whole.
    const bool gather = shape.name == "embed_tokens";
    const double in = gather ? 0 : double(shape.in);
    const double out = double(shape.out);
    const double count = double(shape.count);
    const double layers = shape.is_expert() ? count / num_experts : count;  // launches
    const double used = shape.is_expert() ? layers * experts_per_token : layers;
    const bool first_of_group = groups.insert(shape.group).second;

    rank_bytes_ns_ += count * (in + out) * lora_dtype * byte_ns;
    rank_token_flops_ns_ += 2 * used * (in + out) * flop_ns;
    const double inputs = first_of_group ? in : 0;  // a packed layer reads its input once
    token_bytes_ns_ += used * (inputs + 2 * out) * dtype * byte_ns;
    if (first_of_group) pairs_ns_ += layers * options_.lora_pair_overhead_ns;
  }
}

double LoraCost::grid_ns(int64_t num_tokens) const {
  return (grid_.shrink_blocks(num_tokens) + grid_.expand_blocks(num_tokens)) *
         options_.lora_grid_block_ns;
}

double LoraCost::operator()(const BatchShape& shape) const {
  if (shape.num_adapters == 0) {
    const bool launches = options_.lora_graphs == LoraGraphs::with_lora_only;
    return launches ? pairs_ns_ + grid_ns(shape.num_tokens) : 0;
  }
  const int64_t padded = options_.lora_padded_rank;
  const int64_t ranks = padded > 0 ? shape.num_adapters * padded : shape.sum_rank;
  const int64_t rank_tokens = padded > 0 ? shape.num_lora_tokens * padded : shape.lora_rank_tokens;
  const double matrices =
      std::max(double(ranks) * rank_bytes_ns_, double(rank_tokens) * rank_token_flops_ns_);
  return matrices + double(shape.num_lora_tokens) * token_bytes_ns_ + pairs_ns_ +
         grid_ns(shape.num_tokens);
}

}  // namespace loratory::sim
