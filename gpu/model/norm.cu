#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/kernels/ptx.cuh"
#include "gpu/model/model_launch.hpp"
#include "gpu/model/packed_eight.cuh"

// A CTA takes a row. Eight i of the row belongs to thread i % blockDim; a thread adds its squares
// in ascending order, the lanes of a warp in a butterfly, and so the warps. blockDim follows from
// the size of a row alone, and so does the order of the sum. The first two eights of a thread stay
// in registers (rows of up to 16,384 numbers); others are read twice.

namespace loratory::gpu {
namespace {

constexpr int kHeld = 2;
constexpr int kMostThreads = 1024;

/// Sum over the CTA, the same bits in every thread.
__device__ float sum_of_cta(float sum) {
  __shared__ float of_warp[32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(~0U, sum, distance));
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = threadIdx.x % 32 < blockDim.x / 32 ? of_warp[threadIdx.x % 32] : 0;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(~0U, sum, distance));
  }
  return sum;
}

template <typename T, bool kVectors>
class NormRow {
 public:
  using Raw = std::conditional_t<kVectors, PackedEight<T>, Eight>;

  __device__ NormRow(const NormLaunch& launch, int row, int source)
      : p(launch),
        x_(static_cast<T*>(p.x) + source * p.x_stride),
        delta_(static_cast<const T*>(p.delta) + source * p.delta_stride),
        y_(static_cast<T*>(p.y) + row * p.y_stride) {}

  /// `weights` are those of the first eights. All loads come before the first store: a store to x
  /// would hold up those behind it.
  __device__ void run(const Raw (&weights)[kHeld]) const {
    Eight held[kHeld];
    Raw delta[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (place(i) < p.hidden) load(place(i), held[i], delta[i]);
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (place(i) < p.hidden) add_squares(sum, add(place(i), held[i], delta[i]));
    }
    for (int i = kHeld; place(i) < p.hidden; ++i) add_squares(sum, take(place(i)));
    const float mean = __fdiv_rn(sum_of_cta(sum), float(p.hidden));
    const float scale = __frsqrt_rn(__fadd_rn(mean, p.eps));
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (place(i) < p.hidden) put(place(i), held[i], eight_of(weights[i]), scale);
    }
    for (int i = kHeld; place(i) < p.hidden; ++i) {
      put(place(i), retake(place(i)), eight_of(weight_at(p, place(i))), scale);
    }
  }

  __device__ void write_zeros() const {
    for (int i = 0; place(i) < p.hidden; ++i) {
      store_eight<T, kVectors>(y_, place(i), p.hidden, Eight{});
    }
  }

  /// Those of the first eights of this thread. Nothing writes weights: they need not wait.
  static __device__ void load_weights(const NormLaunch& p, Raw (&weights)[kHeld]) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (place(i) < p.hidden) weights[i] = weight_at(p, place(i));
    }
  }

 private:
  const NormLaunch& p;
  T* x_;
  const T* delta_;
  T* y_;

  static __device__ int place(int i) { return 8 * int(threadIdx.x + i * blockDim.x); }

  static __device__ Raw load_raw(const T* row, int at, int size) {
    if constexpr (kVectors)
      return load_packed(row + at);
    else
      return load_eight<T, kVectors>(row, at, size);
  }
  static __device__ Eight eight_of(const Raw& raw) {
    if constexpr (kVectors)
      return unpacked_eight<T>(raw);
    else
      return raw;
  }

  __device__ void load(int at, Eight& x, Raw& delta) const {
    x = load_eight<T, kVectors>(x_, at, p.hidden);
    if (p.delta != nullptr) delta = load_raw(delta_, at, p.hidden);
  }
  /// x becomes round(x + delta), also in memory, if there is a delta.
  __device__ const Eight& add(int at, Eight& x, const Raw& raw_delta) const {
    if (p.delta != nullptr) {
      const Eight delta = eight_of(raw_delta);
#pragma unroll
      for (int i = 0; i < 8; ++i) x.v[i] = rounded_to<T>(__fadd_rn(x.v[i], delta.v[i]));
    }
    if (p.writes_x) store_eight<T, kVectors>(x_, at, p.hidden, x);
    return x;
  }
  __device__ Eight take(int at) const {
    Eight x;
    Raw delta;
    load(at, x, delta);
    return add(at, x, delta);
  }
  /// The same number once more.
  __device__ Eight retake(int at) const {
    if (p.writes_x) return load_eight<T, kVectors>(x_, at, p.hidden);
    return take(at);
  }
  static __device__ Raw weight_at(const NormLaunch& p, int at) {
    return load_raw(static_cast<const T*>(p.weight), at, p.hidden);
  }

  static __device__ void add_squares(float& sum, const Eight& of) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __fmaf_rn(of.v[i], of.v[i], sum);
  }
  __device__ void put(int at, const Eight& of, const Eight& weight, float scale) const {
    Eight out;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out.v[i] = __fmul_rn(weight.v[i], __fmul_rn(of.v[i], scale));
    }
    store_eight<T, kVectors>(y_, at, p.hidden, out);
  }
};

template <typename T, bool kVectors>
__global__ void __launch_bounds__(kMostThreads)
    rms_norm_kernel(const __grid_constant__ NormLaunch p) {
  using Row = NormRow<T, kVectors>;
  launch_dependents();
  typename Row::Raw weights[kHeld];
  Row::load_weights(p, weights);
  wait_for_prior_grid();
  const int row = int(blockIdx.x);
  const int source = p.rows == nullptr ? row : p.rows[row];
  if (source < 0) {
    Row(p, row, 0).write_zeros();
  } else {
    Row(p, row, source).run(weights);
  }
}

template <typename T>
void launch(const NormLaunch& p, CUstream_st* stream, LaunchOrder order) {
  const int eights = (p.hidden + 7) / 8;
  const int threads = std::min(kMostThreads, (eights + 32 * kHeld - 1) / (32 * kHeld) * 32);
  launch_kernel(p.uses_vectors ? rms_norm_kernel<T, true> : rms_norm_kernel<T, false>,
                {.grid = unsigned(p.num_rows), .block = unsigned(threads)}, stream, order, p);
}

}  // namespace

void launch_norm(const NormLaunch& p, CUstream_st* stream, LaunchOrder order) {
  switch (p.dtype) {
    case reference::Dtype::f32:
      return launch<float>(p, stream, order);
    case reference::Dtype::f16:
      return launch<__half>(p, stream, order);
    default:
      return launch<__nv_bfloat16>(p, stream, order);
  }
}

}  // namespace loratory::gpu
