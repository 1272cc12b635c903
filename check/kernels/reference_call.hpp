#pragma once

#include <optional>

#include "check/cases/case_data.hpp"
#include "check/kernels/place_case.hpp"
#include "check/loratory_plugin.h"
#include "reference/lora/linear.hpp"
#include "reference/quantized/quantized_linear.hpp"

namespace loratory::check {

/// What the call asks for, computed by the operations of reference/ in host memory.
/// Errors   InputError, as the operation.
void run_reference(const LoratoryLayer& layer, const LoratoryCall& call);

/// The output of `step` as the reference computes it; `step` stays as it is.
reference::Tensor reference_output(const CaseData& data, const StepData& step);

/// The arguments of linear and logits on weights that are not stacked; of shrink, expand and linear
/// on 8-bit ones.
reference::LinearArgs linear_args(const LoratoryLayer& layer, const LoratoryCall& call);
reference::QuantizedShrinkArgs quantized_shrink_args(const LoratoryLayer& layer,
                                                     const LoratoryCall& call);
reference::QuantizedExpandArgs quantized_expand_args(const LoratoryLayer& layer,
                                                     const LoratoryCall& call);
reference::QuantizedLinearArgs quantized_linear_args(const LoratoryLayer& layer,
                                                     const LoratoryCall& call);

/// A step of a case in host memory, as run_reference() takes it. Lifetime: of `data` and `step`.
class InHostMemory {
 public:
  InHostMemory(const CaseData& data, const StepData& step);
  InHostMemory(const InHostMemory&) = delete;
  InHostMemory& operator=(const InHostMemory&) = delete;
  const LoratoryLayer& layer() const { return layer_.layer; }
  const LoratoryCall& call() const { return call_.call; }

 private:
  PlacedLayer layer_;
  PlacedCall call_;
};

}  // namespace loratory::check
