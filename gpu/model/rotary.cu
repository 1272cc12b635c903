#include <algorithm>
#include <cstdint>

#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/kernels/ptx.cuh"
#include "gpu/model/model_launch.hpp"
#include "gpu/model/packed_eight.cuh"
#include "gpu/runtime/device_ability.hpp"

// A CTA takes a token, or some heads of it, head_dim / 16 lanes a head. A lane holds eight numbers
// of the first half of a head and the eight of the second half that they are paired with, so it
// needs the same cos and sin for every head. Heads of other sizes, which only tiny models have, are
// a thread each.

namespace loratory::gpu {
namespace {

// Eight warps of 64 registers leave room for a CTA of decode attention, which copies keys ahead
// while this one waits: each quarter of an SM has 512 registers a lane, and attention takes three
// warps of 120 there. So one CTA of a token, or two of a few heads, may be on each SM.
constexpr int kMostThreads = 256, kCtasPerSm = 4;
constexpr int kThreadsOfFewHeads = kMostThreads / 2;

/// Of a token's place in its block, for KV head 0.
__device__ int64_t place_in_kv(const RotaryLaunch& p, int row, int position) {
  const int size = p.kv.block_size;
  const int64_t block = p.batch.block_tables[int64_t(row) * p.batch.max_blocks + position / size];
  return (block * p.kv.kv_heads * size + position % size) * p.kv.head_dim;
}

/// Where a head of the token goes: in place, or to its place in the keys or values.
template <typename T>
__device__ T* destination(const RotaryLaunch& p, T* in, int head, int64_t kv_place) {
  const int kv_head = head - p.num_heads;
  if (kv_head < 0) return in;
  const bool is_value = kv_head >= p.kv.kv_heads;
  const int64_t of_head = is_value ? kv_head - p.kv.kv_heads : kv_head;
  T* const base = static_cast<T*>(is_value ? p.kv.v : p.kv.k);
  return base + kv_place + of_head * p.kv.block_size * p.kv.head_dim;
}

struct Pairs {
  Eight first, second;
};

template <typename T>
class RotaryToken {
 public:
  __device__ RotaryToken(const RotaryLaunch& launch, int token)
      : p(launch),
        half_(p.kv.head_dim / 2),
        lanes_(p.kv.head_dim / 16),
        at_(8 * (int(threadIdx.x) % lanes_)),
        own_head_(int(blockIdx.y * blockDim.x + threadIdx.x) / lanes_),
        qkv_(static_cast<T*>(p.qkv) + token * p.qkv_stride) {
    row_ = p.batch.token_rows[token];
    if (row_ < 0) return;
    const int position = p.batch.positions[token];
    const int64_t table_row = int64_t(position) * half_ + at_;
    cos_ = load_vectors(p.cos + table_row), sin_ = load_vectors(p.sin + table_row);
    kv_place_ = place_in_kv(p, row_, position);
    if (p.q_norm != nullptr) norm_ = load_norm(own_head_);
  }

  /// Reads what the previous kernel may have written.
  __device__ void run() {
    if (row_ < 0) return;
    const int at_once = int(gridDim.y * blockDim.x) / lanes_;
    const int num_rotated = p.num_heads + p.kv.kv_heads, num_heads = num_rotated + p.kv.kv_heads;
    // The loop is the same for all lanes, because they exchange sums.
    for (int first = 0; first < num_heads; first += at_once) {
      const int head = first + own_head_;
      const bool exists = head < num_heads, rotates = head < num_rotated;
      T* const in = qkv_ + (exists ? head : num_heads - 1) * p.kv.head_dim;
      Pairs pairs = unpacked(load(in));
      if (p.q_norm != nullptr) {
        if (first > 0) norm_ = load_norm(head);
        const float scale = scale_of(pairs);
        if (rotates) normalize(pairs, scale);
      }
      if (rotates) rotate(pairs);
      if (exists) store(destination(p, in, head, kv_place_), pairs);
    }
  }

 private:
  struct Packed {
    PackedEight<T> first, second;
  };

  const RotaryLaunch& p;
  const int half_, lanes_, at_, own_head_;
  T* const qkv_;
  int row_;  // -1: padding
  int64_t kv_place_;
  Eight cos_, sin_;
  Packed norm_;  // of the head

  __device__ Packed load(const T* head) const {
    return {load_packed(head + at_), load_packed(head + half_ + at_)};
  }
  static __device__ Pairs unpacked(const Packed& pairs) {
    return {unpacked_eight<T>(pairs.first), unpacked_eight<T>(pairs.second)};
  }
  __device__ Packed load_norm(int head) const {
    return load(static_cast<const T*>(head < p.num_heads ? p.q_norm : p.k_norm));
  }
  __device__ void store(T* head, const Pairs& pairs) const {
    store_vectors(head + at_, pairs.first);
    store_vectors(head + half_ + at_, pairs.second);
  }

  /// 1 / sqrt(mean of squares + eps): a lane's squares in ascending order, then a butterfly.
  __device__ float scale_of(const Pairs& pairs) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __fmaf_rn(pairs.first.v[i], pairs.first.v[i], sum);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __fmaf_rn(pairs.second.v[i], pairs.second.v[i], sum);
    for (int distance = 1; distance < lanes_; distance *= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(~0U, sum, distance));
    }
    return __frsqrt_rn(__fadd_rn(__fdiv_rn(sum, float(p.kv.head_dim)), p.eps));
  }
  __device__ void normalize(Pairs& pairs, float scale) const {
    const Pairs w = unpacked(norm_);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      pairs.first.v[i] = __fmul_rn(w.first.v[i], __fmul_rn(pairs.first.v[i], scale));
      pairs.second.v[i] = __fmul_rn(w.second.v[i], __fmul_rn(pairs.second.v[i], scale));
    }
  }
  __device__ void rotate(Pairs& pairs) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float a = pairs.first.v[i], b = pairs.second.v[i];
      pairs.first.v[i] = __fmaf_rn(a, cos_.v[i], -__fmul_rn(b, sin_.v[i]));
      pairs.second.v[i] = __fmaf_rn(b, cos_.v[i], __fmul_rn(a, sin_.v[i]));
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(kMostThreads, sizeof(T) == 2 ? kCtasPerSm : 1)
    rotary_kernel(const __grid_constant__ RotaryLaunch p) {
  launch_dependents();
  RotaryToken<T> token(p, int(blockIdx.x));
  wait_for_prior_grid();
  token.run();
}

template <typename T>
class PlainHead {
 public:
  __device__ PlainHead(const RotaryLaunch& launch, const T* head)
      : p(launch), in_(head), half_(launch.kv.head_dim / 2) {}

  /// 1 / sqrt(mean of squares + eps), the squares in ascending order.
  __device__ float scale() const {
    float sum = 0;
    for (int i = 0; i < p.kv.head_dim; ++i) sum = __fmaf_rn(float(in_[i]), float(in_[i]), sum);
    return __frsqrt_rn(__fadd_rn(__fdiv_rn(sum, float(p.kv.head_dim)), p.eps));
  }
  /// `norm` null: without.
  __device__ void rotate(const T* norm, const float* cos, const float* sin, T* out) const {
    const float factor = norm == nullptr ? 1 : scale();
    for (int i = 0; i < half_; ++i) {
      float a = float(in_[i]), b = float(in_[half_ + i]);
      if (norm != nullptr) {
        a = __fmul_rn(float(norm[i]), __fmul_rn(a, factor));
        b = __fmul_rn(float(norm[half_ + i]), __fmul_rn(b, factor));
      }
      out[i] = T(__fmaf_rn(a, cos[i], -__fmul_rn(b, sin[i])));
      out[half_ + i] = T(__fmaf_rn(b, cos[i], __fmul_rn(a, sin[i])));
    }
  }
  __device__ void copy(T* out) const {
    for (int i = 0; i < p.kv.head_dim; ++i) out[i] = in_[i];
  }

 private:
  const RotaryLaunch& p;
  const T* const in_;
  const int half_;
};

template <typename T>
__global__ void __launch_bounds__(kMostThreads)
    plain_rotary_kernel(const __grid_constant__ RotaryLaunch p) {
  launch_dependents();
  wait_for_prior_grid();
  const int token = int(blockIdx.x), row = p.batch.token_rows[token];
  if (row < 0) return;
  const int position = p.batch.positions[token];
  const int64_t kv_place = place_in_kv(p, row, position);
  const int64_t angles = int64_t(position) * (p.kv.head_dim / 2);
  const int num_rotated = p.num_heads + p.kv.kv_heads;
  for (int head = int(threadIdx.x); head < num_rotated + p.kv.kv_heads; head += int(blockDim.x)) {
    T* const in = static_cast<T*>(p.qkv) + token * p.qkv_stride + int64_t(head) * p.kv.head_dim;
    T* const out = destination(p, in, head, kv_place);
    const PlainHead<T> of(p, in);
    const void* const norm = head < p.num_heads ? p.q_norm : p.k_norm;
    if (head < num_rotated) {
      of.rotate(static_cast<const T*>(norm), p.cos + angles, p.sin + angles, out);
    } else {
      of.copy(out);
    }
  }
}

template <typename T>
void launch_for(const RotaryLaunch& p, const GridShape& shape, CUstream_st* stream,
                LaunchOrder order) {
  if (rotates_by_vectors(p.kv.head_dim)) {
    launch_kernel(rotary_kernel<T>, shape, stream, order, p);
  } else {
    launch_kernel(plain_rotary_kernel<T>, shape, stream, order, p);
  }
}

int num_lanes(const RotaryLaunch& p) {
  const int num_heads = p.num_heads + 2 * p.kv.kv_heads;
  return rotates_by_vectors(p.kv.head_dim) ? num_heads * p.kv.head_dim / 16 : num_heads;
}
/// All heads of a token at once, if they are not too many.
GridShape shape_of_tokens(const RotaryLaunch& p) {
  const int threads = std::min(kMostThreads, (num_lanes(p) + 31) / 32 * 32);
  return {.grid = unsigned(p.batch.num_tokens), .block = unsigned(threads)};
}
/// Of few tokens each head has lanes of its own, in CTAs of few heads.
GridShape shape_of(const RotaryLaunch& p) {
  const int parts = (num_lanes(p) + kThreadsOfFewHeads - 1) / kThreadsOfFewHeads;
  const bool are_few = int64_t{p.batch.num_tokens} * parts <= 2 * int64_t{num_sms()};
  if (!rotates_by_vectors(p.kv.head_dim) || !are_few || parts == 1) return shape_of_tokens(p);
  return {.grid = dim3(unsigned(p.batch.num_tokens), unsigned(parts)),
          .block = unsigned(kThreadsOfFewHeads)};
}

}  // namespace

void launch_rotary(const RotaryLaunch& p, CUstream_st* stream, LaunchOrder order) {
  const GridShape shape = shape_of(p);
  switch (p.kv.dtype) {
    case reference::Dtype::f32:
      return launch_for<float>(p, shape, stream, order);
    case reference::Dtype::f16:
      return launch_for<__half>(p, shape, stream, order);
    default:
      return launch_for<__nv_bfloat16>(p, shape, stream, order);
  }
}

}  // namespace loratory::gpu
