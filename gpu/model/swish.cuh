#pragma once

#include "gpu/kernels/ptx.cuh"

namespace loratory::gpu {

inline constexpr double kLog2E = 1.4426950408889634;
/// -alpha · log2(e) of silu, rounded once.
inline constexpr float kSiluSlope = float(-kLog2E);

/// g / (1 + e^(-alpha g)) by the approximate exponential and reciprocal, whose errors the bound
/// counts. `slope` is -alpha · log2(e).
__device__ inline float swish(float g, float slope) {
  return __fmul_rn(g, reciprocal_of(__fadd_rn(1.0f, exp2_of(__fmul_rn(g, slope)))));
}

/// One number of SwiGLU, before it is rounded.
__device__ inline float silu_mul(float gate, float up) {
  return __fmul_rn(swish(gate, kSiluSlope), up);
}

}  // namespace loratory::gpu
