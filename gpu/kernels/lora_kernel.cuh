#pragma once

#include <algorithm>

#include "gpu/kernels/fragments.cuh"
#include "gpu/kernels/lora_params.hpp"

// One kernel for the whole delta of a packed linear layer: y += scaling · (x A^T) B^T.
//
// Work     A cluster of kCluster CTAs takes one unit: a segment of tokens of one slot, a slice, and
//          a part of the slice's columns. It streams A once for all tokens of the segment, adds up
//          h through distributed shared memory, and streams its columns of B. With few units
//          several clusters share a segment; each computes all of h again, since A comes from L2
//          then.
// Order    K is cut into 8 groups of 8 chunks; the length of a chunk follows from K alone. One warp
//          sums one chunk in steps of 16; chunks are added in order, then groups in order. That
//          order is the same for every cluster size, segment size and column part, so a row's bits
//          depend on x, the weights and the layer only.
// Loads    No load depends on a branch: rows and columns that do not exist read one that does, and
//          what they give is masked or never stored. A load behind a branch waits for the one
//          before.
// Memory   No atomics, no memset.

namespace loratory::gpu {

inline constexpr int kNumGroups = 8;
inline constexpr int kGroupWarps = 8;  // one chunk of a group each

enum class Stage { kLinear, kShrink, kExpand };

/// Columns of x that one warp sums: the same for every path.
__host__ __device__ inline int chunk_size(int num_in) {
  constexpr int kStep = kNumGroups * kGroupWarps * 32;
  return (num_in + kStep - 1) / kStep * 32;
}

__host__ __device__ inline int padded_rank(int rank) { return (rank + 31) / 32 * 32; }

/// Row stride of h in shared memory, in 16-bit numbers: odd multiples of 32 keep banks apart.
__host__ __device__ inline int h_stride(int max_rank) {
  const int padded = padded_rank(max_rank);
  return padded % 64 == 32 ? padded : padded + 32;
}

template <int kRankTiles, int kTokenTiles, int kCluster, Stage kStage>
struct Shape {
  static constexpr bool kShrinks = kStage != Stage::kExpand;
  static constexpr int kNumWarps = kGroupWarps;
  static constexpr int kNumThreads = 32 * kNumWarps;
  static constexpr int kGroupsEach = kNumGroups / kCluster;
  /// A warp sums its chunk of several groups at once if its registers hold them.
  static constexpr int kGroupsAtOnce = kCluster == 1 || kRankTiles * kTokenTiles > 4
                                           ? 1
                                           : std::min(kGroupsEach, kRankTiles == 1 ? 4 : 2);
  static constexpr int kRounds = kGroupsEach / kGroupsAtOnce;
  static constexpr int kBlockRank = 16 * kRankTiles;  // of h at a time
  static constexpr int kTokens = 8 * kTokenTiles;     // of a segment
  /// Of y, for one warp.
  static constexpr int kTileColumns = !kShrinks && kRankTiles < 4 && kTokenTiles <= 4 ? 64 : 32;
  static constexpr int kRowFloats = kBlockRank + 4;  // + 4 keeps banks apart
  static constexpr int kTileFloats = kTokens * kRowFloats;
  static constexpr int kNumBuffers = kCluster > 1 ? 2 : 1;
  /// Partial sums of the warps, what the groups send (twice, so that a fast CTA may be one block
  /// ahead), h in two parts, and the tokens.
  static constexpr int kReceiveFloats = kCluster > 1 ? kNumGroups* kTileFloats : kTileFloats;
  static constexpr int kSumFloats =
      kShrinks ? kGroupsAtOnce * kNumWarps * kTileFloats + kNumBuffers * kReceiveFloats : 0;
  static int shared_bytes(int max_rank) {
    return 4 * kSumFloats + 2 * 2 * kTokens * h_stride(max_rank) + 4 * kTokens + 2 * 8;
  }
};

// --- cluster and launch order ---------------------------------------------------------------

__device__ inline int cluster_rank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return int(rank);
}
/// The barriers of this CTA may be used once every CTA has arrived.
__device__ inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/// Sends four numbers to the same place of another CTA's shared memory; its barrier counts them.
__device__ inline void send(float* place, uint64_t* barrier, uint32_t cta, float4 v) {
#if __CUDA_ARCH__ >= 900
  const auto local = uint32_t(__cvta_generic_to_shared(place));
  const auto local_barrier = uint32_t(__cvta_generic_to_shared(barrier));
  uint32_t remote, remote_barrier;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(cta));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(remote_barrier)
               : "r"(local_barrier), "r"(cta));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::
          "r"(remote),
      "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)), "r"(__float_as_uint(v.z)),
      "r"(__float_as_uint(v.w)), "r"(remote_barrier)
      : "memory");
#endif
}
__device__ inline void init_barrier(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(uint32_t(__cvta_generic_to_shared(barrier)))
      : "memory");
#endif
}
__device__ inline void expect_bytes(uint64_t* barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   uint32_t(__cvta_generic_to_shared(barrier))),
               "r"(bytes)
               : "memory");
#endif
}
__device__ inline void wait_for_bytes(uint64_t* barrier, int parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nagain_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again_%=;\n}" ::"r"(uint32_t(__cvta_generic_to_shared(barrier))),
      "r"(parity)
      : "memory");
#endif
}
/// Waits for the kernel before this one in the stream, when it was launched early.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next one start. After the wait, so that weights and layout, which the next one reads
/// at once, are settled by whatever came before the previous kernel.
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void prefetch_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// --- one unit of work -----------------------------------------------------------------------

struct Unit {
  int slot, first_token, num_tokens;
  int slice;
  int rank;
  int first_tile, end_tile;  ///< of this CTA, in tiles of columns
  float scaling;
  const uint16_t* a;
  const uint16_t* b;
};

/// Out: the type of y, Weight or float.
template <typename Weight, typename Out, int kRankTiles, int kTokenTiles, int kCluster,
          bool kAligned, Stage kStage>
class LoraCta {
  using S = Shape<kRankTiles, kTokenTiles, kCluster, kStage>;
  static constexpr int kGroups = S::kGroupsAtOnce;
  static constexpr int kUnrollK = std::max(1, (kRankTiles >= 4 ? 2 : 4) / kGroups);
  static constexpr int kBlocksAhead = kRankTiles >= 4 ? 2 : 1;  // of 32 ranks, of B
  static constexpr bool kShrinks = kStage != Stage::kExpand;
  static constexpr bool kExpands = kStage != Stage::kShrink;
  static constexpr bool kWide = sizeof(Out) == 4;
  static constexpr bool kSends = kCluster > 1 && kShrinks;

 public:
  __device__ LoraCta(const LinearParams& params, std::byte* shared) : p(params) {
    partial_ = reinterpret_cast<float*>(shared);
    receive_ = partial_ + kGroups * S::kNumWarps * S::kTileFloats;
    h_ = reinterpret_cast<uint16_t*>(partial_ + S::kSumFloats);
    h_stride_ = h_stride(p.max_rank);
    tokens_ = reinterpret_cast<int*>(h_ + 2 * S::kTokens * h_stride_);
    barriers_ = reinterpret_cast<uint64_t*>(tokens_ + S::kTokens);
  }

  __device__ void run() {
    if constexpr (kSends) {
      if (threadIdx.x == 0) {
        init_barrier(barriers_);
        init_barrier(barriers_ + 1);
      }
      cluster_arrive();
    }
    const int num_segments = *p.num_segments;
    const int num_clusters = int(gridDim.x) / kCluster;
    const int num_pairs = max(1, num_segments * p.num_slices);
    int num_parts = 1;
    if (kStage == Stage::kLinear) num_parts = max(1, num_clusters / num_pairs);
    if (kStage == Stage::kExpand) num_parts = (2 * num_clusters + num_pairs - 1) / num_pairs;
    const int num_units = num_segments * p.num_slices * num_parts;
    for (int u = int(blockIdx.x) / kCluster; u < num_units; u += num_clusters) {
      const int pair = u / num_parts;
      const Unit unit = find(pair / p.num_slices, pair % p.num_slices, u % num_parts, num_parts);
      if (unit.rank == 0 || unit.first_tile < 0) continue;  // the whole cluster alike
      run(unit);
    }
    wait_once();
    if constexpr (kSends) begin_sending();  // nobody leaves before all have come
  }

 private:
  static constexpr int kEach = S::kTileColumns / 8;  // columns of one thread
  using Bits = std::conditional_t<kWide, uint32_t, uint16_t>;
  using OutRow = OutBits<Bits, kEach>;
  using Tile = Row<8>[kBlocksAhead][kEach];
  using Base = OutRow[kTokenTiles][2];

  const LinearParams& p;
  float* partial_;      // [warp][token][rank of a block]
  float* receive_;      // [buffer][group][token][rank of a block]
  uint16_t* h_;         // [hi, lo][token][rank]
  int* tokens_;         // [token] row of x and y
  uint64_t* barriers_;  // [buffer] of receive_
  int h_stride_;
  int block_ = 0;  // of ranks, over all units: which buffer and phase
  bool waited_ = false;
  bool may_send_ = false;

  const int warp_ = int(threadIdx.x) / 32;
  const int row_ = int(threadIdx.x) % 32 / 4;  // of a fragment: weight row, or token
  const int quad_ = int(threadIdx.x) % 32 % 4;

  __device__ void wait_once() {
    if (waited_) return;
    waited_ = true;
    wait_for_previous_kernel();
    let_next_kernel_start();
  }

  __device__ void begin_sending() {
    if (!may_send_) cluster_wait();
    may_send_ = true;
  }
  __device__ int buffer() const { return kSends ? block_ % 2 : 0; }

  __device__ Unit find(int segment, int slice, int part, int num_parts) const {
    Unit u;
    const int4 raw = __ldg(reinterpret_cast<const int4*>(p.segments + segment));
    u.slot = raw.x, u.first_token = raw.y, u.num_tokens = raw.z;
    u.slice = slice;
    const SliceParams& s = p.slices[slice];
    u.rank = __ldg(s.ranks + u.slot);
    u.scaling = __ldg(s.scalings + u.slot);
    u.a = s.a + int64_t(u.slot) * s.a_slot_stride;
    u.b = s.b + int64_t(u.slot) * s.b_slot_stride;
    if constexpr (kExpands) {
      const int num_tiles = (s.num_out + S::kTileColumns - 1) / S::kTileColumns;
      const int num_ctas = num_parts * kCluster;
      int tiles_each = (num_tiles + num_ctas - 1) / num_ctas;
      if (kStage == Stage::kExpand) tiles_each = max(tiles_each, S::kNumWarps);
      const int first_of_cluster = part * kCluster * tiles_each;
      u.first_tile = min(num_tiles, first_of_cluster + cluster_rank() * tiles_each);
      u.end_tile = min(num_tiles, u.first_tile + tiles_each);
      if (first_of_cluster >= num_tiles) u.first_tile = -1;
    } else {
      u.first_tile = u.end_tile = 0;
    }
    return u;
  }

  __device__ void run(const Unit& unit) {
    __syncthreads();                      // the unit before has been read
    if (int(threadIdx.x) < S::kTokens) {  // tokens that do not exist: the last one again
      const int i = min(int(threadIdx.x), unit.num_tokens - 1);
      tokens_[threadIdx.x] = __ldg(p.token_indices + unit.first_token + i);
    }
    Tile tile;  // of B, and the base of y: loaded ahead of their use
    Base base;
    if constexpr (kStage == Stage::kLinear) prefetch_b(unit);
    if constexpr (kStage == Stage::kExpand) load_tile(unit, tile_of(unit, 0), 0, tile);
    __syncthreads();
    for (int first = 0; first < unit.rank; first += S::kBlockRank) {
      const bool last = first + S::kBlockRank >= unit.rank;
      if constexpr (kShrinks) shrink_block(unit, first, last, tile, base);
      if constexpr (kStage == Stage::kExpand) load_h(unit, first);
    }
    if constexpr (kStage == Stage::kExpand) load_base(unit, tile_of(unit, 0), base);
    if constexpr (kExpands) {
      __syncthreads();
      expand(unit, tile, base);
    }
  }

  // --- shrink -------------------------------------------------------------------------------

  __device__ void shrink_block(const Unit& unit, int first_rank, bool last, Tile& tile,
                               Base& base) {
    if constexpr (kSends) {
      if (threadIdx.x == 0) expect_bytes(barriers_ + buffer(), expected_bytes(unit));
    }
#pragma unroll 1
    for (int i = 0; i < S::kRounds; ++i) {
      const int first_group = cluster_rank() * S::kGroupsEach + i * kGroups;
      float acc[kGroups][kRankTiles][kTokenTiles][4] = {};
      sum_chunks(unit, first_rank, first_group, acc);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) store_partial(unit, g, acc[g]);
      __syncthreads();
      if constexpr (kSends) begin_sending();
      add_chunks(unit, first_group);
      if (i + 1 < S::kRounds) __syncthreads();
    }
    if constexpr (kExpands) {
      if (last) {
        load_tile(unit, tile_of(unit, 0), 0, tile);
        load_base(unit, tile_of(unit, 0), base);
      }
    }
    if constexpr (kSends) wait_for_bytes(barriers_ + buffer(), block_ / 2 % 2);
    finish_h(unit, first_rank);
    ++block_;
    if constexpr (!kSends) __syncthreads();
  }

  /// What the CTAs of the cluster send to this one for a block.
  __device__ int expected_bytes(const Unit& unit) const {
    int num_tokens = unit.num_tokens;
    if (!kExpands) num_tokens = (num_tokens - cluster_rank() + kCluster - 1) / kCluster;
    return kNumGroups * num_tokens * S::kBlockRank * 4;
  }

  /// The products of one warp: its chunk of each group, in steps of 16 columns of x.
  __device__ void sum_chunks(const Unit& unit, int first_rank, int first_group,
                             float (&acc)[kGroups][kRankTiles][kTokenTiles][4]) {
    const int size = chunk_size(p.num_in);
    const int begin = (first_group * kGroupWarps + warp_) * size;
    const uint16_t* rows[kTokenTiles];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      rows[n] = p.x + int64_t(tokens_[8 * n + row_]) * p.x_row_stride;
    }
#pragma unroll 1
    for (int k = 0; k < size; k += 32 * kUnrollK) {
      Row<8> w[kGroups][kUnrollK][kRankTiles][2];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int u = 0; u < kUnrollK; ++u) {
          if (k + 32 * u >= size) continue;
          load_a(unit, first_rank, begin + g * kGroupWarps * size + k + 32 * u + 8 * quad_,
                 w[g][u]);
        }
      }
      wait_once();
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int u = 0; u < kUnrollK; ++u) {
          if (k + 32 * u >= size) continue;
          Row<8> x[kTokenTiles];
          load_x(rows, begin + g * kGroupWarps * size + k + 32 * u + 8 * quad_, x);
          multiply_a(unit, w[g][u], x, acc[g]);
        }
      }
    }
  }

  __device__ void multiply_a(const Unit& unit, const Row<8> (&w)[kRankTiles][2],
                             const Row<8> (&x)[kTokenTiles],
                             float (&acc)[kRankTiles][kTokenTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      if (8 * n >= unit.num_tokens) continue;
#pragma unroll
      for (int i = 0; i < kRankTiles; ++i) {
        const auto& w0 = w[i][0].pair;
        const auto& w1 = w[i][1].pair;
        mma<Weight>(acc[i][n], w0[0], w1[0], w0[1], w1[1], x[n].pair[0], x[n].pair[1]);
        mma<Weight>(acc[i][n], w0[2], w1[2], w0[3], w1[3], x[n].pair[2], x[n].pair[3]);
      }
    }
  }

  /// Rows beyond the rank read the last one; h of them is never used.
  __device__ void load_a(const Unit& unit, int first_rank, int column,
                         Row<8> (&w)[kRankTiles][2]) const {
    const int64_t stride = p.slices[unit.slice].a_row_stride;
    const int inside = min(column, p.num_in - (kAligned ? 8 : 1));
#pragma unroll
    for (int i = 0; i < kRankTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = min(first_rank + 16 * i + 8 * half + row_, unit.rank - 1);
        w[i][half] = load_row<8, kAligned, true>(unit.a + row * stride + inside, p.num_in - inside);
        if (column + 8 > p.num_in) keep_first(w[i][half], p.num_in - column);
      }
    }
  }

  __device__ void load_x(const uint16_t* const (&rows)[kTokenTiles], int column,
                         Row<8> (&x)[kTokenTiles]) const {
    const int inside = min(column, p.num_in - (kAligned ? 8 : 1));
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      x[n] = load_row<8, kAligned, false>(rows[n] + inside, p.num_in - inside);
      if (column + 8 > p.num_in) keep_first(x[n], p.num_in - column);
    }
  }

  __device__ void store_partial(const Unit& unit, int group,
                                const float (&acc)[kRankTiles][kTokenTiles][4]) {
    float* tile = partial_ + (group * kGroupWarps + warp_) * S::kTileFloats;
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      if (8 * n >= unit.num_tokens) continue;
      float* token = tile + (8 * n + 2 * quad_) * S::kRowFloats + row_;
#pragma unroll
      for (int i = 0; i < kRankTiles; ++i) {
        token[16 * i] = acc[i][n][0];
        token[16 * i + S::kRowFloats] = acc[i][n][1];
        token[16 * i + 8] = acc[i][n][2];
        token[16 * i + 8 + S::kRowFloats] = acc[i][n][3];
      }
    }
  }

  /// Adds the chunks of each group, four sums a thread, and hands them to every CTA of the cluster.
  __device__ void add_chunks(const Unit& unit, int first_group) {
    constexpr int kQuads = S::kBlockRank / 4;
    const int quads = unit.num_tokens * kQuads;
    for (int i = int(threadIdx.x); i < kGroups * quads; i += S::kNumThreads) {
      const int group = i / quads;
      const int e = i % quads;
      const int place = e / kQuads * S::kRowFloats + e % kQuads * 4;
      const float* from = partial_ + group * kGroupWarps * S::kTileFloats + place;
      float4 sum = *reinterpret_cast<const float4*>(from);
#pragma unroll
      for (int w = 1; w < kGroupWarps; ++w) {
        add(sum, *reinterpret_cast<const float4*>(from + w * S::kTileFloats));
      }
      if constexpr (kCluster > 1) {
        float* to = receive_ + buffer() * S::kReceiveFloats +
                    (first_group + group) * S::kTileFloats + place;
        if constexpr (kExpands) {
#pragma unroll
          for (int cta = 0; cta < kCluster; ++cta) {
            send(to, barriers_ + buffer(), uint32_t(cta), sum);
          }
        } else {
          send(to, barriers_ + buffer(), uint32_t(owner_of(e / kQuads)), sum);
        }
      } else {  // groups come in order: the running sum stays with its thread
        auto* to = reinterpret_cast<float4*>(receive_ + place);
        if (first_group > 0) {
          float4 total = *to;
          add(total, sum);
          sum = total;
        }
        *to = sum;
      }
    }
  }

  /// Shrink alone: the CTA that writes a token's h.
  __device__ static int owner_of(int token) { return token % kCluster; }

  __device__ static void add(float4& sum, float4 v) {
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }

  /// h of the block: into shared memory for the expand, or to global memory.
  __device__ void finish_h(const Unit& unit, int first_rank) {
    constexpr int kQuads = S::kBlockRank / 4;
    const float* from = receive_ + buffer() * S::kReceiveFloats;
    for (int e = int(threadIdx.x); e < unit.num_tokens * kQuads; e += S::kNumThreads) {
      const int token = e / kQuads;
      const int j = e % kQuads * 4;
      if (first_rank + j >= padded_rank(unit.rank)) continue;
      if (!kExpands && owner_of(token) != cluster_rank()) continue;
      const float* place = from + token * S::kRowFloats + j;
      float4 sum = *reinterpret_cast<const float4*>(place);
      if constexpr (kCluster > 1) {
#pragma unroll
        for (int g = 1; g < kNumGroups; ++g) {
          add(sum, *reinterpret_cast<const float4*>(place + g * S::kTileFloats));
        }
      }
      if constexpr (kExpands)
        keep_h(unit, token, first_rank + j, sum);
      else
        write_h(unit, token, first_rank + j, sum);
    }
  }

  /// As hi + lo; 0 beyond the rank.
  __device__ void keep_h(const Unit& unit, int token, int j, float4 v) {
    const float values[4] = {v.x, v.y, v.z, v.w};
    uint16_t hi[4], lo[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = j + i < unit.rank ? values[i] : 0.0F;
      hi[i] = to_bits<Weight>(value);
      lo[i] = to_bits<Weight>(value - to_float<Weight>(hi[i]));
    }
    uint16_t* place = h_ + token * h_stride_ + j;
    *reinterpret_cast<uint2*>(place) = pack(hi);
    *reinterpret_cast<uint2*>(place + S::kTokens * h_stride_) = pack(lo);
    if (S::kBlockRank % 32 != 0 && j / 16 == (unit.rank - 1) / 16 && j % 32 < 16) {
      *reinterpret_cast<uint2*>(place + 16) = make_uint2(0, 0);
      *reinterpret_cast<uint2*>(place + 16 + S::kTokens * h_stride_) = make_uint2(0, 0);
    }
  }
  __device__ static uint2 pack(const uint16_t (&v)[4]) {
    return make_uint2(v[0] | uint32_t(v[1]) << 16, v[2] | uint32_t(v[3]) << 16);
  }

  __device__ void write_h(const Unit& unit, int token, int j, float4 v) {
    const float values[4] = {v.x, v.y, v.z, v.w};
    float* h = p.h + unit.slice * p.h_slice_stride + int64_t(tokens_[token]) * p.h_row_stride + j;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (j + i < unit.rank) h[i] = values[i];
    }
  }

  /// Expand alone: h of the block from global memory.
  __device__ void load_h(const Unit& unit, int first_rank) {
    wait_once();
    constexpr int kQuads = S::kBlockRank / 4;
    for (int e = int(threadIdx.x); e < unit.num_tokens * kQuads; e += S::kNumThreads) {
      const int token = e / kQuads;
      const int j = first_rank + e % kQuads * 4;
      if (j >= padded_rank(unit.rank)) continue;
      const float* h =
          p.h + unit.slice * p.h_slice_stride + int64_t(tokens_[token]) * p.h_row_stride;
      float v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = h[min(j + i, unit.rank - 1)];
      keep_h(unit, token, j, make_float4(v[0], v[1], v[2], v[3]));
    }
  }

  // --- expand -------------------------------------------------------------------------------
  //
  // A warp makes kTileColumns columns at once. Fragment rows g and g + 8 of m16 tile m stand for
  // columns kEach·g + 2m and + 2m + 1, so that a thread holds kEach neighbouring columns of a
  // token: one access of y.

  __device__ int tile_of(const Unit& unit, int i) const {
    return unit.first_tile + warp_ + i * S::kNumWarps;
  }

  /// Brings this warp's rows of B near while A streams.
  __device__ void prefetch_b(const Unit& unit) {
    const SliceParams& s = p.slices[unit.slice];
    const int lane = int(threadIdx.x) % 32;
    for (int tile = tile_of(unit, 0); tile < unit.end_tile; tile += S::kNumWarps) {
#pragma unroll
      for (int i = 0; i < S::kTileColumns / 16; ++i) {
        const int column = min(tile * S::kTileColumns + 16 * i + lane / 2, s.num_out - 1);
        const uint16_t* row = unit.b + column * s.b_row_stride;
        for (int j = lane % 2 * 64; j < unit.rank; j += 128) prefetch_l2(row + j);
      }
    }
  }

  /// First of the kEach columns of this thread. If they do not all exist it reads the last ones.
  __device__ int column_of(const Unit& unit, int tile) const {
    const int num_out = p.slices[unit.slice].num_out;
    const int column = tile * S::kTileColumns + kEach * row_;
    return min(column, num_out - (kAligned ? kEach : 1));
  }

  /// Rows of B of this thread, from first_rank on; what lies beyond the rank is 0.
  __device__ void load_tile(const Unit& unit, int tile, int first_rank, Tile& w) const {
    const SliceParams& s = p.slices[unit.slice];
    const int column = column_of(unit, tile);
#pragma unroll
    for (int block = 0; block < kBlocksAhead; ++block) {
      const int first = first_rank + 32 * block;
      const int j = first + 8 * quad_;
      const int inside = j < unit.rank ? j : 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int row = kAligned ? column + i : min(column + i, s.num_out - 1);
        w[block][i] =
            load_row<8, kAligned, true>(unit.b + row * s.b_row_stride + inside, unit.rank - inside);
      }
      if (first + 32 > unit.rank) {
        const Row<8> mask = mask_first<8>(unit.rank - j);
#pragma unroll
        for (int i = 0; i < kEach; ++i) apply(mask, w[block][i]);
      }
    }
  }

  __device__ int64_t place_of(const Unit& unit, int token, int column) const {
    return int64_t(tokens_[token]) * p.y_row_stride + p.slices[unit.slice].offset + column;
  }

  __device__ void load_base(const Unit& unit, int tile, Base& base) const {
    if (!p.add_inputs) return;
    const int column = column_of(unit, tile);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t place = place_of(unit, 8 * n + 2 * quad_ + half, column);
        const int valid = p.slices[unit.slice].num_out - column;
        base[n][half] = load_out(static_cast<const Bits*>(p.y) + place, valid);
      }
    }
  }

  __device__ static OutRow load_out(const Bits* y, int valid) {
    OutRow row;
    if constexpr (kAligned) {
#pragma unroll
      for (int i = 0; i < OutRow::kVectors; ++i) {
        row.vector[i] = reinterpret_cast<const typename OutRow::Vector*>(y)[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) row.set(i, y[min(i, valid - 1)]);
    }
    return row;
  }

  __device__ void expand(const Unit& unit, Tile& first, Base& base) {
    // Two sets of registers in turn: copying one to the other would wait for its loads.
    Tile second;
    int tile = tile_of(unit, 0), j = 0;
    float acc[kEach / 2][kTokenTiles][4] = {};
#pragma unroll 1
    while (tile < unit.end_tile) {
      step(unit, tile, j, first, second, acc, base);
      if (tile >= unit.end_tile) break;
      step(unit, tile, j, second, first, acc, base);
    }
  }

  /// Multiplies `now`, the ranks from j on, while `next` loads; stores the tile after its last.
  __device__ void step(const Unit& unit, int& tile, int& j, const Tile& now, Tile& next,
                       float (&acc)[kEach / 2][kTokenTiles][4], Base& base) const {
    constexpr int kStep = 32 * kBlocksAhead;
    const bool last = j + kStep >= unit.rank;
    const int next_tile = last ? tile + S::kNumWarps : tile;
    const int next_j = last ? 0 : j + kStep;
    if (next_tile < unit.end_tile) load_tile(unit, next_tile, next_j, next);
#pragma unroll
    for (int block = 0; block < kBlocksAhead; ++block) {
      if (j + 32 * block < unit.rank) multiply_b(unit, j + 32 * block, now[block], acc);
    }
    if (last) {
      if (p.add_inputs && !p.two_round)
        store_tile<true>(unit, tile, acc, base);
      else
        store_tile<false>(unit, tile, acc, base);
      if (next_tile < unit.end_tile) load_base(unit, next_tile, base);
      clear(acc);
    }
    tile = next_tile;
    j = next_j;
  }

  __device__ static void clear(float (&acc)[kEach / 2][kTokenTiles][4]) {
#pragma unroll
    for (auto& column : acc) {
#pragma unroll
      for (auto& tokens : column) {
#pragma unroll
        for (float& v : tokens) v = 0;
      }
    }
  }

  __device__ void multiply_b(const Unit& unit, int first_rank, const Row<8> (&w)[kEach],
                             float (&acc)[kEach / 2][kTokenTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      if (8 * n >= unit.num_tokens) continue;
      const uint16_t* h = h_ + (8 * n + row_) * h_stride_ + first_rank + 8 * quad_;
      const uint4 hi = *reinterpret_cast<const uint4*>(h);
      const uint4 lo = *reinterpret_cast<const uint4*>(h + S::kTokens * h_stride_);
#pragma unroll
      for (int m = 0; m < kEach / 2; ++m) {
        const auto& w0 = w[2 * m].pair;
        const auto& w1 = w[2 * m + 1].pair;
        mma<Weight>(acc[m][n], w0[0], w1[0], w0[1], w1[1], hi.x, hi.y);
        mma<Weight>(acc[m][n], w0[2], w1[2], w0[3], w1[3], hi.z, hi.w);
        if (!p.split_h) continue;
        mma<Weight>(acc[m][n], w0[0], w1[0], w0[1], w1[1], lo.x, lo.y);
        mma<Weight>(acc[m][n], w0[2], w1[2], w0[3], w1[3], lo.z, lo.w);
      }
    }
  }

  /// kFast: y = round(base + scaling · sum), one rounding.
  template <bool kFast>
  __device__ void store_tile(const Unit& unit, int tile,
                             const float (&acc)[kEach / 2][kTokenTiles][4],
                             const Base& base) const {
    const int column = tile * S::kTileColumns + kEach * row_;
    const int valid = p.slices[unit.slice].num_out - column;
    if (valid <= 0) return;
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = 8 * n + 2 * quad_ + half;
        if (token >= unit.num_tokens) continue;
        OutRow out;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const float d = acc[i / 2][n][2 * (i % 2) + half];
          out.set(i, result<kFast>(base[n][half].get(i), unit.scaling, d));
        }
        store_out(static_cast<Bits*>(p.y) + place_of(unit, token, column), valid, out);
      }
    }
  }

  __device__ static void store_out(Bits* y, int valid, const OutRow& row) {
    if constexpr (kAligned) {
#pragma unroll
      for (int i = 0; i < OutRow::kVectors; ++i) {
        reinterpret_cast<typename OutRow::Vector*>(y)[i] = row.vector[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (i < valid) y[i] = row.get(i);
      }
    }
  }

  /// Bits of y. Otherwise as NumericMode says: delta alone, or rounded to y's type before the sum.
  template <bool kFast>
  __device__ Bits result(Bits base, float scaling, float d) const {
    if (kFast) return bits(__fmaf_rn(scaling, d, value(base)));
    if (!p.add_inputs) return bits(__fmul_rn(scaling, d));
    if (!p.two_round) return bits(__fmaf_rn(scaling, d, value(base)));
    return bits(__fadd_rn(value(base), value(bits(__fmul_rn(scaling, d)))));
  }
  __device__ static float value(Bits b) {
    if constexpr (kWide)
      return __uint_as_float(b);
    else
      return to_float<Out>(b);
  }
  __device__ static Bits bits(float v) {
    if constexpr (kWide)
      return __float_as_uint(v);
    else
      return to_bits<Out>(v);
  }
};

template <typename Weight, typename Out, int kRankTiles, int kTokenTiles, int kCluster,
          bool kAligned, Stage kStage>
__global__ void __launch_bounds__(Shape<kRankTiles, kTokenTiles, kCluster, kStage>::kNumThreads)
    lora_kernel(const __grid_constant__ LinearParams params) {
  extern __shared__ __align__(16) std::byte shared[];
  LoraCta<Weight, Out, kRankTiles, kTokenTiles, kCluster, kAligned, kStage>(params, shared).run();
}

}  // namespace loratory::gpu
