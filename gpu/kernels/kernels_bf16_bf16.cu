#include "gpu/kernels/kernel_table.cuh"

namespace loratory::gpu {

template const LoraKernels& lora_kernels<LoraOp::linear, __nv_bfloat16, __nv_bfloat16>();
template const LoraKernels& lora_kernels<LoraOp::shrink, __nv_bfloat16, __nv_bfloat16>();
template const LoraKernels& lora_kernels<LoraOp::expand, __nv_bfloat16, __nv_bfloat16>();

}  // namespace loratory::gpu
