#include "gpu/product/skinny_kernel.cuh"

namespace loratory::gpu {

template <>
SkinnyKernel skinny_kernel_of<__nv_bfloat16>(int columns, int tokens) {
  return skinny_kernel_in<__nv_bfloat16, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256>(columns,
                                                                                          tokens);
}

}  // namespace loratory::gpu
