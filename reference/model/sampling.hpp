#pragma once

#include <cstdint>
#include <vector>

#include "reference/numerics/matrix.hpp"

namespace loratory::reference {

/// How one token is chosen from its logits.
struct SamplingParams {
  double temperature = 0;  ///< 0 = greedy: the largest logit, the lowest id of equals
  int64_t top_k = 0;       ///< 0 = all
  double top_p = 1;
  uint64_t seed = 0;
};

/// Errors   InputError: a temperature below 0 or not finite, top_k < 0, top_p outside (0, 1].
void check_sampling_params(const SamplingParams& params);

/// U of the token at `position`: in [0, 1), 53 bits.
double sampling_uniform(uint64_t seed, int64_t position);

/// The token at `position` of its sequence. A function of the arguments alone: the random number
/// is not a state.
///
/// Weights  e^((logit - largest) / temperature) in float64, sorted by weight descending, then by
///          id; the first top_k of them, then the fewest whose sum reaches top_p of the sum of
///          these; then the first whose cumulative sum exceeds U times the sum of those left. All
///          sums in that order.
/// U        sampling_uniform: 53 bits of Philox4x32-10, key = seed, counter = position (words low,
/// high). NaN      counts as -infinity, so that no NaN stops a batch; if all are, all are equal.
/// Errors   InputError: no logits, and those of check_sampling_params.
/// Cost     O(vocab log vocab).
/// Source   vLLM: top-k before top-p; Salmon et al. 2011 (Philox).
int32_t sample(const Vector<float>& logits, const SamplingParams& params, int64_t position);

/// log softmax(logits)[token], in float64.
double log_probability(const Vector<float>& logits, int32_t token);

struct TokenLogprob {
  int32_t token = 0;
  double logprob = 0;

  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

/// The `count` likeliest tokens (all, if there are fewer) with log_probability(), the likeliest
/// first, the lower id of equals; NaN logits come last.
std::vector<TokenLogprob> top_log_probabilities(const Vector<float>& logits, int64_t count);

}  // namespace loratory::reference
