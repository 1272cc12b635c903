#pragma once

#include "gpu/kernels/kernel_context.cuh"
#include "gpu/kernels/quantized_fragments.cuh"
#include "gpu/kernels/quantized_scales.cuh"

// h to 8 bits: reference::quantize(), to the bit.

namespace loratory::gpu {

/// max(largest, |v|); NaN and infinity do not count.
__device__ inline float larger(float largest, float v) {
  const float magnitude = fabsf(v);
  return magnitude <= 3.402823466e38F && magnitude > largest ? magnitude : largest;
}
/// Of all lanes.
__device__ inline float largest_of_warp(float v) {
#pragma unroll
  for (int with = 16; with > 0; with /= 2) v = larger(v, __shfl_xor_sync(~0U, v, with));
  return v;
}

__device__ inline float largest_number(reference::Dtype dtype) {
  if (dtype == reference::Dtype::i8) return 127;
  return dtype == reference::Dtype::f8_e4m3fn ? 448 : 57344;
}
__device__ inline float scale_of(float absmax, reference::Dtype dtype) {
  const float scale = __fdiv_rn(absmax, largest_number(dtype));
  return absmax == 0 ? 1 : fmaxf(scale, 1.17549435e-38F);  // 2^-126
}
/// -0 of a row of zeros becomes 0; elsewhere it keeps its sign.
__device__ inline uint8_t quantized_number(reference::Dtype dtype, float v, float scale,
                                           bool all_zero) {
  return encoded(dtype, all_zero && v == 0 ? 0.0F : __fdiv_rn(v, scale));
}

/// 8-bit h of an expand, in shared memory: its factors, and its numbers if they are made here.
template <typename C>
class QuantizedH {
 public:
  __device__ explicit QuantizedH(const Context<C>& context) : c(context), p(context.p) {}

  /// From the factors of a tensor.
  __device__ void load_factors(const WorkTile& work) const {
    const ActivationScale& scale = quantized(p).h_scale;
    for (int e = int(threadIdx.x); e < work.num_slices * C::kTokens; e += C::kNumThreads) {
      const int slice = c.slices()[e / C::kTokens].index, token = e % C::kTokens;
      if (token >= work.num_tokens) continue;
      c.h_factors()[slice * C::kTokens + token] =
          scale.data[scale.index(slice, row_of(p, work, token), 0)];
    }
  }

  /// From fp32 h. A warp takes several rows, each of a token and a slice: it issues their loads,
  /// then runs `meanwhile`. Every CTA of a segment finds the same.
  template <typename Meanwhile>
  __device__ void quantize(const WorkTile& work, const Meanwhile& meanwhile) const {
    const int num_rows = work.num_slices * C::kTokens;
#pragma unroll 1
    for (int first = c.warp; first < num_rows; first += kAtOnce * C::kNumWarps) {
      float2 numbers[kAtOnce];  // of the first 64 ranks
      float largest[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        numbers[i] = two(row_at(work, first + i * C::kNumWarps, num_rows), 2 * c.lane);
      }
      if (first == c.warp) meanwhile();
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const Row row = row_at(work, first + i * C::kNumWarps, num_rows);
        largest[i] = row.rank > 0 ? largest_of(row, numbers[i]) : 0;
      }
#pragma unroll 1
      for (int i = 0; i < kAtOnce; ++i) {
        const Row row = row_at(work, first + i * C::kNumWarps, num_rows);
        if (row.rank > 0) store(row, largest[0], numbers[0]);
#pragma unroll
        for (int j = 1; j < kAtOnce; ++j) {
          largest[j - 1] = largest[j];
          numbers[j - 1] = numbers[j];
        }
      }
    }
  }

 private:
  static constexpr int kAtOnce = 4;

  const Context<C> c;
  const KernelParams& p;

  struct Row {
    const float* h;
    int rank, h_column, slice, token;
  };
  /// Of rank 0 if there is none, or if the tile does not need it.
  __device__ Row row_at(const WorkTile& work, int i, int num_rows) const {
    const int token = i % C::kTokens;
    if (i >= num_rows || token >= work.num_tokens) return {};
    const TileSlice& s = c.slices()[i / C::kTokens];
    const bool is_needed = s.h_column >= work.first_h && s.h_column < work.end_h;
    const auto* const h =
        reinterpret_cast<const float*>(c.tokens()[token].x + s.index * p.h_slice_stride);
    return {h, is_needed ? s.rank : 0, s.h_column, s.index, token};
  }
  /// Ranks j and j + 1, 0 beyond the rank.
  __device__ float2 two(const Row& row, int j) const {
    if (p.h_aligned && j + 1 < row.rank) return *reinterpret_cast<const float2*>(row.h + j);
    return {j < row.rank ? row.h[j] : 0, j + 1 < row.rank ? row.h[j + 1] : 0};
  }

  /// All lanes have that of the row.
  __device__ float largest_of(const Row& row, const float2& first) const {
    float largest = larger(larger(0, first.x), first.y);
#pragma unroll 1
    for (int j = 2 * c.lane + 64; j < row.rank; j += 64) {
      const float2 v = two(row, j);
      largest = larger(larger(largest, v.x), v.y);
    }
    return largest_of_warp(largest);
  }
  /// Numbers as f16, where multiply_bytes() of NarrowExpand reads them; zeros up to a multiple
  /// of 16.
  __device__ void store(const Row& row, float largest, float2 v) const {
    const reference::Dtype dtype = quantized(p).h_dtype;
    const float scale = scale_of(largest, dtype);
    if (c.lane == 0) c.h_factors()[row.slice * C::kTokens + row.token] = scale;
#pragma unroll 1
    for (int j = 2 * c.lane; j < padded_rank(row.rank);) {
      const uint32_t low = quantized_number(dtype, v.x, scale, largest == 0);
      const uint32_t high = quantized_number(dtype, v.y, scale, largest == 0);
      std::byte* const to = c.permuted_h(row.token, row.h_column + j / 4 * 4);
      *reinterpret_cast<uint32_t*>(to + j % 4 / 2 * 32) = widen<__half>(dtype, low | high << 8).low;
      j += 64;
      v = two(row, j);
    }
  }
};

}  // namespace loratory::gpu
