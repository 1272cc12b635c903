#include "gpu/attention/attention_work.cuh"
#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {
namespace {

using namespace work;

__global__ void __launch_bounds__(kThreads)
    attention_work_kernel(const __grid_constant__ AttentionParams p) {
  __shared__ Shared s;
  run_cta(p, s);
}

}  // namespace

void launch_attention_work(const AttentionLaunch& launch) {
  attention_work_kernel<<<1, kThreads, 0, launch.stream>>>(launch.params);
  LORATORY_CUDA_CHECK(cudaGetLastError());
}

}  // namespace loratory::gpu
