#include "gpu/kernels/quantized_kernel.cuh"

namespace loratory::gpu {

template std::vector<LoraKernel> quantized_gated_expands<__nv_bfloat16>();
template std::vector<LoraKernel> quantized_gated_expands<__half>();

}  // namespace loratory::gpu
