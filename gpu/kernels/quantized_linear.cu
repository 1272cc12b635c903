#include "gpu/kernels/quantized_kernel.cuh"

namespace loratory::gpu {

template const LoraKernels&
quantized_kernels<LoraOp::linear, __nv_bfloat16, float, __nv_bfloat16>();
template const LoraKernels& quantized_kernels<LoraOp::linear, __nv_bfloat16, float, float>();
template const LoraKernels& quantized_kernels<LoraOp::linear, __half, float, __half>();
template const LoraKernels& quantized_kernels<LoraOp::linear, __half, float, float>();

}  // namespace loratory::gpu
