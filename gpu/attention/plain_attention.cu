#include "gpu/attention/plain_attention.cuh"
#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {
namespace {

using namespace plain;

template <typename T>
__global__ void __launch_bounds__(kThreads, 8)
    plain_attention_kernel(const __grid_constant__ AttentionParams params) {
  extern __shared__ float memory[];
  PlainCta<T>(params, memory).run();
}

template <typename T>
void launch_for(const AttentionLaunch& of) {
  const AttentionParams& p = of.params;
  const int64_t num_ctas = int64_t(p.num_tokens) * p.group * p.kv_heads;
  if (num_ctas == 0) return;
  plain_attention_kernel<T>
      <<<unsigned(num_ctas), kThreads, shared_bytes(p.head_dim), of.stream>>>(p);
  LORATORY_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_plain_attention(const AttentionLaunch& of) {
  if (of.dtype == reference::Dtype::f32)
    launch_for<float>(of);
  else if (of.dtype == reference::Dtype::bf16)
    launch_for<__nv_bfloat16>(of);
  else
    launch_for<__half>(of);
}

}  // namespace loratory::gpu
