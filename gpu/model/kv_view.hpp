#pragma once

#include <cstdint>

#include "reference/numerics/dtype.hpp"

namespace loratory::gpu {

/// Of attention and rotary(): their plain kernels keep a head in shared memory.
inline constexpr int32_t kMostHeadDim = 1024;

/// The keys and values of one layer in device memory, in the blocks of the scheduler's pool: two
/// tensors [num_blocks, kv_heads, block_size, head_dim] without gaps, each 16-byte aligned.
/// Position p of a row lies in block block_tables[row][p / block_size], at place p % block_size.
/// What a row does not own or has not written may be NaN: it must not reach a result, and 0 · NaN
/// does.
struct KvView {
  reference::Dtype dtype = reference::Dtype::bf16;
  void* k = nullptr;
  void* v = nullptr;
  int64_t num_blocks = 0;
  int32_t kv_heads = 0;
  int32_t block_size = 0;
  int32_t head_dim = 0;
};

}  // namespace loratory::gpu
