#pragma once

#include <cmath>
#include <cstdint>

#include "gpu/attention/attention_params.hpp"
#include "gpu/kernels/ptx.cuh"

// The arithmetic of one row, a pair of a token and a head. Decode and prefill take these steps in
// the same order, so their bits agree; rounding is spelled out, because a compiler fuses products
// and sums as it likes. Weights are 2^(c·score - shift) with c = log2(e)·scale. Shifts only grow
// inside a piece.
//
//   tile   shift' = max(shift, c·largest score), f = 2^(shift - shift')
//          sum' = f·sum + weights, acc' = f·acc + weights v, keys ascending in steps of 16
//   piece  merged into the row's total: shift' = max, both scaled to it and added
//
// A thread has a quarter of a row's keys, columns 2q and 2q + 1 of every eight, and sums their
// weights by itself until the piece ends.

namespace loratory::gpu {

inline constexpr float kNothing = -INFINITY;  // the shift of a row without keys

struct RowState {
  float shift = kNothing;
  float sum = 0;
};

/// The shift after a tile whose largest score is `most`.
__device__ inline float next_shift(float shift, float most, float scale_log2) {
  return fmaxf(shift, __fmul_rn(scale_log2, most));
}
__device__ inline float rescaling(float shift, float next) {
  return exp2_of(__fsub_rn(shift, next));
}
__device__ inline float weight_of(float score, float scale_log2, float shift) {
  return exp2_of(__fmaf_rn(score, scale_log2, -shift));
}

/// The weights of 32 keys that one thread has, two of each eight.
__device__ inline float sum_of_eight(const float (&w)[8]) {
  float sum = w[0];
#pragma unroll
  for (int i = 1; i < 8; ++i) sum = __fadd_rn(sum, w[i]);
  return sum;
}
__device__ inline float next_sum(float sum, float factor, float first_half, float second_half) {
  return __fmaf_rn(sum, factor, __fadd_rn(first_half, second_half));
}

__device__ inline float largest_of_quad(float v) {
  v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFF, v, 1));
  return fmaxf(v, __shfl_xor_sync(0xFFFFFFFF, v, 2));
}
__device__ inline float sum_of_quad(float v) {
  v = __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFF, v, 1));
  return __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFF, v, 2));
}

/// How a piece joins the total of the pieces before it.
struct Merge {
  float keep, add;
};
__device__ inline Merge merge(RowState& total, const RowState& piece) {
  const float shift = fmaxf(total.shift, piece.shift);
  const Merge m{rescaling(total.shift, shift), rescaling(piece.shift, shift)};
  total = {shift, __fmaf_rn(piece.sum, m.add, __fmul_rn(total.sum, m.keep))};
  return m;
}
__device__ inline float merged(float total, float piece, const Merge& m) {
  return __fmaf_rn(piece, m.add, __fmul_rn(total, m.keep));
}

/// What is rounded and written. Adding 0 leaves one zero: tiles of masked keys may change the sign.
__device__ inline float normalized(float acc, float inverse_sum) {
  return __fadd_rn(__fmul_rn(acc, inverse_sum), 0.0F);
}

/// Where a vector of eight numbers of a row lies, in panels of 64 columns and kRows rows.
template <int kRows>
__device__ inline int panel_offset(int row, int vec) {
  return vec / 8 * (kRows * 128) + row * 128 + ((vec ^ row) % 8) * 16;
}

}  // namespace loratory::gpu
