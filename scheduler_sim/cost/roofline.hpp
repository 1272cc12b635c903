#pragma once

#include <cstdint>
#include <vector>

#include "scheduler_sim/cost/lora_cost.hpp"
#include "scheduler_sim/cost/roofline_options.hpp"
#include "scheduler_sim/cost/step_time.hpp"

namespace loratory::sim {

/// step = sum over parts of max(FLOPs / achievable FLOP/s, bytes / achievable bandwidth), plus
/// launch and engine overheads. Formulas and units: docs/cost_model.md. O(1), no allocation,
/// IEEE arithmetic only: the same shape gives the same nanoseconds on any machine.
class RooflineModel final : public StepTimeModel {
 public:
  /// Throws InputError for a tp that does not divide the model.
  RooflineModel(const ModelSpec& model, const GpuSpec& gpu, const RooflineOptions& options);

  int64_t step_ns(const BatchShape& shape) const override;
  bool asks_waiting_seen() const override { return false; }
  StepParts parts(const BatchShape& shape) const;
  double dense_ns(const BatchShape& shape) const;
  double attention_ns(const BatchShape& shape) const;
  double logits_ns(const BatchShape& shape) const;
  double allreduce_ns(const BatchShape& shape) const;
  /// Of dense_ns, what norms and activations read and write for each token.
  double activation_ns_per_token() const { return token_activation_ns_; }

 private:
  void add_dense_costs(const ModelSpec& model, const GpuSpec& gpu);
  void add_attention_costs(const ModelSpec& model, double byte_ns, double flop_ns);

  // Of all layers that are alike, in nanoseconds.
  struct AttentionCost {
    double window = 0;      // entries that a query sees at most; 0 = all
    double pair_ns = 0;     // of a (query, key) pair in prefill
    double context_ns = 0;  // to read one entry
    double decode_ns = 0;   // of one entry in decode
  };

  RooflineOptions options_;
  LoraCost lora_;
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
  double allreduce_token_ns_ = 0;
};

}  // namespace loratory::sim
