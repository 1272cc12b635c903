#pragma once

#include <cstdint>

#include "gpu/layout/segments.hpp"
#include "gpu/moe/router.hpp"
#include "gpu/plan/divisor.hpp"

// What is left of the calls of this folder once everything is checked: what the kernels read. The
// .cu files do it, the only part that needs CUDA. Strides are in elements, of the outer axis.

namespace loratory::gpu {

struct RouterLaunch {
  const float* logits;
  int64_t stride;
  int32_t num_tokens, num_experts, k;
  RouterKind kind;
  int32_t* experts;
  float* weights;
  const int32_t* token_rows;
};
void launch_router(const RouterLaunch& launch, CUstream_st* stream, LaunchOrder order);

struct CombineLaunch {
  const void* z;
  void* y;
  int64_t z_stride, y_stride;
  int32_t num_tokens, size, k;
  const float* router_weights;
  const int32_t *experts, *expert_map;
  bool uses_vectors;
  reference::Dtype dtype;
};
void launch_combine(const CombineLaunch& launch, CUstream_st* stream, LaunchOrder order);

struct ExpertProductLaunch {
  const void *x, *weights;
  void* y;
  int64_t x_stride, weight_stride, expert_stride, y_stride;
  int32_t num_in, num_out;
  Divisor rows_per_x;
  const int32_t* num_segments;
  const Segment* segments;
  const int32_t* rows;   ///< as SegmentView::token_indices
  int32_t max_segments;  ///< the grid is cut for so many
  int32_t segment_size;
  reference::Dtype dtype;
};
void launch_expert_product(const ExpertProductLaunch& launch, CUstream_st* stream,
                           LaunchOrder order);

}  // namespace loratory::gpu
