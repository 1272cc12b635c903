#include "gpu/kernels/quantized_kernel.cuh"

namespace loratory::gpu {

template std::vector<LoraKernel> quantized_linears<__nv_bfloat16, __nv_bfloat16>();
template std::vector<LoraKernel> quantized_linears<__nv_bfloat16, float>();
template std::vector<LoraKernel> quantized_linears<__half, __half>();
template std::vector<LoraKernel> quantized_linears<__half, float>();

}  // namespace loratory::gpu
