#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/layout/batch_layout.hpp"

namespace loratory::reference {

/// A request as the sampler sees it: which of its tokens in this step need logits.
struct SampledRequest {
  RequestTokens tokens;
  bool samples = false;          ///< its last token in this step is followed by a sampled one
  bool prompt_logprobs = false;  ///< every token needs logits
};

/// One entry for each row of logits: the slot that lm_head's adapter is taken from, and the token
/// whose hidden state is read. A middle chunk has no row unless prompt_logprobs asks for all.
/// Source   statements [2.14], [1.31].
struct SamplerMapping {
  std::vector<int32_t> row_slots;
  std::vector<int32_t> row_tokens;
};
/// Errors   as check_requests().
SamplerMapping make_sampler_mapping(std::span<const SampledRequest> requests);

/// vLLM's older form of row_slots: out[i] = i + slot·num_rows, the base model as slot max_loras.
/// Errors   as check_slots(); InputError if (max_loras + 1)·num_rows is beyond 2^31 - 1.
std::vector<int32_t> padded_sampler_indices(std::span<const int32_t> row_slots, int32_t max_loras);

}  // namespace loratory::reference
