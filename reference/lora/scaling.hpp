#pragma once

#include <cstdint>

namespace loratory::reference {

/// alpha / rank, or alpha / sqrt(rank) for rsLoRA; in double, rounded once to fp32.
/// alpha and rank are this module's, after alpha_pattern and rank_pattern; rank is the adapter's,
/// never the buffer's. alpha may be 0, negative and fractional.
/// Errors   InputError: alpha not finite, rank < 1, a quotient that overflows fp32.
/// Source   statements [1.10]-[1.12]; PEFT, tuners/lora/layer.py.
float lora_scaling(double alpha, int32_t rank, bool use_rslora);

}  // namespace loratory::reference
