#pragma once

#include "gpu/kernels/wgmma.cuh"

// gpu/kernels/wgmma_narrow.cuh for an emulated GPU: wgmma() takes any number of columns.

namespace loratory::gpu {

template <typename Weight, int kCount>
void wgmma_any(float (&c)[kCount], uint64_t a, uint64_t b, bool adds) {
  wgmma<Weight>(c, a, b, adds);
}
template <int kCount>
void wait_for_sums(float (&)[kCount]) {
  wait_for_older_wgmma<0>();
}

}  // namespace loratory::gpu
