#pragma once

#include <cstdint>

#include "gpu/model/batch_view.hpp"
#include "gpu/model/kv_view.hpp"
#include "gpu/model/sampler.hpp"
#include "gpu/plan/kernel_params.hpp"
#include "gpu/plan/launch_order.hpp"
#include "reference/moe/activation.hpp"
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
  reference::Activation activation;  ///< silu: halves; gpt_oss: columns that alternate
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

struct EmbeddingShrinkLaunch {
  const void* a;
  const float* factors;  ///< of f8_e4m3fn
  float* h;
  const int32_t *ranks, *slots, *ids;
  int64_t slot_stride, rank_stride, h_stride;
  int32_t num_tokens, num_slots, vocab;
  reference::Dtype dtype;  ///< of A
};
void launch_embedding_shrink(const EmbeddingShrinkLaunch& launch, CUstream_st* stream,
                             LaunchOrder order);

inline constexpr int kShrinkTokens = 8;  ///< of a CTA, one for each warp
constexpr int64_t num_shrink_ctas(int64_t num_tokens) {
  return (num_tokens + kShrinkTokens - 1) / kShrinkTokens;
}
constexpr int shrink_token(int cta, int thread) { return cta * kShrinkTokens + thread / 32; }

struct LoraBiasLaunch {
  struct Slice {
    const void* bias = nullptr;  ///< null: nothing is added
    const int32_t* ranks = nullptr;
    int64_t stride = 0, offset = 0;  ///< of a slot; first column of y
    int32_t columns = 0, num_slots = 0;
  };
  void* y;
  const int32_t* slots;
  int64_t y_stride;
  int32_t num_tokens;
  bool uses_vectors;  ///< every slice begins and ends at a vector of y and of its bias
  reference::Dtype dtype;
  int32_t num_slices = 0;
  Slice slices[kMaxSlices] = {};
};
void launch_lora_bias(const LoraBiasLaunch& launch, CUstream_st* stream, LaunchOrder order);

inline constexpr int kBiasThreads = 128;  ///< of a CTA, eight columns each
inline constexpr int kBiasColumns = 8 * kBiasThreads;
constexpr int64_t num_bias_ctas(int64_t columns) {
  return (columns + kBiasColumns - 1) / kBiasColumns;
}
constexpr int bias_column(int cta, int thread) { return cta * kBiasColumns + 8 * thread; }

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
