#pragma once

#include "reference/lora/delta_model.hpp"
#include "reference/lora/oracle.hpp"
#include "reference/moe/moe_layer.hpp"

// What the operations on experts should give, in float64, each stage from the actual numbers of
// the stage before it: errors do not pile up over stages, so the bounds stay tight.

namespace loratory::reference {

/// Of expert_lora(): rows x columns of y; args.y is read as base and not written.
/// The bound counts the router weight as one more rounding; it holds for weights of at most 1.
Oracle expert_lora_oracle(const ExpertLoraArgs& args);

/// The same elements as random numbers. With router weights a mode that rounds h leaves open
/// whether the weight comes before: that rounding counts as random then.
DeltaModels expert_delta_models(const ExpertLoraArgs& args, const Arithmetic& arithmetic);

/// How expert_lora() computes with these arguments.
Arithmetic arithmetic_of(const ExpertLoraArgs& args);

/// |a - a*| of one act(gate) · up, rounded to `dtype`, from exact gate and up, in units of fp32
/// roundings: docs/moe.md. `up` is not looked at unless `gated`.
double activation_error_bound(Activation activation, bool gated, double gate, double up,
                              Dtype dtype);

/// Worst error/bound of each stage: above 1 is a wrong result, infinity too where an element that
/// LoRA does not cover changed a bit. Whoever wrote `stages` gets judged: rows of experts
/// elsewhere are not looked at.
struct MoeStageErrors {
  double input = 0, gate_up_base = 0, gate_up = 0, activated = 0, down_base = 0, down = 0, y = 0;

  double worst() const;
};

/// `lora` null: the base layer. Errors as moe_layer().
MoeStageErrors judge_stages(const MoeArgs& args, const MoeLora* lora, const MoeStages& stages);

}  // namespace loratory::reference
