#include "gpu/kernels/kernel_table.cuh"

namespace loratory::gpu {

template const LoraKernels& lora_kernels<LoraOp::gated_expand, __nv_bfloat16, __nv_bfloat16>();
template const LoraKernels&
lora_kernels<LoraOp::gated_expand_shrink, __nv_bfloat16, __nv_bfloat16>();

}  // namespace loratory::gpu
