#include <cstdint>

#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/kernels/ptx.cuh"
#include "gpu/model/eight.cuh"
#include "gpu/model/model_launch.hpp"
#include "gpu/model/swish.cuh"

namespace loratory::gpu {
namespace {

constexpr int kNumThreads = 256;
constexpr int kPerCta = 8 * kNumThreads;  // numbers of y

using reference::Activation;

// -alpha · log2(e), rounded once.
constexpr float kGptOssSlope = float(-double(reference::kGptOssAlpha) * kLog2E);

/// As reference::activate(): a NaN is not clamped.
__device__ float gpt_oss(float gate, float up) {
  constexpr float kLimit = reference::kGptOssLimit;
  const float g = gate > kLimit ? kLimit : gate;
  const float below = up > kLimit ? kLimit : up;
  const float u = below < -kLimit ? -kLimit : below;
  return __fmul_rn(__fadd_rn(u, 1.0f), swish(g, kGptOssSlope));
}

/// Eight of gate and of up, from number `at` of y on.
template <typename T, bool kVectors>
__device__ void load_halves(const T* row, int at, int size, Eight& gate, Eight& up) {
  gate = load_eight<T, kVectors>(row, at, size);
  up = load_eight<T, kVectors>(row + size, at, size);
}
template <typename T, bool kVectors>
__device__ void load_turns(const T* row, int at, int size, Eight& gate, Eight& up) {
  const Eight first = load_eight<T, kVectors>(row, 2 * at, 2 * size);
  const Eight second = load_eight<T, kVectors>(row, 2 * at + 8, 2 * size);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    gate.v[i] = first.v[2 * i], up.v[i] = first.v[2 * i + 1];
    gate.v[4 + i] = second.v[2 * i], up.v[4 + i] = second.v[2 * i + 1];
  }
}

template <typename T, bool kVectors, Activation kActivation>
__global__ void __launch_bounds__(kNumThreads)
    activation_kernel(const __grid_constant__ ActivationLaunch p, int ctas_per_token) {
  launch_dependents();
  wait_for_prior_grid();
  const int64_t token = blockIdx.x / unsigned(ctas_per_token);
  const int part = int(blockIdx.x % unsigned(ctas_per_token));
  const int at = part * kPerCta + 8 * int(threadIdx.x);
  if (at >= p.size) return;
  const T* const gate_row = static_cast<const T*>(p.gate_up) + token * p.in_stride;
  Eight gate, up;
  if constexpr (kActivation == Activation::silu) {
    load_halves<T, kVectors>(gate_row, at, p.size, gate, up);
#pragma unroll
    for (int i = 0; i < 8; ++i) up.v[i] = silu_mul(gate.v[i], up.v[i]);
  } else {
    load_turns<T, kVectors>(gate_row, at, p.size, gate, up);
#pragma unroll
    for (int i = 0; i < 8; ++i) up.v[i] = gpt_oss(gate.v[i], up.v[i]);
  }
  store_eight<T, kVectors>(static_cast<T*>(p.y) + token * p.y_stride, at, p.size, up);
}

template <typename T, Activation kActivation>
auto kernel_of(bool uses_vectors) {
  return uses_vectors ? &activation_kernel<T, true, kActivation>
                      : &activation_kernel<T, false, kActivation>;
}

template <typename T>
void launch(const ActivationLaunch& p, CUstream_st* stream, LaunchOrder order) {
  const int ctas_per_token = (p.size + kPerCta - 1) / kPerCta;
  launch_kernel(p.activation == Activation::silu
                    ? kernel_of<T, Activation::silu>(p.uses_vectors)
                    : kernel_of<T, Activation::gpt_oss>(p.uses_vectors),
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
