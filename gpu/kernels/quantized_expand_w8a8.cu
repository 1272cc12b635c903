#include "gpu/kernels/quantized_kernel.cuh"

namespace loratory::gpu {

template std::vector<LoraKernel> quantized_expands<uint8_t, __nv_bfloat16>();
template std::vector<LoraKernel> quantized_expands<uint8_t, __half>();
template std::vector<LoraKernel> quantized_expands<uint8_t, float>();

}  // namespace loratory::gpu
