#include "gpu/moe/router.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "gpu/model/model_checks.hpp"
#include "gpu/moe/moe_launch.hpp"

namespace loratory::gpu {

using reference::Dtype;

void route(const RouterArgs& args, CUstream_st* stream, LaunchOrder order) {
  check_matrix(args.logits, "route: logits");
  require(args.logits.dtype == Dtype::f32, "route: logits",
          fmt::format("has dtype {}, not f32", name(args.logits.dtype)));
  const int64_t num_experts = args.logits.shape[1];
  require(num_experts <= kMostExperts, "route: logits",
          fmt::format("has {} experts, at most {} fit", num_experts, kMostExperts));
  require(args.k >= 1 && args.k <= num_experts && args.k <= kMostChosen, "route: k",
          fmt::format("is {}, needs 1 to {}", args.k, std::min<int64_t>(num_experts, kMostChosen)));
  if (args.logits.shape[0] == 0) return;
  require(args.experts != nullptr, "route: experts", "is null");
  require(args.weights != nullptr, "route: weights", "is null");
  launch_router({.logits = static_cast<const float*>(args.logits.data),
                 .stride = args.logits.strides[0],
                 .num_tokens = int32_t(args.logits.shape[0]),
                 .num_experts = int32_t(num_experts),
                 .k = args.k,
                 .kind = args.kind,
                 .experts = args.experts,
                 .weights = args.weights,
                 .token_rows = args.token_rows},
                stream, order);
}

void combine_experts(const CombineArgs& args, CUstream_st* stream, LaunchOrder order) {
  check_matrix(args.z, "combine_experts: z");
  check_matrix(args.y, "combine_experts: y");
  const int64_t tokens = args.y.shape[0];
  if (tokens == 0) return;
  require(args.z.shape[0] >= tokens && args.z.shape[0] % tokens == 0, "combine_experts: z",
          fmt::format("has {} rows for {} tokens", args.z.shape[0], tokens));
  check_matrix_like(args.y, args.z.dtype, tokens, args.z.shape[1], "combine_experts: y");
  require(args.experts != nullptr, "combine_experts: experts", "is null");
  const int64_t size = args.y.shape[1];
  launch_combine(
      {.z = args.z.data,
       .y = args.y.data,
       .z_stride = args.z.strides[0],
       .y_stride = args.y.strides[0],
       .num_tokens = int32_t(tokens),
       .size = int32_t(size),
       .k = int32_t(args.z.shape[0] / tokens),
       .router_weights = args.router_weights,
       .experts = args.experts,
       .expert_map = args.expert_map,
       .uses_vectors = size % 8 == 0 && has_aligned_rows(args.z) && has_aligned_rows(args.y),
       .dtype = args.y.dtype},
      stream, order);
}

}  // namespace loratory::gpu
