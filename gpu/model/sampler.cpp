#include "gpu/model/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "gpu/model/model_checks.hpp"
#include "gpu/model/model_launch.hpp"
#include "reference/model/sampling.hpp"

namespace loratory::gpu {
namespace {

constexpr int64_t kMostRows = 65535;  // of a grid

}  // namespace

SamplingRow sampling_row(const reference::SamplingParams& params, int64_t position,
                         int32_t num_top) {
  reference::check_sampling_params(params);
  require(num_top >= -1 && num_top <= kMostTopTokens, "sample: num_top",
          fmt::format("{} is not in [-1, {}]", num_top, kMostTopTokens));
  return {.temperature = params.temperature,
          .top_p = params.top_p,
          .seed = params.seed,
          .position = position,
          .top_k = int32_t(std::min<int64_t>(params.top_k, kMostVocab)),
          .num_top = num_top};
}

void sample(const SampleArgs& args, CUstream_st* stream, LaunchOrder order) {
  check_matrix(args.logits, "sample: logits");
  require(args.logits.dtype == reference::Dtype::f32, "sample: logits",
          fmt::format("has dtype {}, not f32", name(args.logits.dtype)));
  require(args.logits.shape[1] <= kMostVocab, "sample: logits",
          fmt::format("{} tokens are more than {}", args.logits.shape[1], kMostVocab));
  require(args.logits.shape[0] <= kMostRows, "sample: logits",
          fmt::format("{} rows are more than {}", args.logits.shape[0], kMostRows));
  require(args.max_top >= 0 && args.max_top <= kMostTopTokens, "sample: max_top",
          fmt::format("{} is not in [0, {}]", args.max_top, kMostTopTokens));
  if (args.logits.shape[0] == 0) return;
  require(args.rows != nullptr && args.tokens != nullptr, "sample", "rows or tokens is null");
  require(args.max_top == 0 || (args.logprobs != nullptr && args.top_tokens != nullptr &&
                                args.top_logprobs != nullptr),
          "sample: max_top", "has no room: logprobs, top_tokens or top_logprobs is null");
  launch_sample({.logits = static_cast<const float*>(args.logits.data),
                 .stride = args.logits.strides[0],
                 .num_rows = int32_t(args.logits.shape[0]),
                 .vocab = int32_t(args.logits.shape[1]),
                 .args = args},
                stream, order);
}

}  // namespace loratory::gpu
