#include "gpu/attention/prefill_attention.cuh"

#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {
namespace {

using namespace prefill;

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_attention_kernel(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(1024) std::byte memory[];
  run_cta<T, kHeadDim>(p, *reinterpret_cast<PrefillShared<kHeadDim>*>(memory));
}

template <typename T, int kHeadDim>
void launch(const AttentionLaunch& launch) {
  constexpr auto kShared = int(sizeof(PrefillShared<kHeadDim>));
  const AttentionParams& p = launch.params;
  const auto kernel = prefill_attention_kernel<T, kHeadDim>;
  LORATORY_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const int64_t num_tiles = max_prefill_tiles(p.num_tokens, p.num_rows, p.group);
  if (num_tiles == 0) return;
  const GridShape shape{.grid = unsigned(num_tiles * p.kv_heads),
                        .block = unsigned(kThreads),
                        .shared_bytes = size_t(kShared)};
  launch_kernel(kernel, shape, launch.stream, order_of(p), p);
}

template <typename T>
void launch_for(const AttentionLaunch& of) {
  if (of.params.head_dim == 64)
    launch<T, 64>(of);
  else
    launch<T, 128>(of);
}

}  // namespace

void launch_prefill_attention(const AttentionLaunch& of) {
  if (of.dtype == reference::Dtype::bf16)
    launch_for<__nv_bfloat16>(of);
  else
    launch_for<__half>(of);
}

}  // namespace loratory::gpu
