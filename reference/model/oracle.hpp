#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/adapter/adapter.hpp"
#include "reference/model/forward.hpp"
#include "reference/model/sampling.hpp"

// The naive oracle: one request at a time, everything computed anew for every token, no cache, no
// batching, the adapter applied straight from its file. What every engine must reproduce.

namespace loratory::reference {

struct GenerateParams {
  SamplingParams sampling{};
  int64_t max_new_tokens = 0;
  std::vector<int32_t> stop_tokens{};  ///< one of them ends the request; it is part of the output
  bool prompt_logprobs = false;
};

struct Generation {
  std::vector<int32_t> tokens;
  std::vector<Vector<float>> logits;    ///< of each of `tokens`, before sampling
  std::vector<double> prompt_logprobs;  ///< of prompt tokens 1.. given those before
};

/// `adapter` null: the base model.
/// Errors   InputError: an empty prompt, a token outside the vocabulary.
Generation generate(const Model& model, const Adapter* adapter, std::span<const int32_t> prompt,
                    const GenerateParams& params);

/// Logits [vocab, tokens.size()] of every token of one sequence; `stored` as in forward().
template <typename Real>
Matrix<Real> sequence_logits(const Model& model, const Adapter* adapter,
                             std::span<const int32_t> tokens, Dtype stored = Dtype::f32);

/// The same in float64 (its values are those of sequence_logits<double>), each with a bound on how
/// far any float32 implementation may be, to first order; docs/error_bounds.md, "A whole model".
/// Two implementations differ by at most twice the bound. Infinite behind a token whose experts
/// rounding errors could change, and behind a norm that they could change much.
/// `stored` bf16 or f16: the bound of an engine that keeps its numbers so between kernels ("A whole
/// model in 16 bits"). The weights are taken as they are, so they must be numbers of that dtype.
/// Cost     memory of a few dozen bytes for every product; 16 logits as much time as one pass.
Matrix<Bounded> bounded_logits(const Model& model, const Adapter* adapter,
                               std::span<const int32_t> tokens, Dtype stored = Dtype::f32);

/// The same model with the adapter merged into its weights: W + scaling · B A, in float64, rounded
/// once to float.
Model merge(const Model& model, const Adapter& adapter);

}  // namespace loratory::reference
