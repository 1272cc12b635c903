#include <algorithm>

#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/kernels/quantized_generic.cuh"
#include "gpu/plan/quantized_launch.hpp"

namespace loratory::gpu {
namespace {

constexpr int kNumThreads = 128;
constexpr int kNumCtas = 512;
constexpr int kMostRowCtas = 2048;  // of h to 8 bits

template <LoraOp kOp>
__global__ void __launch_bounds__(kNumThreads)
    quantized_generic_kernel(const __grid_constant__ QuantizedParams params) {
  wait_for_prior_grid();
  launch_dependents();
  if constexpr (kOp == LoraOp::shrink)
    shrink_generic(params);
  else
    expand_generic(params);
}

template <bool kFindsScale>
__global__ void __launch_bounds__(kNumThreads)
    quantize_h_kernel(const __grid_constant__ QuantizeHParams params) {
  launch_dependents();  // the shrink began after y's writer, if the expand reads y early
  wait_for_prior_grid();
  __shared__ float largest[kNumThreads / 32];
  if constexpr (kFindsScale)
    find_scales(params, largest);
  else
    quantize_rows(params);
}

GridShape shape_of(unsigned ctas) { return {.grid = dim3(ctas), .block = dim3(kNumThreads)}; }

}  // namespace

void launch_generic_quantized(const QuantizedLaunch& launch) {
  const auto kernel = launch.op == LoraOp::shrink ? &quantized_generic_kernel<LoraOp::shrink>
                                                  : &quantized_generic_kernel<LoraOp::expand>;
  launch_kernel(kernel, shape_of(kNumCtas), launch.stream, launch.order, launch.params);
}

void launch_quantize_h(const QuantizeHParams& params, CUstream_st* stream, LaunchOrder order) {
  if (params.by_tensor) {
    launch_kernel(&quantize_h_kernel<true>, shape_of(unsigned(params.num_slices)), stream, order,
                  params);
    order = LaunchOrder::overlaps_previous;
  }
  const int64_t num_rows = int64_t{params.num_tokens} * params.num_slices;
  launch_kernel(&quantize_h_kernel<false>,
                shape_of(unsigned(std::min<int64_t>(kMostRowCtas, num_rows))), stream, order,
                params);
}

}  // namespace loratory::gpu
