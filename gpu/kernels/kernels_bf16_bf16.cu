#include "gpu/kernels/kernel_table.cuh"

namespace loratory::gpu {

template std::vector<LoraKernel> lora_kernels<__nv_bfloat16, __nv_bfloat16>();

}  // namespace loratory::gpu
