#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "gpu/attention/attention_params.hpp"
#include "gpu/kernels/ptx.cuh"

// Attention on CUDA cores: any dtype, head_dim and block size. A CTA computes one head of a token,
// with one shift for all positions, which it finds first.

namespace loratory::gpu::plain {

constexpr int kThreads = 128;  // and the positions that are computed at a time

// The compiler loads the end of q four numbers at a time. They are nobody else's, or racecheck
// reports the ones that it does not use.
LORATORY_HOST_DEVICE constexpr int padded(int head_dim) { return (head_dim + 3) / 4 * 4; }
constexpr size_t shared_bytes(int head_dim) {
  return size_t(2 * padded(head_dim) + kThreads) * sizeof(float);
}

__device__ inline float as_float(float v) { return v; }
__device__ inline float as_float(__half v) { return __half2float(v); }
__device__ inline float as_float(__nv_bfloat16 v) { return __bfloat162float(v); }
template <typename T>
__device__ inline T rounded(float v);
template <>
__device__ inline float rounded<float>(float v) {
  return v;
}
template <>
__device__ inline __half rounded<__half>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ inline __nv_bfloat16 rounded<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

template <typename T>
class PlainCta {
 public:
  // memory: q, sums of columns and weights.
  __device__ PlainCta(const AttentionParams& params, float* memory)
      : p(params),
        thread(int(threadIdx.x)),
        token(int32_t(blockIdx.x) / (p.group * p.kv_heads)),
        head(int32_t(blockIdx.x) % (p.group * p.kv_heads)),
        q(memory),
        columns(memory + padded(p.head_dim)),
        weights(memory + 2 * padded(p.head_dim)),
        row(p.token_rows[token]) {}

  __device__ void run() {
    T* const out = static_cast<T*>(p.out) + token * p.out_stride + int64_t(head) * p.head_dim;
    if (row < 0 || p.contexts[row] == 0) {
      for (int i = thread; i < p.head_dim; i += kThreads) out[i] = rounded<T>(0);
      return;
    }
    const T* const from =
        static_cast<const T*>(p.q) + token * p.q_stride + int64_t(head) * p.head_dim;
    for (int i = thread; i < p.head_dim; i += kThreads) {
      q[i] = as_float(from[i]);
      columns[i] = 0;
    }
    __syncthreads();
    const int32_t end = p.contexts[row] - (p.row_starts[row + 1] - token) + 1;
    const float most = largest_score(end);
    float sum = 0;
    for (int32_t first = 0; first < end; first += kThreads) add_keys(first, end, most, sum);
    for (int i = thread; i < p.head_dim; i += kThreads) {
      out[i] = rounded<T>(__fadd_rn(__fdiv_rn(columns[i], sum), 0.0F));
    }
  }

 private:
  const AttentionParams& p;
  const int thread;
  const int64_t token;
  const int32_t head;
  float* const q;
  float* const columns;
  float* const weights;
  const int32_t row;

  __device__ const T* at(const void* tensor, int32_t position) const {
    const int64_t block = p.block_tables[int64_t(row) * p.max_blocks + position / p.block_size];
    return static_cast<const T*>(tensor) +
           ((block * p.kv_heads + head / p.group) * p.block_size + position % p.block_size) *
               p.head_dim;
  }

  __device__ float product(int32_t position) const {
    const T* const key = at(p.k, position);
    float sum = 0;
    for (int i = 0; i < p.head_dim; ++i) sum = __fmaf_rn(q[i], as_float(key[i]), sum);
    return sum;
  }

  __device__ float largest_score(int32_t end) const {
    float most = -INFINITY;
    for (int32_t i = thread; i < end; i += kThreads) most = fmaxf(most, product(i));
    weights[thread] = most;
    __syncthreads();
    for (int i = 0; i < kThreads; ++i) most = fmaxf(most, weights[i]);
    __syncthreads();
    return __fmul_rn(most, p.scale);
  }

  // Every thread has the sum of the weights; each column is one thread's.
  __device__ void add_keys(int32_t first, int32_t end, float most, float& sum) const {
    const int32_t mine = first + thread;
    if (mine < end) weights[thread] = expf(__fmaf_rn(product(mine), p.scale, -most));
    __syncthreads();
    const int32_t count = min(kThreads, end - first);
    for (int i = 0; i < count; ++i) sum = __fadd_rn(sum, weights[i]);
    for (int column = thread; column < p.head_dim; column += kThreads) {
      float acc = columns[column];
      for (int i = 0; i < count; ++i) {
        acc = __fmaf_rn(weights[i], as_float(at(p.v, first + i)[column]), acc);
      }
      columns[column] = acc;
    }
    __syncthreads();
  }
};

}  // namespace loratory::gpu::plain
