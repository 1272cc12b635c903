#include "gpu/kernels/kernel_table.cuh"

namespace loratory::gpu {

template const LoraKernels& lora_kernels<LoraOp::linear, __half, __half>();
template const LoraKernels& lora_kernels<LoraOp::shrink, __half, __half>();
template const LoraKernels& lora_kernels<LoraOp::expand, __half, __half>();

}  // namespace loratory::gpu
