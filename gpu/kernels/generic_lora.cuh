#pragma once

#include "gpu/kernels/fragments.cuh"
#include "gpu/kernels/work_tile.cuh"
#include "gpu/plan/lora_launch.hpp"

// A CTA takes one work tile: a segment, a slice, and some of the ranks (shrink) or of the columns.
// It processes the segment's tokens four at a time. In a shrink a thread owns one sum of h; A and x
// come in K tiles through shared memory. In an expand a thread owns one column of the four tokens.
// So every sum has one owner, which adds its terms in the order of their index.

namespace loratory::gpu::generic {

using reference::Dtype;
using reference::IntermediateMode;
using reference::NumericMode;
using reference::ScaleMode;
using reference::SumMode;

constexpr int kTokens = 4;  // at a time
constexpr int kRanks = 64;  // at a time
constexpr int kNumThreads = kTokens * kRanks;
constexpr int kDepth = 64;  // columns of a K tile
constexpr int kMaxRank = 512;
constexpr int kCtasPerSm = 3;  // the occupancy that shared memory and registers allow

struct Params {
  KernelParams p;
  LoraDtypes dtypes;
  NumericMode mode;
};

struct Shared {
  float a[kRanks][kDepth + 1];  // + 1 avoids bank conflicts
  float x[kTokens][kDepth];
  float terms[kTokens][2 * kMaxRank];  // h as it meets B: [r], or hi [r] and lo [r]
};

__device__ inline float load(Dtype dtype, const void* data, int64_t i) {
  if (dtype == Dtype::f32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return dtype == Dtype::bf16 ? to_float<__nv_bfloat16>(bits) : to_float<__half>(bits);
}

__device__ inline void store(Dtype dtype, void* data, int64_t i, float v) {
  if (dtype == Dtype::f32) {
    static_cast<float*>(data)[i] = v;
  } else {
    static_cast<uint16_t*>(data)[i] =
        dtype == Dtype::bf16 ? to_bits<__nv_bfloat16>(v) : to_bits<__half>(v);
  }
}

__device__ inline float round_to(Dtype dtype, float v) {
  if (dtype == Dtype::bf16) return __bfloat162float(__float2bfloat16_rn(v));
  return dtype == Dtype::f16 ? __half2float(__float2half_rn(v)) : v;
}

/// scaling · b in the weights' dtype: the product is exact in double and rounded once.
__device__ inline float fold(Dtype weight, float scaling, float b) {
  const double exact = double(scaling) * double(b);
  if (weight == Dtype::f32) return __double2float_rn(exact);
  return weight == Dtype::bf16 ? __bfloat162float(__double2bfloat16(exact))
                               : __half2float(__double2half(exact));
}

/// The weights that a work tile uses.
struct Adapter {
  int slot, slice, rank;
};

/// Up to four tokens of a segment.
struct Tokens {
  const int32_t* indices;
  int count;
};

template <LoraOp kOp>
class Cta {
  static constexpr bool kExpands = kOp != LoraOp::shrink;

 public:
  __device__ Cta(const Params& params, Shared& shared)
      : p(params.p), dtypes(params.dtypes), mode(params.mode), s(shared) {}

  __device__ void run() {
    const int64_t num_pairs = int64_t(*p.num_segments) * p.num_slices;
    const int num_parts = parts(num_pairs);
    for (int64_t u = blockIdx.x; u < num_pairs * num_parts; u += gridDim.x) {
      const int64_t pair = u / num_parts;
      run(p.segments[pair / p.num_slices], int(pair % p.num_slices), int(u % num_parts), num_parts);
    }
  }

 private:
  const KernelParams& p;
  const LoraDtypes& dtypes;
  const NumericMode& mode;
  Shared& s;

  /// A shrink is cut into rank blocks. Otherwise the columns are cut into as many parts as there
  /// are CTAs for; each part of a linear computes h for itself.
  __device__ int parts(int64_t num_pairs) const {
    if (!kExpands) return (p.max_rank + kRanks - 1) / kRanks;
    return int(max(int64_t(1), gridDim.x / max(int64_t(1), num_pairs)));
  }

  __device__ void run(const Segment segment, int slice, int part, int num_parts) {
    const SliceParams& sp = p.slices[slice];
    const Adapter of{segment.slot, slice, sp.ranks[segment.slot]};
    int first = 0, end = 0;  // columns
    if constexpr (kExpands) {
      const int64_t num_out = sp.num_out;
      const int64_t size = max(int64_t(kNumThreads), (num_out + num_parts - 1) / num_parts);
      first = int(min(num_out, part * size));
      end = int(min(num_out, first + size));
      if (first == end) return;
    }
    if (of.rank == 0) return;
    for (int i = 0; i < segment.num_tokens; i += kTokens) {
      const Tokens tokens{p.token_indices + segment.first + i,
                          min(kTokens, segment.num_tokens - i)};
      if constexpr (kOp == LoraOp::shrink) {
        shrink_block(of, part * kRanks, tokens);
      } else {
        make_terms(of, tokens);
        expand(of, first, end, tokens);
      }
    }
  }

  // --- shrink ---------------------------------------------------------------------------------

  /// Ranks [first, first + kRanks): a shrink writes them to h, a linear to the terms.
  __device__ void shrink_block(const Adapter& of, int first, const Tokens& tokens) {
    if (first >= of.rank) return;
    const int token = int(threadIdx.x) / kRanks, j = int(threadIdx.x) % kRanks;
    const int num_ranks = min(kRanks, of.rank - first);
    float sum = 0;
    for (int k = 0; k < p.num_in; k += kDepth) {
      const int depth = min(kDepth, p.num_in - k);
      load_tiles(of, first, num_ranks, k, depth, tokens);
      if (token < tokens.count && j < num_ranks) {
        for (int c = 0; c < depth; ++c) sum = __fadd_rn(sum, __fmul_rn(s.a[j][c], s.x[token][c]));
      }
      __syncthreads();
    }
    if (token >= tokens.count || j >= num_ranks) return;
    if constexpr (kOp == LoraOp::shrink) {
      store(dtypes.h, p.h, h_index(of.slice, tokens.indices[token]) + first + j, sum);
    } else {
      s.terms[token][first + j] = sum;
    }
  }

  __device__ void load_tiles(const Adapter& of, int first, int num_ranks, int k, int depth,
                             const Tokens& tokens) {
    const SliceParams& sp = p.slices[of.slice];
    const int c = int(threadIdx.x) % kDepth;
    if (c < depth) {
      const int64_t row = int64_t(sp.a_rank_steps) * of.rank + first;
      const int64_t a = weights_offset(p, of.slot, sp.a_slot_stride, sp.a_expert_stride) +
                        row * sp.a_row_stride + k + c;
      for (int j = int(threadIdx.x) / kDepth; j < num_ranks; j += kNumThreads / kDepth) {
        s.a[j][c] = load(dtypes.weight, sp.a, a + j * sp.a_row_stride);
      }
      const int token = int(threadIdx.x) / kDepth;
      if (token < tokens.count) {
        const int64_t x_row = quotient(uint32_t(tokens.indices[token]), p.rows_per_x);
        s.x[token][c] = load(dtypes.x, p.x, x_row * p.x_row_stride + k + c);
      }
    }
    __syncthreads();
  }

  __device__ int64_t h_index(int slice, int token) const {
    return slice * p.h_slice_stride + token * p.h_row_stride;
  }

  // --- expand ---------------------------------------------------------------------------------

  /// h of the tokens, rounded as the mode says.
  __device__ void make_terms(const Adapter& of, const Tokens& tokens) {
    __syncthreads();  // the last terms have been read
    if constexpr (kOp == LoraOp::linear) {
      for (int first = 0; first < of.rank; first += kRanks) {
        shrink_block(of, first, tokens);
      }
      __syncthreads();
    }
    for (int i = int(threadIdx.x); i < tokens.count * of.rank; i += kNumThreads) {
      const int token = i / of.rank, j = i % of.rank;
      float h;
      if constexpr (kOp == LoraOp::linear) {
        h = s.terms[token][j];
        if (mode.h == IntermediateMode::store_as_x) h = round_to(dtypes.x, h);
      } else {
        h = load(dtypes.h, p.h, h_index(of.slice, tokens.indices[token]) + j);
      }
      const bool rounds =
          mode.h == IntermediateMode::cast_to_weight || mode.h == IntermediateMode::split2;
      const float hi = rounds ? round_to(dtypes.weight, h) : h;
      s.terms[token][j] = hi;
      if (mode.h == IntermediateMode::split2) {
        s.terms[token][of.rank + j] = round_to(dtypes.weight, __fsub_rn(h, hi));
      }
    }
    __syncthreads();
  }

  __device__ void expand(const Adapter& of, int first, int end, const Tokens& tokens) const {
    const SliceParams& sp = p.slices[of.slice];
    const float scaling = sp.scalings[of.slot];
    const bool folds = mode.scale == ScaleMode::folded_b;
    for (int n = first + int(threadIdx.x); n < end; n += kNumThreads) {
      const int64_t b =
          weights_offset(p, of.slot, sp.b_slot_stride, sp.b_expert_stride) + n * sp.b_row_stride;
      float sums[kTokens] = {};
      for (int part = 0; part < (mode.h == IntermediateMode::split2 ? 2 : 1); ++part) {
        for (int j = 0; j < of.rank; ++j) {
          float b_j = load(dtypes.weight, sp.b, b + j);
          if (folds) b_j = fold(dtypes.weight, scaling, b_j);
#pragma unroll
          for (int t = 0; t < kTokens; ++t) {  // sums beyond tokens.count are not used
            sums[t] = __fadd_rn(sums[t], __fmul_rn(b_j, s.terms[t][part * of.rank + j]));
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (t >= tokens.count) continue;
        const int row = tokens.indices[t];
        float d = folds ? sums[t] : __fmul_rn(sums[t], scaling);
        if (p.router_weights != nullptr) d = __fmul_rn(p.router_weights[row], d);
        finish(row * p.y_row_stride + sp.offset + n, d);
      }
    }
  }

  /// How delta meets base.
  __device__ void finish(int64_t place, float d) const {
    if (mode.sum == SumMode::two_round) {
      d = round_to(mode.h == IntermediateMode::cast_to_weight ? dtypes.weight : dtypes.y, d);
    }
    if (p.add_inputs) d = __fadd_rn(load(dtypes.y, p.y, place), d);
    store(dtypes.y, p.y, place, d);
  }
};

}  // namespace loratory::gpu::generic
