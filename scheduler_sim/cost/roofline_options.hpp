#pragma once

#include <cstdint>

#include "scheduler_sim/cost/gpu_spec.hpp"
#include "scheduler_sim/cost/lora_kernels.hpp"
#include "scheduler_sim/cost/lora_shapes.hpp"
#include "scheduler_sim/cost/model_spec.hpp"

namespace loratory::sim {

/// CUDA graphs of a step. Engines capture one without and one with the LoRA kernels (G0, G1) and
/// replay G0 if no row has an adapter; some capture G1 alone, to halve the time of capture.
enum class LoraGraphs : uint8_t { both, with_lora_only };

/// What the engine adds to the hardware's limits. docs/cost_model.md says where each default
/// comes from.
struct RooflineOptions {
  int tp = 1;
  LoraTargets targets;
  LoraDtype lora_dtype = LoraDtype::of_model;
  /// with_lora_only: a step without adapters launches the LoRA kernels too, which find no work.
  LoraGraphs lora_graphs = LoraGraphs::both;
  LoraKernels lora_kernels = LoraKernels::loratory;  ///< with measured operators
  double step_overhead_ns = 1.2e6;     ///< scheduling, input preparation, sampling launch
  double seq_overhead_ns = 5e3;        ///< the same, per row of the batch
  double layer_overhead_ns = 10e3;     ///< the small kernels of one layer
  double lora_pair_overhead_ns = 9e3;  ///< launch of one shrink + expand pair
  double allreduce_latency_ns = 10e3;
  /// > 0: adapters cost as if all had this rank (an engine that pads to max_lora_rank);
  /// 0: their true ranks.
  int64_t lora_padded_rank = 0;
  /// > 0: kernels launch a grid for this many slots, idle or not (vLLM 0.8 Triton kernels:
  /// max_loras); 0: for the adapters in the batch only.
  int64_t lora_grid_max_loras = 0;
  double lora_grid_block_ns = 5.0;  ///< a thread block that finds no work and ends
  int64_t lora_registered = 0;  ///< adapters in host memory, with a slot or without; 0 = as slots
};

/// A step's duration by cause, in nanoseconds.
struct StepParts {
  double dense = 0;
  double attention = 0;
  double logits = 0;
  double lora = 0;
  double allreduce = 0;
  double overhead = 0;
  double total() const { return dense + attention + logits + lora + allreduce + overhead; }
};

}  // namespace loratory::sim
