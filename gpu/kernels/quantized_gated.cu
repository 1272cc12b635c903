#include "gpu/kernels/quantized_kernel.cuh"

namespace loratory::gpu {

template const LoraKernels& quantized_kernels<LoraOp::gated_expand, __half, float, __nv_bfloat16>();
template const LoraKernels& quantized_kernels<LoraOp::gated_expand, __half, float, __half>();

}  // namespace loratory::gpu
