#include <cstdint>

#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/kernels/ptx.cuh"
#include "gpu/model/eight.cuh"
#include "gpu/model/model_launch.hpp"

namespace loratory::gpu {
namespace {

constexpr int kNumThreads = 256;
constexpr int kPerCta = 8 * kNumThreads;  // numbers of y

/// g / (1 + e^-g) by the approximate exponential and reciprocal, whose errors the bound counts.
__device__ float silu(float g) {
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(__fmul_rn(g, -1.44269504f)));  // log2(e)
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(__fadd_rn(1.0f, power)));
  return __fmul_rn(g, inverse);
}

template <typename T, bool kVectors>
__global__ void __launch_bounds__(kNumThreads)
    silu_mul_kernel(const __grid_constant__ ActivationLaunch p, int ctas_per_token) {
  launch_dependents();
  wait_for_prior_grid();
  const int64_t token = blockIdx.x / unsigned(ctas_per_token);
  const int part = int(blockIdx.x % unsigned(ctas_per_token));
  const int at = part * kPerCta + 8 * int(threadIdx.x);
  if (at >= p.size) return;
  const T* const gate_row = static_cast<const T*>(p.gate_up) + token * p.in_stride;
  const Eight gate = load_eight<T, kVectors>(gate_row, at, p.size);
  Eight up = load_eight<T, kVectors>(gate_row + p.size, at, p.size);
#pragma unroll
  for (int i = 0; i < 8; ++i) up.v[i] = __fmul_rn(silu(gate.v[i]), up.v[i]);
  store_eight<T, kVectors>(static_cast<T*>(p.y) + token * p.y_stride, at, p.size, up);
}

template <typename T>
void launch(const ActivationLaunch& p, CUstream_st* stream, LaunchOrder order) {
  const int ctas_per_token = (p.size + kPerCta - 1) / kPerCta;
  launch_kernel(p.uses_vectors ? silu_mul_kernel<T, true> : silu_mul_kernel<T, false>,
                {.grid = unsigned(p.num_tokens) * unsigned(ctas_per_token), .block = kNumThreads},
                stream, order, p, ctas_per_token);
}

}  // namespace

void launch_activation(const ActivationLaunch& p, CUstream_st* stream, LaunchOrder order) {
  switch (p.dtype) {
    case reference::Dtype::f32:
      return launch<float>(p, stream, order);
    case reference::Dtype::f16:
      return launch<__half>(p, stream, order);
    default:
      return launch<__nv_bfloat16>(p, stream, order);
  }
}

}  // namespace loratory::gpu
