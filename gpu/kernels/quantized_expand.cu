#include "gpu/kernels/quantized_kernel.cuh"

namespace loratory::gpu {

template std::vector<LoraKernel> quantized_expands<float, __nv_bfloat16>();
template std::vector<LoraKernel> quantized_expands<float, __half>();
template std::vector<LoraKernel> quantized_expands<float, float>();

}  // namespace loratory::gpu
