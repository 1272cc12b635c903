#pragma once

#include "scheduler_sim/cost/lora_grid.hpp"
#include "scheduler_sim/cost/roofline_options.hpp"
#include "scheduler_sim/cost/step_time.hpp"

namespace loratory::sim {

/// What adapters add to a step: their bytes or FLOPs, launches, and the grid over idle slots.
/// docs/cost_model.md has the formulas.
class LoraCost {
 public:
  LoraCost(const ModelSpec& model, const GpuSpec& gpu, const RooflineOptions& options);
  double operator()(const BatchShape& shape) const;

 private:
  double grid_ns(int64_t num_tokens) const;

  RooflineOptions options_;
  // Nanoseconds per unit of the quantity in the name, for one GPU.
  double rank_bytes_ns_ = 0;
  double rank_token_flops_ns_ = 0;
  double token_bytes_ns_ = 0;
  double pairs_ns_ = 0;
  LoraGrid grid_;
};

}  // namespace loratory::sim
