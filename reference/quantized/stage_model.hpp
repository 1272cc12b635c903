#pragma once

#include "reference/lora/delta_model.hpp"
#include "reference/quantized/quantized_linear.hpp"

// The stages of oracle.hpp as random numbers: docs/error_bounds.md, "Errors as random numbers".

namespace loratory::reference {

/// h[i, t, j] at row i·T + t, column j. Of `arithmetic` as in error_bound(StageFacts).
/// Cost O(T·S·R·K).
DeltaModels stage_models(const QuantizedShrinkArgs& args, const Arithmetic& arithmetic);

/// y[t, n] from h as it stands in args; args.y is read as base and not written. split_h: a wide h
/// meets B in two parts (operand_rounding has kSplitOfH then). Cost O(T·S·R·N).
DeltaModels stage_models(const QuantizedExpandArgs& args, const Arithmetic& arithmetic,
                         bool split_h = false);

/// y[t, n] of lora_linear_quantized, whose h is a random number too; quantised to nearest if x is
/// 8-bit. Elements whose h may be quantised with any factor have no model. By tensor all rows err
/// together and are one group. split_h: as above, operand_rounding as of the shrink. Cost
/// O(T·S·R·(K + N)).
DeltaModels stage_models(const QuantizedLinearArgs& args, const Arithmetic& arithmetic,
                         bool split_h = false);

}  // namespace loratory::reference
