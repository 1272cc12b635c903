#pragma once

#include <span>
#include <vector>

#include "reference/model/model.hpp"

namespace loratory::reference {

/// The logits of the last token of a sequence, written down a second time: plain loops over
/// std::vector<double>, one token after the other, complex numbers for RoPE, RoPE frequencies
/// given. What forward() computes, with nothing of it used.
std::vector<double> naive_logits(const Model& model, std::span<const double> rope_frequencies,
                                 double rope_factor, std::span<const int32_t> tokens);

}  // namespace loratory::reference
