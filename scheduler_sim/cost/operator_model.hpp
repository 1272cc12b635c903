#pragma once

#include <optional>
#include <string>
#include <vector>

#include "scheduler_sim/cost/lora_times.hpp"
#include "scheduler_sim/cost/operator_times.hpp"
#include "scheduler_sim/cost/roofline.hpp"
#include "scheduler_sim/cost/split_attention.hpp"
#include "scheduler_sim/cost/step_overheads.hpp"

namespace loratory::sim {

/// Step times from measured operators: the GEMMs of the model's own shapes, attention, all-reduce,
/// and the named terms of StepOverheads. What the table lacks for a model comes from the roofline.
/// docs/cost_model.md has the formulas. A step costs a few searches of short axes and no
/// allocation; the same shape gives the same nanoseconds on any machine.
class OperatorModel final : public StepTimeModel {
 public:
  /// Throws InputError for a tp that does not divide the model.
  OperatorModel(const ModelSpec& model, const GpuSpec& gpu, const OperatorTable& table,
                const RooflineOptions& options, const StepOverheads& overheads);

  int64_t step_ns(const BatchShape& shape) const override;
  bool asks_waiting_seen() const override { return overheads_.host_waiting_ns != 0; }
  StepParts parts(const BatchShape& shape) const;
  /// The parts that the roofline gives, each in a few words: "latent attention".
  const std::vector<std::string>& from_roofline() const { return from_roofline_; }
  /// "operators measured on H100-80 (vLLM 0.24.0)", and what is scaled or not measured.
  const std::string& description() const { return description_; }

 private:
  void add_dense(const ModelSpec& model, const OperatorTimes& times);
  std::string dense_problem(const ModelSpec& model, const OperatorTimes& times);
  void add_attention(const ModelSpec& model, const OperatorTimes& times);
  void add_allreduce(const ModelSpec& model, const OperatorTimes& times);
  double attention_ns(const BatchShape& shape) const;
  AttentionCall shared_call(const BatchShape& shape) const;
  double combine_ns(const BatchShape& shape) const;
  double prefill_ns(const BatchShape& shape, double rows, double window) const;
  double allreduce_ns(const BatchShape& shape, int64_t tokens) const;
  double overhead_ns(const BatchShape& shape, double gpu_ns, bool graph) const;

  // Layers whose attention is alike.
  struct AttentionLayers {
    double count = 0;
    double window = 0;  // 0 = every token
  };

  RooflineOptions options_;
  StepOverheads overheads_;
  RooflineModel roofline_;
  LoraTimes lora_;
  std::vector<std::string> from_roofline_;
  bool similar_experts_ = false;  // of another model, scaled
  std::string description_;
  double num_layers_ = 0;
  std::optional<Curve> dense_, lm_head_;
  std::vector<AttentionLayers> attention_;
  std::optional<Surface> decode_, wide_decode_;  // the second beside prompts
  std::optional<PrefillTimes> prefill_;
  int64_t heads_ = 0, kv_heads_ = 1;  // of this GPU
  std::optional<Curve> allreduce_;
  double token_bytes_ = 0;  // of the residual stream
  double small_kernels_ = 0;
  double kernels_ = 0;
  double logit_row_ns_ = 0;
  double penalty_row_ns_ = 0;
};

}  // namespace loratory::sim
