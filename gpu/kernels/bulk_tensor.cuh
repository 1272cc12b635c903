#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "gpu/kernels/ptx.cuh"

// Bulk copies of tiles (TMA): one thread asks, an mbarrier counts the bytes that arrive. sm_90.

namespace loratory::gpu {

/// True in one lane of a whole warp. The compiler then knows that what follows has one thread, and
/// issues its copies without asking lane by lane.
__device__ inline bool is_elected() {
  uint32_t elected = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred elected;\nelect.sync _|elected, 0xFFFFFFFF;\n"
      "selp.b32 %0, 1, 0, elected;\n}"
      : "=r"(elected));
#endif
  return elected != 0;
}

/// Arrives at the barrier with the same address in another CTA of the cluster. Orders nothing but
/// what this CTA sees: with the scope of the cluster each arrival would be a fence of the whole
/// GPU, and reads that wgmma has ended need none.
__device__ inline void arrive_at(uint64_t* barrier, int cta) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(barrier)),
      "r"(cta)
      : "memory");
#endif
}

/// What L2 does with the lines of a copy.
constexpr uint64_t kEvictFirst = 0x12F0000000000000, kEvictLast = 0x14F0000000000000;

/// The box of the map that begins at `column` of row `row`, to shared memory. What lies outside of
/// the tensor becomes 0 and counts as arrived.
__device__ inline void load_box(void* to, const CUtensorMap& map, int column, int row,
                                uint64_t* barrier, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
#endif
}
/// The same of a map of two halves, whose eights of rows take turns: eight rows of the first half,
/// eight of the second. `eight` counts them.
__device__ inline void load_halves(void* to, const CUtensorMap& map, int column, int eight,
                                   uint64_t* barrier, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(0), "r"(eight), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
#endif
}
/// Eights of rows, from `eight` on, all their columns: of a map with axes for 64 columns, eight
/// rows, panels of columns, and eights.
__device__ inline void load_eights(void* to, const CUtensorMap& map, int eight, uint64_t* barrier,
                                   uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %2, %2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(0), "r"(eight), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
#endif
}
/// The same as load_box() to this address, and bytes to this barrier, in every CTA of the mask.
__device__ inline void multicast_box(void* to, const CUtensorMap& map, int column, int row,
                                     uint64_t* barrier, uint16_t ctas, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(ctas), "l"(policy)
      : "memory");
#endif
}
/// The same as load_halves().
__device__ inline void multicast_halves(void* to, const CUtensorMap& map, int column, int eight,
                                        uint64_t* barrier, uint16_t ctas, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %3, %4}], [%5], %6, %7;" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(column), "r"(0), "r"(eight), "r"(shared_address(barrier)), "h"(ctas),
      "l"(policy)
      : "memory");
#endif
}
__device__ inline void prefetch_map(const CUtensorMap& map) {
#if __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}
/// Orders what other kernels wrote to global memory before this thread's bulk copies of it.
__device__ inline void fence_global_for_bulk_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

/// Orders this thread's writes to shared memory before later bulk copies to the same place, if
/// these wait for a barrier at which it arrives.
__device__ inline void fence_shared_for_bulk_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace loratory::gpu
