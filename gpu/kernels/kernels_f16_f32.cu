#include "gpu/kernels/kernel_table.cuh"

namespace loratory::gpu {

template std::vector<LoraKernel> lora_kernels<__half, float>();

}  // namespace loratory::gpu
