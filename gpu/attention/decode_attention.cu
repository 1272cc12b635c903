#include "gpu/attention/decode_attention.cuh"

#include <algorithm>

#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_ability.hpp"
#include "gpu/runtime/tensor_map.hpp"

namespace loratory::gpu {
namespace {

using namespace decode;

template <typename T, int kHeadDim, Copies kCopies>
__global__ void __launch_bounds__((kThreads<kHeadDim, kCopies>), kCtasPerSm<kHeadDim>)
    decode_attention_kernel(const __grid_constant__ AttentionParams params,
                            const __grid_constant__ KvMaps maps) {
  extern __shared__ __align__(1024) std::byte memory[];
  run_cta<T, kHeadDim, kCopies>(params, maps, *reinterpret_cast<DecodeShared<kHeadDim>*>(memory));
}

// Rows in eights, each in panels of 64 columns: as tile_offset() has them.
CUtensorMap map_of(reference::Dtype dtype, const void* tensor, const AttentionParams& p) {
  const auto row = cuuint64_t(2 * p.head_dim), panels = cuuint64_t(p.head_dim / 64);
  const auto eights = cuuint64_t(p.num_blocks) * p.kv_heads * p.block_size / kEight;
  const cuuint64_t sizes[] = {64, kEight, panels, eights}, strides[] = {row, 128, kEight * row};
  const auto of_box = cuuint32_t(std::min(p.block_size, kAttentionTileKeys) / kEight);
  const cuuint32_t box[] = {64, kEight, cuuint32_t(panels), of_box};
  // With 256 bytes an H200 is 7 to 10 % slower.
  return tensor_map_of({dtype, tensor, sizes, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
}

template <typename T, int kHeadDim, Copies kCopies>
void launch(const AttentionLaunch& launch) {
  constexpr auto kShared = int(sizeof(DecodeShared<kHeadDim>));
  const AttentionParams& p = launch.params;
  const auto kernel = decode_attention_kernel<T, kHeadDim, kCopies>;
  KvMaps maps{};
  if (kCopies == Copies::blocks) {
    maps = {map_of(launch.dtype, p.k, p), map_of(launch.dtype, p.v, p)};
  }
  LORATORY_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const GridShape shape{.grid = unsigned(kCtasPerSm<kHeadDim> * num_sms()),
                        .block = unsigned(kThreads<kHeadDim, kCopies>),
                        .shared_bytes = size_t(kShared)};
  launch_kernel(kernel, shape, launch.stream, order_of(p), p, maps);
}

template <typename T, int kHeadDim>
void launch_with(const AttentionLaunch& of) {
  if (of.params.block_size >= kEight)
    launch<T, kHeadDim, Copies::blocks>(of);
  else
    launch<T, kHeadDim, Copies::rows>(of);
}
template <typename T>
void launch_for(const AttentionLaunch& of) {
  if (of.params.head_dim == 64)
    launch_with<T, 64>(of);
  else
    launch_with<T, 128>(of);
}

}  // namespace

void launch_decode_attention(const AttentionLaunch& of) {
  if (of.dtype == reference::Dtype::bf16)
    launch_for<__nv_bfloat16>(of);
  else
    launch_for<__half>(of);
}

}  // namespace loratory::gpu
