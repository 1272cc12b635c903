#include "gpu/kernels/kernel_table.cuh"

namespace loratory::gpu {

template const LoraKernels& lora_kernels<LoraOp::linear, __nv_bfloat16, float>();
template const LoraKernels& lora_kernels<LoraOp::expand, __nv_bfloat16, float>();

}  // namespace loratory::gpu
