#pragma once

#include <cstdint>

#include "gpu/plan/launch_order.hpp"
#include "gpu/runtime/device_view.hpp"

struct CUstream_st;

namespace loratory::reference {
struct SamplingParams;
}

namespace loratory::gpu {

/// Most likely tokens whose log-probabilities a row may ask for.
inline constexpr int32_t kMostTopTokens = 1024;
/// Of sample() and its logits.
inline constexpr int64_t kMostVocab = 262'144;

/// How the token of one row is chosen; 40 bytes.
struct SamplingRow {
  double temperature = 0;
  double top_p = 1;
  uint64_t seed = 0;
  int64_t position = 0;  ///< of the token in its sequence
  int32_t top_k = 0;
  int32_t num_top = -1;  ///< -1: no log-probabilities. 0: of the token. n: and of the n likeliest
};
/// Errors   InputError: what reference::sample refuses; num_top outside -1 .. kMostTopTokens.
SamplingRow sampling_row(const reference::SamplingParams& params, int64_t position,
                         int32_t num_top = -1);

/// Arrays on the device. What a row has not asked for is left as it is.
struct SampleArgs {
  DeviceView logits;                  ///< f32 [R, vocab]; R up to 65,535, vocab up to kMostVocab
  const SamplingRow* rows = nullptr;  ///< [R]
  int32_t* tokens = nullptr;          ///< [R]
  double* logprobs = nullptr;         ///< [R], or null: no row asks for any
  int32_t* top_tokens = nullptr;      ///< [R, max_top], or null if max_top is 0
  double* top_logprobs = nullptr;     ///< [R, max_top]
  int32_t max_top = 0;                ///< a row gets no more, and no more than vocab
};

/// One token for each row, as reference::sample says; log-probabilities as log_probability does,
/// the likeliest first, the lower id of equals.
/// Equality greedy: always. Otherwise wherever no decision of the reference lies within the
///          rounding errors of float64: docs/error_bounds.md, "The kernels of a model".
/// Order    sums of weights are integers (units of 2^-63), so no order, no partition and no
///          neighbour changes a bit.
/// Errors   InputError: dtypes, shapes, vocab. std::runtime_error: CUDA's name and text; a GPU
///          without clusters.
/// Cost     logits are read once. A cluster of 8 CTAs for each row keeps them in shared memory.
void sample(const SampleArgs& args, CUstream_st* stream,
            LaunchOrder order = LaunchOrder::after_previous);

}  // namespace loratory::gpu
