#pragma once

#include <cstdint>

#include "gpu/plan/kernel_params.hpp"
#include "gpu/plan/lora_variant.hpp"
#include "gpu/plan/work_list.hpp"

namespace loratory::gpu {

/// Whether no two CTAs of a wide shrink may share an SM, although they fit. CTAs of the previous
/// kernel end one by one, and clusters start where there is room first: two on one SM, beside an SM
/// that is idle. Clusters that take more of the SMs would start too late, and so would shrinks of
/// up to 32 ranks. Measured on an H200: docs/kernel_measurements.md, CTAs kept apart.
/// Needs the item counts and num_sms of `p`.
inline bool keeps_ctas_apart(const LoraVariant& variant, const KernelParams& p) {
  constexpr int32_t kLongRows = 8192;  // columns of x; none between 4,096 and 14,336 was timed
  if (variant.sums_strips() || variant.cluster == 1 || p.max_rank * int32_t(p.num_slices) <= 32) {
    return false;
  }
  const int64_t ctas = most_clusters(LoraOp::shrink, p) * variant.cluster;
  return double(ctas) <= (p.num_in > kLongRows ? 0.75 : 0.6) * p.num_sms;
}

}  // namespace loratory::gpu
