#pragma once

#include <cstdint>

#include "gpu/runtime/device_view.hpp"
#include "reference/numerics/dtype.hpp"

struct CUstream_st;

// Small kernels of the engine itself. None allocates or waits; all may be captured.

namespace loratory::gpu {

/// numbers[i] = a number of size * [-1, 1), from `seed` and i alone; bf16, f16, f32 or f8_e4m3fn.
void fill_random(reference::Dtype dtype, void* numbers, int64_t count, float size, uint64_t seed,
                 CUstream_st* stream);
/// numbers[i] = value.
void fill(reference::Dtype dtype, void* numbers, int64_t count, float value, CUstream_st* stream);

/// Ranks and scalings of a slot, from the end of its image, to where SlotLayout::table_place()
/// says: begins[i] + slot · strides[i].
struct SlotTables {
  const int32_t* from_ranks;
  const float* from_scalings;
  const float* from_factors;  ///< [2 num_modules] of A, then of B; null: there are none
  int32_t* ranks;
  float* scalings;
  float *a_factors, *b_factors;
  const int32_t *begins, *strides;  ///< [num_modules]
  int32_t num_modules, slot;
};
void write_slot_tables(const SlotTables& tables, CUstream_st* stream);

/// to[0, bytes) = from[0, bytes), either one page-locked memory of the host; both at multiples of
/// 16 bytes, and room for bytes rounded up to it. By a kernel, because a copy engine takes copies
/// in turn: behind an adapter of 336 MB a few kilobytes wait for 7 ms.
void copy_few(void* to, const void* from, int64_t bytes, CUstream_st* stream);

/// Bytes 0xFF, which are NaN in every dtype, over the blocks of a tensor of `block_bytes` each.
void poison_blocks(void* tensor, int64_t block_bytes, const int32_t* blocks, int32_t num_blocks,
                   CUstream_st* stream);

}  // namespace loratory::gpu
