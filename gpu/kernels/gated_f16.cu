#include "gpu/kernels/kernel_table.cuh"

namespace loratory::gpu {

template std::vector<LoraKernel> gated_kernels<__half>();

}  // namespace loratory::gpu
