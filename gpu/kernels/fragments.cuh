#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

// Tensor-core fragments of m16n8k16. Weights are the 16 rows, tokens the 8 columns: a decode step
// pads its tokens to 8, not to 16.
//
// The 16 values of k that one instruction sums may be any 16, as long as both operands agree. So a
// thread takes neighbours: of 32 columns eight each (16 bytes, two instructions), or of 16 columns
// four each (8 bytes). No shuffles and no shared memory lie between global memory and the product.

namespace loratory::gpu {

template <typename Weight>
__device__ inline void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                           uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<Weight, __nv_bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

template <bool kConstant, typename T>
__device__ inline T read(const T* p) {
  if constexpr (kConstant)
    return __ldg(p);
  else
    return *p;
}

/// kCount (4 or 8) neighbouring 16-bit numbers.
template <int kCount>
struct Row {
  uint32_t pair[kCount / 2];
};

/// kCount neighbouring results as they lie in memory, in accesses of up to 16 bytes.
template <typename Bits, int kCount>
struct OutBits {
  static constexpr int kBytes = kCount * int(sizeof(Bits));
  using Vector = std::conditional_t<kBytes % 16 == 0, uint4, uint2>;
  static constexpr int kVectors = kBytes / int(sizeof(Vector));
  Vector vector[kVectors];

  /// i is a constant after unrolling: these are registers.
  __device__ uint32_t& word(int i) { return reinterpret_cast<uint32_t*>(vector)[i]; }
  __device__ uint32_t word(int i) const { return reinterpret_cast<const uint32_t*>(vector)[i]; }
  __device__ Bits get(int i) const {
    if constexpr (sizeof(Bits) == 4)
      return word(i);
    else
      return Bits(i % 2 == 0 ? word(i / 2) : word(i / 2) >> 16);
  }
  __device__ void set(int i, Bits v) {
    if constexpr (sizeof(Bits) == 4)
      word(i) = v;
    else
      word(i / 2) = i % 2 == 0 ? uint32_t(v) : word(i / 2) | uint32_t(v) << 16;
  }
};

/// Those at `p`. kAligned: as one access, and all of them exist. Otherwise `valid` exist, at least
/// one, and the others repeat the last one.
template <int kCount, bool kAligned, bool kConstant>
__device__ inline Row<kCount> load_row(const uint16_t* p, int valid) {
  Row<kCount> row;
  if constexpr (kAligned && kCount == 8) {
    const uint4 v = read<kConstant>(reinterpret_cast<const uint4*>(p));
    row.pair[0] = v.x, row.pair[1] = v.y, row.pair[2] = v.z, row.pair[3] = v.w;
  } else if constexpr (kAligned) {
    const uint2 v = read<kConstant>(reinterpret_cast<const uint2*>(p));
    row.pair[0] = v.x, row.pair[1] = v.y;
  } else {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const uint32_t low = read<kConstant>(p + min(2 * i, valid - 1));
      const uint32_t high = read<kConstant>(p + min(2 * i + 1, valid - 1));
      row.pair[i] = low | high << 16;
    }
  }
  return row;
}

/// Ones where a number exists: what lies beyond a rank may be anything, NaN included, so it is
/// masked and not multiplied by 0.
template <int kCount>
__device__ inline Row<kCount> mask_first(int valid) {
  Row<kCount> mask;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    mask.pair[i] = valid > 2 * i + 1 ? 0xFFFFFFFFU : (valid > 2 * i ? 0xFFFFU : 0U);
  }
  return mask;
}
template <int kCount>
__device__ inline void apply(const Row<kCount>& mask, Row<kCount>& row) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) row.pair[i] &= mask.pair[i];
}
template <int kCount>
__device__ inline void keep_first(Row<kCount>& row, int valid) {
  apply(mask_first<kCount>(valid), row);
}

template <typename Weight>
__device__ inline uint16_t to_bits(float v);
template <>
__device__ inline uint16_t to_bits<__nv_bfloat16>(float v) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(v));
}
template <>
__device__ inline uint16_t to_bits<__half>(float v) {
  return __half_as_ushort(__float2half_rn(v));
}

template <typename Weight>
__device__ inline float to_float(uint16_t bits);
template <>
__device__ inline float to_float<__nv_bfloat16>(uint16_t bits) {
  return __bfloat162float(__ushort_as_bfloat16(bits));
}
template <>
__device__ inline float to_float<__half>(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

}  // namespace loratory::gpu
