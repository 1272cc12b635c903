#include "gpu/kernels/kernel_table.cuh"

namespace loratory::gpu {

template std::vector<LoraKernel> gated_kernels<__nv_bfloat16>();

}  // namespace loratory::gpu
