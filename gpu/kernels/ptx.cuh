#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

// PTX instructions that C++ has no words for: clusters, barriers that count bytes, asynchronous
// copies, and the order of dependent launches. GPUs before sm_90 have no clusters; what needs them
// is never called there (kCluster is 1).

namespace loratory::gpu {

__device__ inline uint32_t shared_address(const void* p) {
  return uint32_t(__cvta_generic_to_shared(p));
}

/// p, kept in a register. Else the compiler computes an address in shared memory at each use anew,
/// from a special register that takes long to read.
template <typename T>
__device__ inline T* kept_address(T* p) {
  asm volatile("" : "+l"(p));
  return p;
}

/// p + count · bytes with a 64-bit product.
template <typename Byte>
__device__ inline Byte* row_address(Byte* p, uint32_t count, uint32_t bytes) {
  Byte* out;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(out) : "r"(count), "r"(bytes), "l"(p));
  return out;
}

// --- clusters -------------------------------------------------------------------------------

__device__ inline int cluster_rank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return int(rank);
}
__device__ inline int cluster_size() {
  uint32_t size = 1;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
#endif
  return int(size);
}
/// Other CTAs may use this CTA's barriers once every CTA has arrived.
__device__ inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/// Sends 16 bytes to the same address in another CTA's shared memory. That CTA's barrier counts
/// them.
__device__ inline void send(void* destination, uint64_t* barrier, int cta, uint4 v) {
#if __CUDA_ARCH__ >= 900
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(remote)
               : "r"(shared_address(destination)), "r"(cta));
  const uint32_t remote_barrier = remote + (shared_address(barrier) - shared_address(destination));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::
          "r"(remote),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(remote_barrier)
      : "memory");
#endif
}

// --- barriers that count bytes ----------------------------------------------------------------

/// A phase of the barrier ends with `arrivals` and the bytes that it was told to expect.
__device__ inline void init_barrier(uint64_t* barrier, int arrivals = 1) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
#endif
}
__device__ inline void arrive(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
#endif
}
/// As that many threads.
__device__ inline void arrive(uint64_t* barrier, int count) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(count)
               : "memory");
#endif
}
__device__ inline void expect_bytes(uint64_t* barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
#endif
}
__device__ inline void wait_for_bytes(uint64_t* barrier, int parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nagain_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again_%=;\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#endif
}

/// For what two barriers count.
__device__ inline void wait_for_both(uint64_t* first, uint64_t* second, int parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred one, two;\nagain_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 one, [%0], %2;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 two, [%1], %2;\n"
      "and.pred one, one, two;\n"
      "@!one bra again_%=;\n}" ::"r"(shared_address(first)),
      "r"(shared_address(second)), "r"(parity)
      : "memory");
#endif
}

// --- copies to shared memory --------------------------------------------------------------------

/// 16 bytes. If `exists` is 0, nothing is read and 16 zeros are written.
__device__ inline void copy_async(void* to, const void* from, uint32_t exists) {
  asm volatile(
      "{\n.reg .pred absent;\nsetp.eq.u32 absent, %2, 0;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, absent;\n}" ::"r"(shared_address(to)),
      "l"(from), "r"(exists)
      : "memory");
}
/// 4 bytes, zeros if `exists` is 0.
__device__ inline void copy_four_async(void* to, const void* from, uint32_t exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(exists == 0 ? 0 : 4)
               : "memory");
}
/// 16 bytes: the first `valid_bytes` are read, the others become 0.
__device__ inline void copy_async_some(void* to, const void* from, int valid_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid_bytes)
               : "memory");
}
/// 16 bytes, or nothing at all. On a miss, L2 fetches the whole line.
__device__ inline void copy_async_if(bool exists, void* to, const void* from) {
  asm volatile(
      "{\n.reg .pred exists;\nsetp.ne.u32 exists, %2, 0;\n"
      "@exists cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n}" ::"r"(shared_address(to)),
      "l"(from), "r"(uint32_t(exists))
      : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most kOpen of this thread's groups are in flight.
template <int kOpen>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}
/// This thread arrives at the barrier once all of its copies so far have ended.
__device__ inline void arrive_after_copies(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
#endif
}
/// __syncthreads() for the first kCount threads of the CTA.
template <int kCount>
__device__ inline void sync_threads() {
  asm volatile("bar.sync 1, %0;" ::"n"(kCount) : "memory");
}
/// Loads that bring lines into L1, where a prefetch does not. ptxas drops a load whose result
/// nobody looks at.
template <int kNum>
class WarmLines {
 public:
  __device__ void load(int i, const void* p) {
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(found_[i]) : "l"(p));
  }
  /// Of the kernel's parameters, as memory has them.
  __device__ void load_parameter(int i, const void* p) {
    asm volatile("ld.b32 %0, [%1];" : "=r"(found_[i]) : "l"(p));
  }
  /// Looks at what has come by now. `p`: anything that may be prefetched.
  __device__ void look(const void* p) const {
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < kNum; ++i) all ^= found_[i];
    asm volatile(
        "{\n.reg .pred odd;\nsetp.eq.u32 odd, %0, 0x7FEDCBA9;\n@odd prefetch.global.L2 [%1];\n}" ::
            "r"(all),
        "l"(p));
  }

 private:
  uint32_t found_[kNum] = {};
};

// --- tensor-core fragments of m16n8k16 ---------------------------------------------------------

// In shared memory they are vectors of 16 bytes: eight neighbouring numbers along k. ldmatrix gives
// each lane what its place in the fragment needs.

/// Loads four matrices of eight rows, one vector per row. Lane i names row i % 8 of matrix i / 8
/// and gets two numbers of each matrix, pair i % 4 of row i / 4.
__device__ inline uint4 load_matrices(const std::byte* row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(uint32_t(__cvta_generic_to_shared(row)))
               : "memory");
  return v;
}

/// Between the loads of several fragments and their products: says that the loads come first. Where
/// registers are scarce, ptxas loads each fragment into the registers of the last one instead, and
/// so waits for each in turn. nvcc 13.0 needs no more than registers and branches to keep the
/// order; kernel_budgets.py sees when it does not.
__device__ inline void keep_loads_ahead() { __syncwarp(); }

/// With .trans: columns become the rows of a fragment. Lane i gets row i % 4 · 2 and the next of
/// each matrix, number i / 4.
__device__ inline uint4 load_transposed(const std::byte* row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared_address(row))
               : "memory");
  return v;
}

/// A warp: eight rows of eight 16-bit numbers, of which lane i has pair i % 4 of row i / 4, become
/// columns.
__device__ inline uint32_t transposed(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

/// c += a b^T. a: rows 0-7 and 8-15 of the first eight k, then of the last eight. b: the first
/// eight k, then the last eight.
template <typename Weight>
__device__ inline void mma(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<Weight, __nv_bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  }
}

// --- numbers ------------------------------------------------------------------------------------

/// 2^x to 2^-22, exact for 0 and minus infinity. Results below the normal range become 0.
__device__ inline float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x to one unit in the last place. Results below the normal range become 0.
__device__ inline float reciprocal_of(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// --- stores to global memory ---------------------------------------------------------------------

/// 16 bytes, or nothing. A predicate, because a branch would also enclose the computation of v.
__device__ inline void store_if(bool exists, void* to, uint4 v) {
  asm volatile(
      "{\n.reg .pred exists;\nsetp.ne.u32 exists, %5, 0;\n"
      "@exists st.global.v4.b32 [%0], {%1,%2,%3,%4};\n}" ::"l"(to),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(uint32_t(exists))
      : "memory");
}

/// __syncthreads() for some whole warps of the CTA. Barrier 0 is that of all.
__device__ inline void sync_some(int barrier, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(num_threads) : "memory");
}

/// Adds to a count that CTAs share; the count before. Whoever counts later finds what this thread,
/// and threads it has met at a barrier, wrote before. __threadfence() on both sides of an atomicAdd
/// says no more, and each is a fence.sc, which waits longer.
__device__ inline int32_t count_arrivals(int32_t* count, int32_t arrivals) {
  int32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(count), "r"(arrivals)
               : "memory");
  return before;
}

// --- order of launches ------------------------------------------------------------------------

/// Waits for the previous kernel in the stream, if this one was launched early.
__device__ inline void wait_for_prior_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next kernel start once every CTA has called this or ended.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace loratory::gpu
