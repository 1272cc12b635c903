#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tests/gpu/emulated/emulated_gpu.hpp"

// gpu/kernels/ptx.cuh for an emulated GPU, and the words of CUDA C++ that a C++ compiler lacks.
// This folder comes first among the includes of the tests that compile kernels with it.

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#define threadIdx (::loratory::gpu::emulated::current().thread)
#define blockIdx (::loratory::gpu::emulated::current().block)
#define gridDim (::loratory::gpu::emulated::current().grid)
#define blockDim (::loratory::gpu::emulated::current().block_size)

namespace loratory::gpu {

using std::max;
using std::min;

inline void __syncthreads() { emulated::sync_cta(); }
inline void __syncwarp() { emulated::sync_warp(); }
template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T shuffled(T v, int from) {
  T all[32];
  emulated::exchange(&v, sizeof v, all);
  return all[from];
}
inline void sync_some(int barrier, int num_threads) { emulated::sync_some(barrier, num_threads); }
inline int lane_id() { return int(threadIdx.x) % 32; }
template <typename T>
T __shfl_sync(unsigned, T v, int from) {
  return shuffled(v, from);
}
template <typename T>
T __shfl_up_sync(unsigned, T v, int by) {
  return shuffled(v, lane_id() < by ? lane_id() : lane_id() - by);
}
template <typename T>
T __shfl_xor_sync(unsigned, T v, int with) {
  return shuffled(v, lane_id() ^ with);
}
inline uint32_t __float_as_uint(float v) { return std::bit_cast<uint32_t>(v); }
inline float __uint_as_float(uint32_t v) { return std::bit_cast<float>(v); }
/// Byte i of the result is byte `selector` nibble i of the eight of b and a.
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    out |= uint32_t(bytes >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
  }
  return out;
}
inline int __popc(unsigned v) { return std::popcount(v); }
inline unsigned __ballot_sync(unsigned, bool v) {
  bool all[32];
  emulated::exchange(&v, sizeof v, all);
  unsigned out = 0;
  for (unsigned i = 0; i < 32; ++i) out |= unsigned{all[i]} << i;
  return out;
}
inline bool __all_sync(unsigned all, bool v) { return __ballot_sync(all, v) == 0xFFFFFFFF; }
template <typename T>
T __ldcg(const T* p) {
  return *p;
}
template <typename T>
void __stcg(T* p, T v) {
  *p = v;
}
inline int32_t atomicAdd(int32_t* to, int32_t v) {
  const int32_t before = *to;
  *to += v;
  return before;
}
inline int32_t count_arrivals(int32_t* count, int32_t arrivals) {
  return atomicAdd(count, arrivals);
}
inline float __frcp_rn(float v) { return 1 / v; }
inline float __frsqrt_rn(float v) { return float(1 / std::sqrt(double{v})); }
inline float exp2_of(float v) { return std::exp2(v); }
inline float reciprocal_of(float v) { return 1 / v; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __double2float_rn(double v) { return float(v); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __ll2float_rn(long long v) { return float(v); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }

template <typename T>
T* kept_address(T* p) {
  return p;
}
template <typename Byte>
Byte* row_address(Byte* p, uint32_t count, uint32_t bytes) {
  return p + uint64_t{count} * bytes;
}
inline uint32_t shared_address(const void* p) {
  return uint32_t(static_cast<const std::byte*>(p) - emulated::current().shared);
}

inline int cluster_rank() { return emulated::current().cta; }
inline int cluster_size() { return emulated::launched().cluster; }
inline void cluster_arrive() { emulated::arrive_cluster(); }
inline void cluster_wait() { emulated::wait_cluster(); }
inline void send(void* destination, uint64_t* barrier, int cta, uint4 v) {
  emulated::send(destination, barrier, cta, &v);
}
inline void init_barrier(uint64_t* barrier, int arrivals = 1) {
  emulated::init_barrier(barrier, arrivals);
}
inline void arrive(uint64_t* barrier, int count = 1) { emulated::arrive(barrier, 0, count); }
inline void expect_bytes(uint64_t* barrier, int bytes) { emulated::arrive(barrier, bytes); }
inline void wait_for_bytes(uint64_t* barrier, int parity) {
  emulated::wait_barrier(barrier, parity);
}

inline void wait_for_both(uint64_t* first, uint64_t* second, int parity) {
  wait_for_bytes(first, parity);
  wait_for_bytes(second, parity);
}

inline void copy_async(void* to, const void* from, uint32_t exists) {
  emulated::copy_later(to, from, exists != 0 ? 16 : 0);
}
inline void copy_four_async(void* to, const void* from, uint32_t exists) {
  emulated::copy_later(to, from, exists != 0 ? 4 : 0, 4);
}
inline void copy_async_some(void* to, const void* from, int valid_bytes) {
  emulated::copy_later(to, from, valid_bytes);
}
inline void copy_async_if(bool exists, void* to, const void* from) {
  if (exists) emulated::copy_later(to, from, 16);
}
inline void commit_copies() { emulated::commit_copies(); }
template <int kOpen>
void wait_for_copies() {
  emulated::wait_for_copies(kOpen);
}
inline void arrive_after_copies(uint64_t* barrier) { emulated::arrive_after_copies(barrier); }
template <int kCount>
void sync_threads() {
  emulated::sync_some(1, kCount);
}
/// Reads, so that an address that does not exist is found.
template <int kNum>
class WarmLines {
 public:
  void load(int, const void* p) {
    uint32_t word = 0;
    std::memcpy(&word, p, sizeof word);
    asm volatile("" ::"r"(word));
  }
  void load_parameter(int i, const void* p) { load(i, p); }
  void look(const void*) const {}
};

inline void keep_loads_ahead() {}

/// Lane i names row i % 8 of matrix i / 8 and gets pair i % 4 of row i / 4 of each.
inline uint4 load_matrices(const std::byte* row) {
  const std::byte* rows[32];
  emulated::exchange(&row, sizeof row, rows);
  uint32_t out[4];
  for (int i = 0; i < 4; ++i) {
    std::memcpy(&out[i], rows[8 * i + lane_id() / 4] + lane_id() % 4 * 4, 4);
  }
  return {out[0], out[1], out[2], out[3]};
}

/// Lane i gets number i / 4 of rows i % 4 · 2 and the next of each.
inline uint4 load_transposed(const std::byte* row) {
  const std::byte* rows[32];
  emulated::exchange(&row, sizeof row, rows);
  uint32_t out[4];
  for (int i = 0; i < 4; ++i) {
    for (int half = 0; half < 2; ++half) {
      const std::byte* const from = rows[8 * i + lane_id() % 4 * 2 + half] + lane_id() / 4 * 2;
      std::memcpy(reinterpret_cast<std::byte*>(&out[i]) + 2 * half, from, 2);
    }
  }
  return {out[0], out[1], out[2], out[3]};
}

/// Lane i gives pair i % 4 of row i / 4 and gets pair i % 4 of column i / 4.
inline uint32_t transposed(uint32_t pair) {
  uint32_t pairs[32];
  emulated::exchange(&pair, sizeof pair, pairs);
  const int column = lane_id() / 4;
  uint32_t out = 0;
  for (int half = 0; half < 2; ++half) {
    const int row = lane_id() % 4 * 2 + half;
    out |= (pairs[row * 4 + column / 2] >> column % 2 * 16 & 0xFFFF) << 16 * half;
  }
  return out;
}

/// All numbers of fp16, since a conversion on the CPU takes longer than a product.
inline const std::vector<float>& halves() {
  static const std::vector<float> kHalves = [] {
    std::vector<float> out(1 << 16);
    for (uint32_t i = 0; i < out.size(); ++i) {
      out[i] = __half2float(std::bit_cast<__half>(uint16_t(i)));
    }
    return out;
  }();
  return kHalves;
}

template <typename Weight>
double number_of(uint32_t word, int half) {
  const auto bits = uint16_t(word >> 16 * half);
  if constexpr (std::is_same_v<Weight, __nv_bfloat16>)
    return std::bit_cast<float>(uint32_t{bits} << 16);
  else
    return halves()[bits];
}

template <typename Weight>
void mma(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  struct Operands {
    uint32_t a[4], b[2];
  } all[32];
  const Operands mine{{a.x, a.y, a.z, a.w}, {b0, b1}};
  emulated::exchange(&mine, sizeof mine, all);
  const int row = lane_id() / 4, column = lane_id() % 4 * 2;
  double left[2][16], right[2][16];
  for (int k = 0; k < 16; ++k) {
    for (int i = 0; i < 2; ++i) {
      const int lane_a = row * 4 + k % 8 / 2, lane_b = (column + i) * 4 + k % 8 / 2;
      left[i][k] = number_of<Weight>(all[lane_a].a[i + k / 8 * 2], k % 2);
      right[i][k] = number_of<Weight>(all[lane_b].b[k / 8], k % 2);
    }
  }
  for (int i = 0; i < 4; ++i) {
    double sum = c[i];
    for (int k = 0; k < 16; ++k) sum += left[i / 2][k] * right[i % 2][k];
    c[i] = float(sum);
  }
}

inline void store_if(bool exists, void* to, uint4 v) {
  if (exists) std::memcpy(to, &v, sizeof v);
}

inline void wait_for_prior_grid() { emulated::wait_for_prior_grid(); }
inline void launch_dependents() { emulated::launch_dependents(); }

}  // namespace loratory::gpu
