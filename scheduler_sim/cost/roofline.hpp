#pragma once

#include <cstdint>
#include <vector>

#include "scheduler_sim/cost/gpu_spec.hpp"
#include "scheduler_sim/cost/lora_shapes.hpp"
#include "scheduler_sim/cost/model_spec.hpp"
#include "scheduler_sim/cost/step_time.hpp"

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

/// step = sum over parts of max(FLOPs / achievable FLOP/s, bytes / achievable bandwidth), plus
/// launch and engine overheads. Formulas and units: docs/cost_model.md. O(1), no allocation,
/// IEEE arithmetic only: the same shape gives the same nanoseconds on any machine.
class RooflineModel final : public StepTimeModel {
 public:
  /// Throws InputError for a tp that does not divide the model.
  RooflineModel(const ModelSpec& model, const GpuSpec& gpu, const RooflineOptions& options);

  int64_t step_ns(const BatchShape& shape) const override;
  StepParts parts(const BatchShape& shape) const;

 private:
  double dense_ns(const BatchShape& shape) const;
  double attention_ns(const BatchShape& shape) const;
  double logits_ns(const BatchShape& shape) const;
  double lora_ns(const BatchShape& shape) const;
  double grid_ns(int64_t num_tokens) const;
  double allreduce_ns(const BatchShape& shape) const;
  void add_dense_costs(const ModelSpec& model, const GpuSpec& gpu);
  void add_attention_costs(const ModelSpec& model, double byte_ns, double flop_ns);
  void add_lora_costs(const ModelSpec& model, double byte_ns, double flop_ns);

  // Of all layers that are alike, in nanoseconds.
  struct AttentionCost {
    double window = 0;      // entries that a query sees at most; 0 = all
    double pair_ns = 0;     // of a (query, key) pair in prefill
    double context_ns = 0;  // to read one entry
    double decode_ns = 0;   // of one entry in decode
  };

  RooflineOptions options_;
  double num_layers_ = 0;
  // Nanoseconds per unit of the quantity in the name, for one GPU.
  double weights_ns_ = 0;
  double expert_ns_ = 0;  // weights of one expert in all layers
  double num_experts_ = 0, experts_per_token_ = 0;
  double token_flops_ns_ = 0;
  double token_activation_ns_ = 0;
  std::vector<AttentionCost> attention_;
  double lm_head_ns_ = 0;
  double sample_flops_ns_ = 0, sample_bytes_ns_ = 0;
  double rank_bytes_ns_ = 0;
  double rank_token_flops_ns_ = 0;
  double lora_token_bytes_ns_ = 0;
  double lora_pairs_ns_ = 0;
  double grid_shrinks_ = 0;  // shrink launches x slices in a step
  double grid_columns_ = 0;  // output columns of all expands in a step
  double allreduce_token_ns_ = 0;
};

}  // namespace loratory::sim
