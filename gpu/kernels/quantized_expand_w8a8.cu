#include "gpu/kernels/quantized_kernel.cuh"

namespace loratory::gpu {

template const LoraKernels& quantized_kernels<LoraOp::expand, __half, uint8_t, __nv_bfloat16>();
template const LoraKernels& quantized_kernels<LoraOp::expand, __half, uint8_t, __half>();
template const LoraKernels& quantized_kernels<LoraOp::expand, __half, uint8_t, float>();

}  // namespace loratory::gpu
