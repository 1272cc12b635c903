#include "gpu/attention/decode_attention.cuh"

#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {
namespace {

using namespace decode;

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kThreads<kHeadDim>, kCtasPerSm<kHeadDim>)
    decode_attention_kernel(const __grid_constant__ AttentionParams params) {
  extern __shared__ __align__(1024) std::byte memory[];
  run_cta<T, kHeadDim>(params, *reinterpret_cast<DecodeShared<kHeadDim>*>(memory));
}

template <typename T, int kHeadDim>
void launch(const AttentionLaunch& launch) {
  constexpr auto kShared = int(sizeof(DecodeShared<kHeadDim>));
  const auto kernel = decode_attention_kernel<T, kHeadDim>;
  int device = 0, num_sms = 0;
  LORATORY_CUDA_CHECK(cudaGetDevice(&device));
  LORATORY_CUDA_CHECK(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device));
  LORATORY_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const GridShape shape{.grid = unsigned(kCtasPerSm<kHeadDim> * num_sms),
                        .block = unsigned(kThreads<kHeadDim>),
                        .shared_bytes = size_t(kShared)};
  launch_kernel(kernel, shape, launch.stream, order_of(launch.params), launch.params);
}

template <typename T>
void launch_for(const AttentionLaunch& of) {
  if (of.params.head_dim == 64)
    launch<T, 64>(of);
  else
    launch<T, 128>(of);
}

}  // namespace

void launch_decode_attention(const AttentionLaunch& of) {
  if (of.dtype == reference::Dtype::bf16)
    launch_for<__nv_bfloat16>(of);
  else
    launch_for<__half>(of);
}

}  // namespace loratory::gpu
