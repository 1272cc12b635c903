#include <algorithm>
#include <cstdint>

#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/kernels/ptx.cuh"
#include "gpu/model/eight.cuh"
#include "gpu/model/model_launch.hpp"

namespace loratory::gpu {
namespace {

/// A CTA takes a token, a slice and kBiasColumns of its columns, a thread eight of these.
template <typename T, bool kVectors>
__global__ void __launch_bounds__(kBiasThreads)
    lora_bias_kernel(const __grid_constant__ LoraBiasLaunch p) {
  launch_dependents();
  wait_for_prior_grid();
  const int token = int(blockIdx.x);
  const LoraBiasLaunch::Slice& slice = p.slices[blockIdx.z];
  const int slot = p.slots[token];
  if (slice.bias == nullptr || slot < 0 || slot >= slice.num_slots) return;
  const int first = bias_column(int(blockIdx.y), int(threadIdx.x));
  if (first >= slice.columns || slice.ranks[slot] <= 0) return;
  const T* const bias = static_cast<const T*>(slice.bias) + slot * slice.stride;
  T* const y = static_cast<T*>(p.y) + token * p.y_stride + slice.offset;
  const Eight of_bias = load_eight<T, kVectors>(bias, first, slice.columns);
  Eight out = load_eight<T, kVectors>(y, first, slice.columns);
#pragma unroll
  for (int i = 0; i < 8; ++i) out.v[i] = __fadd_rn(out.v[i], of_bias.v[i]);
  store_eight<T, kVectors>(y, first, slice.columns, out);
}

template <typename T>
void launch(const LoraBiasLaunch& p, CUstream_st* stream, LaunchOrder order) {
  int32_t most_columns = 1;
  for (int i = 0; i < p.num_slices; ++i) {
    most_columns = std::max(most_columns, p.slices[i].columns);
  }
  const GridShape shape{.grid = dim3(unsigned(p.num_tokens), unsigned(num_bias_ctas(most_columns)),
                                     unsigned(p.num_slices)),
                        .block = kBiasThreads};
  if (p.uses_vectors)
    launch_kernel(lora_bias_kernel<T, true>, shape, stream, order, p);
  else
    launch_kernel(lora_bias_kernel<T, false>, shape, stream, order, p);
}

}  // namespace

void launch_lora_bias(const LoraBiasLaunch& p, CUstream_st* stream, LaunchOrder order) {
  if (p.dtype == reference::Dtype::f32)
    launch<float>(p, stream, order);
  else if (p.dtype == reference::Dtype::f16)
    launch<__half>(p, stream, order);
  else
    launch<__nv_bfloat16>(p, stream, order);
}

}  // namespace loratory::gpu
