#include "gpu/kernels/quantized_kernel.cuh"

namespace loratory::gpu {

template const LoraKernels&
quantized_kernels<LoraOp::shrink, __nv_bfloat16, float, __nv_bfloat16>();
template const LoraKernels& quantized_kernels<LoraOp::shrink, __half, float, __half>();
template const LoraKernels& quantized_kernels<LoraOp::shrink, uint8_t, float, __half>();

}  // namespace loratory::gpu
