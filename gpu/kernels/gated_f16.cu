#include "gpu/kernels/kernel_table.cuh"

namespace loratory::gpu {

template const LoraKernels& lora_kernels<LoraOp::gated_expand, __half, __half>();
template const LoraKernels& lora_kernels<LoraOp::gated_expand_shrink, __half, __half>();

}  // namespace loratory::gpu
