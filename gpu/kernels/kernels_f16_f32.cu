#include "gpu/kernels/kernel_table.cuh"

namespace loratory::gpu {

template const LoraKernels& lora_kernels<LoraOp::linear, __half, float>();
template const LoraKernels& lora_kernels<LoraOp::expand, __half, float>();

}  // namespace loratory::gpu
