#include "gpu/kernels/generic_lora.cuh"
#include "gpu/kernels/generic_lora.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/device_ability.hpp"

namespace loratory::gpu {
namespace {

template <LoraOp kOp>
__global__ void __launch_bounds__(generic::kNumThreads, generic::kCtasPerSm)
    generic_lora_kernel(const __grid_constant__ generic::Params params) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  __shared__ generic::Shared shared;
  generic::Cta<kOp>(params, shared).run();
}

const void* kernel_of(LoraOp op) {
  switch (op) {
    case LoraOp::shrink:
      return reinterpret_cast<const void*>(&generic_lora_kernel<LoraOp::shrink>);
    case LoraOp::expand:
      return reinterpret_cast<const void*>(&generic_lora_kernel<LoraOp::expand>);
    default:
      return reinterpret_cast<const void*>(&generic_lora_kernel<LoraOp::linear>);
  }
}

}  // namespace

void launch_generic_lora(const LoraLaunch& launch) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(generic::kCtasPerSm * num_sms()));
  config.blockDim = dim3(generic::kNumThreads);
  config.stream = launch.stream;
  config.attrs = &overlap;
  config.numAttrs = overlaps(launch.order) && has_clusters() ? 1 : 0;
  generic::Params params{launch.params, launch.dtypes, launch.mode};
  void* arguments[] = {&params};
  LORATORY_CUDA_CHECK(cudaLaunchKernelExC(&config, kernel_of(launch.op), arguments));
}

}  // namespace loratory::gpu
