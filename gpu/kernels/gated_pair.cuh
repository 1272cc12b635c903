#pragma once

#include "gpu/kernels/kernel_context.cuh"
#include "gpu/model/eight.cuh"
#include "gpu/model/swish.cuh"

// What makes an expand a gated one. Half of the warps or warpgroups compute columns of gate, the
// others the same columns of up, so that as much of B is in flight before the wait for h as in a
// plain expand, and none has more sums. Two of them that have the same columns are a pair. Each
// rounds its y into the base buffers that the old y came in, waits for the other, and computes the
// activation of half of the columns or tokens.

namespace loratory::gpu {

/// The rows of a gated expand: the segments of a step and, behind them, the rows that no segment
/// covers, in runs of the same size. Builders sort those rows to the front.
template <typename C>
struct GatedSegments {
  uint32_t num_segments;

  __device__ explicit GatedSegments(const KernelParams& p)
      : num_segments(uint32_t(__ldg(p.num_segments))) {}

  __device__ static int size(const KernelParams& p) { return p.parts_per_segment * C::kTokens; }
  /// The first segment is read ahead where it has memory in any case.
  __device__ int num_uncovered(const KernelParams& p) const {
    const bool may_read = p.max_segments > 0 || num_segments > 0;
    const int first = may_read ? __ldg(&p.segments->first) : 0;
    return num_segments > 0 ? first : p.num_rows;
  }
  __device__ uint32_t count(const KernelParams& p) const {
    const uint32_t parts = uint32_t(num_uncovered(p) + C::kTokens - 1) / C::kTokens;
    return num_segments + quotient(parts + uint32_t(p.parts_per_segment) - 1, p.parts_per_segment);
  }
  /// As a Segment is loaded. Slot -1: no adapter.
  __device__ int4 at(const KernelParams& p, uint32_t i) const {
    if (i < num_segments) return __ldg(reinterpret_cast<const int4*>(p.segments + i));
    const int first = int(i - num_segments) * size(p);
    return {-1, first, min(size(p), num_uncovered(p) - first), 0};
  }
};

template <typename C>
class GatedPair {
 public:
  __device__ explicit GatedPair(const Context<C>& context) : c(context) {}

  /// Both have written what they give to the other, or have read it. Barriers below kFirstBarrier
  /// are those of warpgroups.
  __device__ void sync() const {
    constexpr int kFirstBarrier = 3;
    const int pair = c.warp / C::kPipelineWarps % C::kTileStep;
    sync_some(kFirstBarrier + pair, 2 * 32 * C::kPipelineWarps);
  }

  /// Of eight columns of a token. `mine`: where this warp keeps its y of them.
  __device__ uint4 activation(const uint4* mine) const {
    constexpr int kToOther = C::kTileStep * C::kBPipelineBytes / int(sizeof(uint4));
    const uint4* const of_gate = mine - c.half() * kToOther;
    const Eight gate = unpacked<Out>(of_gate[0]);
    Eight up = unpacked<Out>(of_gate[kToOther]);
#pragma unroll
    for (int i = 0; i < 8; ++i) up.v[i] = silu_mul(gate.v[i], up.v[i]);
    uint4 out;
    store_vectors(reinterpret_cast<Out*>(&out), up);
    return out;
  }
  __device__ void store(bool exists, const uint4& eight, int token, int column) const {
    Out* const row =
        static_cast<Out*>(c.p.activation) + c.rows()[token] * c.p.activation_row_stride;
    if (exists) *reinterpret_cast<uint4*>(row + column) = eight;
  }

 private:
  using Out = typename C::Out;
  const Context<C> c;
};

}  // namespace loratory::gpu
