#pragma once

#include <cstdint>

#include "reference/numerics/matrix.hpp"

namespace loratory::reference {

/// How one token is chosen from its logits.
struct SamplingParams {
  double temperature = 0;  ///< 0 = greedy: the largest logit, the lowest id of equals
  int64_t top_k = 0;       ///< 0 = all
  double top_p = 1;
  uint64_t seed = 0;
};

/// The token at `position` of its sequence. A function of the arguments alone: the random number
/// is Philox(seed, position), not a state.
int32_t sample(const Vector<float>& logits, const SamplingParams& params, int64_t position);

/// log softmax(logits)[token], in float64.
double log_probability(const Vector<float>& logits, int32_t token);

}  // namespace loratory::reference
