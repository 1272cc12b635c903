#include "gpu/kernels/quantized_kernel.cuh"

namespace loratory::gpu {

template std::vector<LoraKernel> quantized_shrinks<__nv_bfloat16>();
template std::vector<LoraKernel> quantized_shrinks<__half>();
template std::vector<LoraKernel> quantized_shrinks<uint8_t>();

}  // namespace loratory::gpu
