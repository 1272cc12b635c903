#pragma once

#include <cstdint>

#include "gpu/model/batch_view.hpp"
#include "gpu/model/kv_view.hpp"
#include "gpu/model/sampler.hpp"
#include "gpu/plan/launch_order.hpp"
#include "reference/numerics/dtype.hpp"

// What is left of the calls of this folder once everything is checked: what the kernels read. The
// .cu files do it, the only part that needs CUDA. Strides are in elements, of the outer axis.

namespace loratory::gpu {

struct NormLaunch {
  void* x;
  const void* delta;  ///< or null
  const void* weight;
  void* y;
  const int32_t* rows;  ///< or null
  int64_t x_stride, delta_stride, y_stride;
  int32_t num_rows, hidden;
  float eps;
  bool writes_x;
  bool uses_vectors;  ///< everything is aligned to 16 bytes, and hidden a multiple of 8
  reference::Dtype dtype;
};
void launch_norm(const NormLaunch& launch, CUstream_st* stream, LaunchOrder order);

struct ActivationLaunch {
  const void* gate_up;
  void* y;
  int64_t in_stride, y_stride;
  int32_t num_tokens, size;
  bool uses_vectors;
  reference::Dtype dtype;
};
void launch_activation(const ActivationLaunch& launch, CUstream_st* stream, LaunchOrder order);

struct EmbedLaunch {
  BatchView batch;
  const void* table;
  void* x;
  int32_t* ids;
  int64_t table_stride_bytes, x_stride_bytes;
  int64_t row_bytes;
  int32_t vocab;
  bool uses_vectors;
};
void launch_embed(const EmbedLaunch& launch, CUstream_st* stream, LaunchOrder order);

struct RotaryLaunch {
  BatchView batch;
  KvView kv;
  void* qkv;
  const float *cos, *sin;
  const void *q_norm, *k_norm;  ///< or null
  int64_t qkv_stride;
  int32_t num_heads;
  float eps;
};
/// Which of the two kernels rotates heads of this size.
constexpr bool rotates_by_vectors(int32_t head_dim) {
  return head_dim >= 16 && head_dim <= 256 && (head_dim & (head_dim - 1)) == 0;
}
void launch_rotary(const RotaryLaunch& launch, CUstream_st* stream, LaunchOrder order);

struct SampleLaunch {
  const float* logits;
  int64_t stride;
  int32_t num_rows, vocab;
  SampleArgs args;
};
void launch_sample(const SampleLaunch& launch, CUstream_st* stream, LaunchOrder order);

}  // namespace loratory::gpu
