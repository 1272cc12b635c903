#include <cstdint>

#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/kernels/ptx.cuh"
#include "gpu/model/eight.cuh"
#include "gpu/moe/moe_launch.hpp"

namespace loratory::gpu {
namespace {

// --- router -----------------------------------------------------------------------------------

constexpr int kRouterWarps = 4;  // a warp takes a token
constexpr uint32_t kAllLanes = 0xFFFFFFFF;

/// As reference/moe/exponential.hpp.
__device__ float exponential(float v) { return float(exp(double(v))); }

/// Larger numbers have larger keys, equal ones the same; no number has 0.
__device__ uint32_t key_of(float v) {
  const uint32_t bits = __float_as_uint(__fadd_rn(v, 0.0f));  // -0 becomes +0
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000;
}

struct Router {
  const RouterLaunch& p;
  float* const values;  // [E] of this token, in shared memory
  const int lane;

  __device__ float largest() const {
    float out = -INFINITY;
    for (int e = lane; e < p.num_experts; e += 32) out = fmaxf(out, values[e]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      out = fmaxf(out, __shfl_xor_sync(kAllLanes, out, step));
    }
    return out;
  }

  /// Values become probabilities. The sum goes over the experts in order; every lane adds it up.
  __device__ float softmax() const {
    const float most = largest();
    for (int e = lane; e < p.num_experts; e += 32) {
      values[e] = exponential(__fsub_rn(values[e], most));
    }
    __syncwarp();
    float sum = 0;
#pragma unroll 8
    for (int e = 0; e < p.num_experts; ++e) sum = __fadd_rn(sum, values[e]);
    __syncwarp();
    for (int e = lane; e < p.num_experts; e += 32) values[e] = __fdiv_rn(values[e], sum);
    __syncwarp();
    return sum;
  }

  __device__ bool has_nan() const {
    bool found = false;
    for (int e = lane; e < p.num_experts; e += 32) found = found || isnan(values[e]);
    return __any_sync(kAllLanes, found);
  }

  /// Lane i gets the i-th largest value and its expert; ties go to the lower one. Taken values
  /// become NaN, which no key stands for.
  __device__ void choose(int32_t& expert, float& value) const {
    for (int i = 0; i < p.k; ++i) {
      uint32_t best = 0;
      int at = INT32_MAX;
      for (int e = lane; e < p.num_experts; e += 32) {
        const float v = values[e];
        const uint32_t key = isnan(v) ? 0 : key_of(v);
        if (key > best) best = key, at = e;
      }
      const uint32_t most = __reduce_max_sync(kAllLanes, best);
      const int first = __reduce_min_sync(kAllLanes, best == most ? at : INT32_MAX);
      const float chosen = values[first];
      __syncwarp();
      if (lane == i) expert = first, value = chosen;
      if (lane == 0) values[first] = NAN;
      __syncwarp();
    }
  }

  /// Lane i < k has weight g_i, which is divided by the sum of all, added up in their order.
  __device__ float normalised(float weight) const {
    float sum = 0;
    for (int i = 0; i < p.k; ++i) sum = __fadd_rn(sum, __shfl_sync(kAllLanes, weight, i));
    return __fdiv_rn(weight, sum);
  }

  __device__ void run(int32_t& expert, float& weight) const {
    const bool of_chosen = p.kind == RouterKind::softmax_of_chosen;
    const bool is_nan = of_chosen ? has_nan() : isnan(softmax());
    if (is_nan) {
      expert = lane, weight = NAN;
      return;
    }
    choose(expert, weight);
    if (of_chosen) {
      const float most = __shfl_sync(kAllLanes, weight, 0);
      weight = lane < p.k ? exponential(__fsub_rn(weight, most)) : 0;
    }
    if (p.kind != RouterKind::softmax) weight = normalised(weight);
  }
};

__global__ void __launch_bounds__(32 * kRouterWarps)
    router_kernel(const __grid_constant__ RouterLaunch p) {
  launch_dependents();
  wait_for_prior_grid();
  extern __shared__ float shared[];
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int64_t token = int64_t(blockIdx.x) * kRouterWarps + warp;
  if (token >= p.num_tokens) return;
  int32_t expert = -1;
  float weight = 0;
  if (p.token_rows == nullptr || p.token_rows[token] >= 0) {
    const Router router{p, shared + warp * p.num_experts, lane};
    for (int e = lane; e < p.num_experts; e += 32) {
      router.values[e] = p.logits[token * p.stride + e];
    }
    __syncwarp();
    router.run(expert, weight);
  }
  if (lane >= p.k) return;
  p.experts[token * p.k + lane] = expert;
  p.weights[token * p.k + lane] = weight;
}

// --- combine ----------------------------------------------------------------------------------

constexpr int kNumThreads = 256;
constexpr int kPerCta = 8 * kNumThreads;  // numbers of y

__device__ bool is_here(const CombineLaunch& p, int64_t row) {
  const int32_t expert = p.experts[row];
  return expert >= 0 && (p.expert_map == nullptr || p.expert_map[expert] >= 0);
}

template <typename T, bool kVectors>
__global__ void __launch_bounds__(kNumThreads)
    combine_kernel(const __grid_constant__ CombineLaunch p, int ctas_per_token) {
  launch_dependents();
  wait_for_prior_grid();
  const int64_t token = blockIdx.x / unsigned(ctas_per_token);
  const int at = int(blockIdx.x % unsigned(ctas_per_token)) * kPerCta + 8 * int(threadIdx.x);
  if (at >= p.size) return;
  Eight sum{};
#pragma unroll 4
  for (int i = 0; i < p.k; ++i) {
    const int64_t row = token * p.k + i;
    if (!is_here(p, row)) continue;
    const float weight = p.router_weights == nullptr ? 1 : p.router_weights[row];
    const Eight z =
        load_eight<T, kVectors>(static_cast<const T*>(p.z) + row * p.z_stride, at, p.size);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum.v[j] = __fadd_rn(sum.v[j], __fmul_rn(weight, z.v[j]));
  }
  store_eight<T, kVectors>(static_cast<T*>(p.y) + token * p.y_stride, at, p.size, sum);
}

template <typename T>
void launch(const CombineLaunch& p, CUstream_st* stream, LaunchOrder order) {
  const int ctas_per_token = (p.size + kPerCta - 1) / kPerCta;
  launch_kernel(p.uses_vectors ? combine_kernel<T, true> : combine_kernel<T, false>,
                {.grid = unsigned(p.num_tokens) * unsigned(ctas_per_token), .block = kNumThreads},
                stream, order, p, ctas_per_token);
}

}  // namespace

void launch_router(const RouterLaunch& p, CUstream_st* stream, LaunchOrder order) {
  static_assert(kRouterWarps * kMostExperts * sizeof(float) <= 48 * 1024);
  launch_kernel(router_kernel,
                {.grid = unsigned((p.num_tokens + kRouterWarps - 1) / kRouterWarps),
                 .block = 32 * kRouterWarps,
                 .shared_bytes = size_t(kRouterWarps) * size_t(p.num_experts) * sizeof(float)},
                stream, order, p);
}

void launch_combine(const CombineLaunch& p, CUstream_st* stream, LaunchOrder order) {
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
