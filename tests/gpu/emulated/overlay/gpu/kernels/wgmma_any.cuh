#pragma once

#include <vector>

#include "gpu/kernels/wgmma.cuh"

// gpu/kernels/wgmma_any.cuh for an emulated GPU: wgmma() takes any number of columns.

namespace loratory::gpu {

template <typename Weight, int kCount>
void wgmma_any(float (&c)[kCount], uint64_t a, uint64_t b, bool adds) {
  wgmma<Weight>(c, a, b, adds);
}
/// Ends c's products alone, though the real one waits for all: sums that nobody named stay NaN, as
/// a compiler may take them from registers before the wait.
template <int kCount>
void wait_for_sums(float (&c)[kCount]) {
  emulated::pause();
  WgmmaGroups& groups = wgmma_in_flight();
  for (auto& group : groups) {
    for (const WgmmaInFlight& of : group) {
      if (of.sums == c) end_wgmma(of);
    }
  }
  for (auto& group : groups) {
    std::erase_if(group, [&](const WgmmaInFlight& of) { return of.sums == c; });
  }
  while (groups.size() > 1 && groups.front().empty()) groups.pop_front();
}

}  // namespace loratory::gpu
