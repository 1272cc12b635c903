#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/kernels/ptx.cuh"
#include "gpu/model/model_launch.hpp"

namespace loratory::gpu {
namespace {

/// A warp takes a token, a lane every 32nd rank: the columns of A lie apart, those of h side by
/// side.
template <typename T>
__global__ void __launch_bounds__(32 * kShrinkTokens)
    embedding_shrink_kernel(const __grid_constant__ EmbeddingShrinkLaunch p) {
  launch_dependents();
  wait_for_prior_grid();
  const int token = shrink_token(int(blockIdx.x), int(threadIdx.x));
  if (token >= p.num_tokens) return;
  const int slot = p.slots[token];
  if (slot < 0 || slot >= p.num_slots) return;
  const int rank = p.ranks[slot], id = p.ids[token];
  const bool exists = id >= 0 && id < p.vocab;
  const T* const a = static_cast<const T*>(p.a) + slot * p.slot_stride + (exists ? id : 0);
  float* const h = p.h + token * p.h_stride;
  for (int j = int(threadIdx.x % 32); j < rank; j += 32) {
    float number = exists ? float(a[j * p.rank_stride]) : 0.0f;
    if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) number = __fmul_rn(number, p.factors[slot]);
    h[j] = number;
  }
}

template <typename T>
void launch(const EmbeddingShrinkLaunch& p, CUstream_st* stream, LaunchOrder order) {
  launch_kernel(embedding_shrink_kernel<T>,
                {.grid = unsigned(num_shrink_ctas(p.num_tokens)), .block = 32 * kShrinkTokens},
                stream, order, p);
}

}  // namespace

void launch_embedding_shrink(const EmbeddingShrinkLaunch& p, CUstream_st* stream,
                             LaunchOrder order) {
  if (p.dtype == reference::Dtype::f32)
    launch<float>(p, stream, order);
  else if (p.dtype == reference::Dtype::f16)
    launch<__half>(p, stream, order);
  else if (p.dtype == reference::Dtype::f8_e4m3fn)
    launch<__nv_fp8_e4m3>(p, stream, order);
  else
    launch<__nv_bfloat16>(p, stream, order);
}

}  // namespace loratory::gpu
