#include "gpu/engine/device/engine_kernels.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {

using reference::Dtype;

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostCtas = 2048;
constexpr int64_t kMostCopyCtas = 64;  // the host's link is full long before

template <typename T>
__device__ T rounded(float v) {
  return T(v);
}

__device__ uint64_t mixed(uint64_t z) {  // splitmix64
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

template <typename T>
__global__ void fill_kernel(T* numbers, int64_t count, float size, float centre, uint64_t seed) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint64_t bits = mixed(seed + 0x9E3779B97F4A7C15ULL * uint64_t(i + 1));
    const float unit = float(int32_t(bits >> 40) - (1 << 23)) * 0x1p-23F;
    numbers[i] = rounded<T>(centre + size * unit);
  }
}

template <typename T>
void launch_fill(void* numbers, int64_t count, float size, float centre, uint64_t seed,
                 CUstream_st* stream) {
  const int64_t ctas = std::min<int64_t>(kMostCtas, (count + kThreads - 1) / kThreads);
  if (count == 0) return;
  fill_kernel<T><<<uint32_t(ctas), kThreads, 0, stream>>>(static_cast<T*>(numbers), count, size,
                                                          centre, seed);
  LORATORY_CUDA_CHECK(cudaGetLastError());
}

void fill_any(Dtype dtype, void* numbers, int64_t count, float size, float centre, uint64_t seed,
              CUstream_st* stream) {
  if (dtype == Dtype::f32) launch_fill<float>(numbers, count, size, centre, seed, stream);
  if (dtype == Dtype::f16) launch_fill<__half>(numbers, count, size, centre, seed, stream);
  if (dtype == Dtype::bf16) launch_fill<__nv_bfloat16>(numbers, count, size, centre, seed, stream);
  if (dtype == Dtype::f8_e4m3fn)
    launch_fill<__nv_fp8_e4m3>(numbers, count, size, centre, seed, stream);
}

__global__ void slot_tables_kernel(SlotTables t) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= t.num_modules) return;
  const int64_t at = t.begins[i] + int64_t(t.slot) * t.strides[i];
  t.ranks[at] = t.from_ranks[i];
  t.scalings[at] = t.from_scalings[i];
  if (t.from_factors == nullptr) return;
  t.a_factors[at] = t.from_factors[i];
  t.b_factors[at] = t.from_factors[t.num_modules + i];
}

__global__ void poison_kernel(uint8_t* tensor, int64_t block_bytes, const int32_t* blocks) {
  uint8_t* const block = tensor + int64_t(blocks[blockIdx.x]) * block_bytes;
  for (int64_t i = threadIdx.x; i < block_bytes; i += blockDim.x) block[i] = 0xFF;
}

__global__ void copy_kernel(uint4* to, const uint4* from, int64_t count) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    to[i] = __ldcv(from + i);
  }
}

}  // namespace

void fill_random(Dtype dtype, void* numbers, int64_t count, float size, uint64_t seed,
                 CUstream_st* stream) {
  fill_any(dtype, numbers, count, size, 0, seed, stream);
}

void fill(Dtype dtype, void* numbers, int64_t count, float value, CUstream_st* stream) {
  fill_any(dtype, numbers, count, 0, value, 0, stream);
}

void write_slot_tables(const SlotTables& tables, CUstream_st* stream) {
  const auto ctas = uint32_t((tables.num_modules + kThreads - 1) / kThreads);
  slot_tables_kernel<<<ctas, kThreads, 0, stream>>>(tables);
  LORATORY_CUDA_CHECK(cudaGetLastError());
}

void poison_blocks(void* tensor, int64_t block_bytes, const int32_t* blocks, int32_t num_blocks,
                   CUstream_st* stream) {
  if (num_blocks == 0) return;
  poison_kernel<<<uint32_t(num_blocks), kThreads, 0, stream>>>(static_cast<uint8_t*>(tensor),
                                                               block_bytes, blocks);
  LORATORY_CUDA_CHECK(cudaGetLastError());
}

void copy_few(void* to, const void* from, int64_t bytes, CUstream_st* stream) {
  const int64_t count = (bytes + 15) / 16;
  if (count == 0) return;
  const int64_t ctas = std::min<int64_t>(kMostCopyCtas, (count + kThreads - 1) / kThreads);
  copy_kernel<<<uint32_t(ctas), kThreads, 0, stream>>>(static_cast<uint4*>(to),
                                                       static_cast<const uint4*>(from), count);
  LORATORY_CUDA_CHECK(cudaGetLastError());
}

}  // namespace loratory::gpu
