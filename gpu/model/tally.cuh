#pragma once

#include <cstdint>

// Sums of weights that are exact: a weight of at most 1 is an integer in units of 2^-63, and a sum
// of 2^31 of them has 96 bits. So neither the order of a sum nor who adds it changes a bit.

namespace loratory::gpu {

/// How many tokens, and the sum of their weights.
struct Tally {
  uint64_t low = 0;
  uint32_t high = 0;
  uint32_t count = 0;
};

__device__ inline Tally operator+(const Tally& a, const Tally& b) {
  const uint64_t low = a.low + b.low;
  return {low, a.high + b.high + uint32_t(low < a.low), a.count + b.count};
}

/// The sum as a float64, in units of 2^-63. A larger sum never gives a smaller number.
__device__ inline double sum_of(const Tally& t) { return double(t.high) * 0x1p64 + double(t.low); }

/// Whether a running tally has come far enough.
struct Goal {
  uint32_t count = 0;
  double sum = 0;
};
__device__ inline bool reaches(const Tally& t, const Goal& goal) {
  return t.count >= goal.count && sum_of(t) >= goal.sum;
}

__device__ inline Tally shuffled_up(const Tally& t, int distance) {
  return {__shfl_up_sync(~0U, t.low, distance), __shfl_up_sync(~0U, t.high, distance),
          __shfl_up_sync(~0U, t.count, distance)};
}

/// The tallies of the threads before this one; `of_warp` has room for one of each warp. All
/// threads of the CTA call it.
__device__ inline Tally tally_before(const Tally& mine, Tally* of_warp) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  Tally upto = mine;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const Tally other = shuffled_up(upto, distance);
    if (lane >= distance) upto = upto + other;
  }
  __syncthreads();  // what of_warp held has been read
  if (lane == 31) of_warp[warp] = upto;
  __syncthreads();
  Tally before = shuffled_up(upto, 1);
  if (lane == 0) before = {};
#pragma unroll 1
  for (int i = 0; i < warp; ++i) before = before + of_warp[i];
  return before;
}

}  // namespace loratory::gpu
