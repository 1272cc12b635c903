#pragma once

#include "gpu/kernels/quantized_h.cuh"
#include "gpu/kernels/work_tile.cuh"
#include "gpu/plan/quantized_launch.hpp"

// 8-bit weights on CUDA cores, for every dtype, stride, block and alignment: the bits of
// reference/quantized. A thread owns a sum and adds its terms in the order of their index, one fp32
// product and one fp32 sum each. And h to 8 bits.
//
// A CTA takes a segment and a slice at a time.

namespace loratory::gpu {

__device__ inline int number_bytes(reference::Dtype dtype) {
  using reference::Dtype;
  return dtype == Dtype::f32 ? 4 : dtype == Dtype::f16 || dtype == Dtype::bf16 ? 2 : 1;
}

/// A number of any dtype in fp32.
__device__ inline float number_at(reference::Dtype dtype, const void* data, int64_t i) {
  using reference::Dtype;
  if (dtype == Dtype::f32) return static_cast<const float*>(data)[i];
  if (dtype == Dtype::bf16) {
    return to_float<__nv_bfloat16>(static_cast<const uint16_t*>(data)[i]);
  }
  if (dtype == Dtype::f16) return to_float<__half>(static_cast<const uint16_t*>(data)[i]);
  return decoded(dtype, static_cast<const uint8_t*>(data)[i]);
}

__device__ inline void store_number(reference::Dtype dtype, void* data, int64_t i, float v) {
  using reference::Dtype;
  if (dtype == Dtype::f32) static_cast<float*>(data)[i] = v;
  if (dtype == Dtype::bf16) static_cast<uint16_t*>(data)[i] = to_bits<__nv_bfloat16>(v);
  if (dtype == Dtype::f16) static_cast<uint16_t*>(data)[i] = to_bits<__half>(v);
}

__device__ inline float rounded(reference::Dtype dtype, float v) {
  using reference::Dtype;
  if (dtype == Dtype::bf16) return to_float<__nv_bfloat16>(to_bits<__nv_bfloat16>(v));
  return dtype == Dtype::f16 ? to_float<__half>(to_bits<__half>(v)) : v;
}

/// A row of 8-bit weights and one of activations.
struct GenericRow {
  const uint8_t* weight;
  reference::Dtype weight_dtype;
  const WeightScale& weight_scale;
  int64_t slot;
  int row;
  const void* activations;  ///< of the token
  reference::Dtype dtype;
  const ActivationScale& scale;
  int slice;
  int64_t token;
};

/// The sum of the products of numbers [first, end) of a row. i8 with i8: the exact integer.
__device__ inline float sum_of_products(const GenericRow& of, int first, int end) {
  if (of.weight_dtype == reference::Dtype::i8 && of.dtype == reference::Dtype::i8) {
    long long sum = 0;
    for (int k = first; k < end; ++k) {
      sum += int(int8_t(of.weight[k])) * int(static_cast<const int8_t*>(of.activations)[k]);
    }
    return __ll2float_rn(sum);
  }
  float sum = 0;
  for (int k = first; k < end; ++k) {
    sum = __fadd_rn(sum, __fmul_rn(decoded(of.weight_dtype, of.weight[k]),
                                   number_at(of.dtype, of.activations, k)));
  }
  return sum;
}

/// All of it: group after group, each with its factors.
__device__ inline float scaled_product(const GenericRow& of, int num_columns) {
  const int each = of.weight_scale.columns_each;
  const int width = each > 0 ? each : num_columns;
  float total = 0;
  for (int first = 0, group = 0; first < num_columns; first += width, ++group) {
    float part = sum_of_products(of, first, min(num_columns, first + width));
    if (of.scale.data != nullptr) {
      part = __fmul_rn(part, of.scale.data[of.scale.index(of.slice, of.token, group)]);
    }
    part = __fmul_rn(part, of.weight_scale.data[of.weight_scale.index(of.slot, of.row, group)]);
    total = each > 0 ? __fadd_rn(total, part) : part;
  }
  return total;
}

/// h of all covered tokens and ranks.
__device__ inline void shrink_generic(const QuantizedParams& p) {
  const int64_t num_pairs = int64_t(*p.num_segments) * p.num_slices;
  for (int64_t u = blockIdx.x; u < num_pairs; u += gridDim.x) {
    const Segment segment = p.segments[u / p.num_slices];
    const int slice = int(u % p.num_slices);
    const SliceParams& s = p.slices[slice];
    const int rank = s.ranks[segment.slot];
    for (int e = int(threadIdx.x); e < segment.num_tokens * rank; e += int(blockDim.x)) {
      const int j = e % rank;
      const int64_t token = p.token_indices[segment.first + e / rank];
      const auto* const a = reinterpret_cast<const uint8_t*>(s.a) + segment.slot * s.a_slot_stride +
                            (int64_t(s.a_rank_steps) * rank + j) * s.a_row_stride;
      const auto* const x = reinterpret_cast<const std::byte*>(p.x) +
                            token * p.x_row_stride * int64_t(number_bytes(p.x_dtype));
      const float sum = scaled_product({a, p.of[slice].a, p.of[slice].a_scale, segment.slot, j, x,
                                        p.x_dtype, p.x_scale, 0, token},
                                       p.num_in);
      store_number(p.h_dtype, p.h, slice * p.h_slice_stride + token * p.h_row_stride + j, sum);
    }
  }
}

/// How delta meets base.
__device__ inline void finish_generic(const QuantizedParams& p, int64_t place, float d) {
  if (p.two_round) d = rounded(p.y_dtype, d);
  if (p.add_inputs) d = __fadd_rn(number_at(p.y_dtype, p.y, place), d);
  store_number(p.y_dtype, p.y, place, d);
}

/// y of all covered tokens and columns.
__device__ inline void expand_generic(const QuantizedParams& p) {
  const int64_t num_pairs = int64_t(*p.num_segments) * p.num_slices;
  const int num_parts = (p.max_columns + int(blockDim.x) - 1) / int(blockDim.x);
  for (int64_t u = blockIdx.x; u < num_pairs * num_parts; u += gridDim.x) {
    const Segment segment = p.segments[u / num_parts / p.num_slices];
    const int slice = int(u / num_parts % p.num_slices);
    const SliceParams& s = p.slices[slice];
    const int rank = s.ranks[segment.slot];
    const int n = int(u % num_parts) * int(blockDim.x) + int(threadIdx.x);
    if (rank == 0 || n >= s.num_out) continue;
    const auto* const b =
        reinterpret_cast<const uint8_t*>(s.b) + segment.slot * s.b_slot_stride + n * s.b_row_stride;
    for (int i = 0; i < segment.num_tokens; ++i) {
      const int64_t token = p.token_indices[segment.first + i];
      const auto* const h =
          reinterpret_cast<const std::byte*>(p.h) +
          (slice * p.h_slice_stride + token * p.h_row_stride) * int64_t(number_bytes(p.h_dtype));
      const float sum = scaled_product({b, p.of[slice].b, p.of[slice].b_scale, segment.slot, n, h,
                                        p.h_dtype, p.h_scale, slice, token},
                                       rank);
      finish_generic(p, token * p.y_row_stride + s.offset + n,
                     __fmul_rn(s.scalings[segment.slot], sum));
    }
  }
}

// --- h in 8 bits ------------------------------------------------------------------------------

/// By tensor: a CTA for each slice finds its factor, over all covered numbers.
__device__ inline void find_scales(const QuantizeHParams& p, float* largest_of_warps) {
  const int slice = int(blockIdx.x), lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  float largest = 0;
  for (int i = 0; i < *p.num_segments; ++i) {
    const Segment segment = p.segments[i];
    const int rank = p.ranks[slice][segment.slot];
    for (int t = warp; t < segment.num_tokens; t += int(blockDim.x) / 32) {
      const float* const h =
          p.h + slice * p.h_slice_stride + p.token_indices[segment.first + t] * p.h_row_stride;
      for (int j = lane; j < rank; j += 32) largest = larger(largest, h[j]);
    }
  }
  largest = largest_of_warp(largest);
  if (lane == 0) largest_of_warps[warp] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < int(blockDim.x) / 32; ++i) largest = larger(largest, largest_of_warps[i]);
  p.scale[p.of.index(slice, 0, 0)] = scale_of(largest, p.dtype);
}

/// One group of a row, by a warp.
__device__ inline void quantize_group(const QuantizeHParams& p, const float* h, uint8_t* bits,
                                      float* scale, int first, int end) {
  const int lane = int(threadIdx.x) % 32;
  float of_group = 0;
  bool all_zero = false;
  if (p.by_tensor) {
    of_group = *scale;  // of zeros alone, -0 keeps its sign here: no sum shows it
  } else {
    float largest = 0;
    for (int j = first + lane; j < end; j += 32) largest = larger(largest, h[j]);
    largest = largest_of_warp(largest);
    of_group = scale_of(largest, p.dtype);
    all_zero = largest == 0;
    if (lane == 0) *scale = of_group;
  }
  for (int j = first + lane; j < end; j += 32) {
    bits[j] = quantized_number(p.dtype, h[j], of_group, all_zero);
  }
}

/// A warp takes a token of a slice, a CTA as many tokens of a segment as it has warps.
__device__ inline void quantize_rows(const QuantizeHParams& p) {
  const int warp = int(threadIdx.x) / 32, num_warps = int(blockDim.x) / 32;
  const int parts = (p.segment_size + num_warps - 1) / num_warps;
  const int64_t num_pairs = int64_t(*p.num_segments) * p.num_slices;
  for (int64_t u = blockIdx.x; u < num_pairs * parts; u += gridDim.x) {
    const Segment segment = p.segments[u / parts / p.num_slices];
    const int slice = int(u / parts % p.num_slices);
    const int rank = p.ranks[slice][segment.slot];
    const int t = int(u % parts) * num_warps + warp;
    if (t >= segment.num_tokens) continue;
    const int64_t token = p.token_indices[segment.first + t];
    const float* const h = p.h + slice * p.h_slice_stride + token * p.h_row_stride;
    uint8_t* const bits = p.bits + slice * p.bits_slice_stride + token * p.bits_row_stride;
    const int width = p.of.columns_each > 0 ? p.of.columns_each : rank;
    for (int first = 0, group = 0; first < rank; first += width, ++group) {
      quantize_group(p, h, bits, p.scale + p.of.index(slice, token, group), first,
                     min(rank, first + width));
    }
  }
}

}  // namespace loratory::gpu
