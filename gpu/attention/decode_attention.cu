// Attention of rows with one token. A work item is a piece of a row's context and one kv head. Each
// CTA takes an equal, contiguous share of all items and streams their keys and values through
// shared memory without a pause. The CTA that delivers the last piece of a row and head merges all
// of them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/attention/attention_params.hpp"
#include "gpu/attention/row_softmax.cuh"
#include "gpu/kernels/fragments.cuh"
#include "gpu/kernels/ptx.cuh"
#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTiles = kPieceKeys / kAttentionTileKeys;
constexpr int kWarpKeys = kPieceKeys / kWarps;  // half a tile: a warp's part of the scores
static_assert(kWarpKeys == 32 && kAttentionTileKeys == 64);

template <int kHeadDim>
struct DecodeShared {
  alignas(1024) std::byte k[kPieceKeys * kHeadDim * 2];
  alignas(1024) std::byte v[kPieceKeys * kHeadDim * 2];
  uint4 weights[kPieceKeys / 16][32];  // fragments
  float most[kWarps][kMostGroup];      // the largest score of a warp's keys
  float sums[kWarps][kMostGroup][4];   // of its weights, for each thread of a quad
  int is_last;
};

struct Item {
  int32_t row, head, piece, num_pieces, num_keys;
  int64_t index;
};

// Loads with .trans: columns become the rows of a fragment.
__device__ inline uint4 load_transposed(const std::byte* row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared_address(row))
               : "memory");
  return v;
}

template <typename T, int kHeadDim>
class DecodeCta {
 public:
  using Shared = DecodeShared<kHeadDim>;

  __device__ DecodeCta(const AttentionParams& params, Shared& shared)
      : p(params),
        s(shared),
        warp(int(threadIdx.x) / 32),
        lane(int(threadIdx.x) % 32),
        g(lane / 4),
        q(lane % 4) {}

  __device__ void run() {
    zero_padding();
    const int64_t total = int64_t(p.work.piece_starts[p.num_rows]) * p.kv_heads;
    const int64_t begin = total * blockIdx.x / gridDim.x;
    const int64_t end = total * (blockIdx.x + 1) / gridDim.x;
    if (begin == end) return;
    Item item = item_at(begin);
    load_all(p.k, s.k, item);
    load_all(p.v, s.v, item);
    for (int64_t i = begin; i < end; ++i) {
      const bool has_next = i + 1 < end;
      const Item next = has_next ? item_at(i + 1) : item;
      compute(item, next, has_next);
      item = next;
    }
  }

 private:
  static constexpr int kVecs = kHeadDim / 8;
  static constexpr int kColumnTiles = kHeadDim / 64;  // of eight columns, which a warp computes

  const AttentionParams& p;
  Shared& s;
  const int warp, lane, g, q;  // g, q: the row and the pair of columns in a fragment

  // Of a row, g or g + 8: the shift after each tile, and after that of this warp's keys.
  struct Shifts {
    float at[kTiles];
    float of_warp = 0;
  };

  __device__ void zero_padding() const {
    const int vecs = p.group * p.kv_heads * kVecs;
    for (int token = int(blockIdx.x); token < p.num_tokens; token += int(gridDim.x)) {
      const int32_t row = p.token_rows[token];
      if (row >= 0 && p.contexts[row] > 0) continue;
      auto* const out = reinterpret_cast<uint4*>(static_cast<T*>(p.out) + token * p.out_stride);
      for (int i = int(threadIdx.x); i < vecs; i += kThreads) out[i] = uint4{};
    }
  }

  __device__ Item item_at(int64_t index) const {
    // The last row that begins at or before the item.
    int32_t row = 0, beyond = p.num_rows;
    while (beyond - row > 1) {
      const int32_t middle = (row + beyond) / 2;
      const bool after = int64_t(__ldg(p.work.piece_starts + middle)) * p.kv_heads > index;
      (after ? beyond : row) = middle;
    }
    Item item{.row = row, .head = 0, .piece = 0, .num_pieces = 0, .num_keys = 0, .index = index};
    const int32_t first = __ldg(p.work.piece_starts + row);
    item.num_pieces = __ldg(p.work.piece_starts + row + 1) - first;
    const auto within = int32_t(index - int64_t(first) * p.kv_heads);
    item.head = within / item.num_pieces;
    item.piece = within % item.num_pieces;
    item.num_keys = min(kPieceKeys, __ldg(p.contexts + row) - item.piece * kPieceKeys);
    return item;
  }

  // Keys behind the last one become 0, as far as its tile goes.
  __device__ void load_all(const void* tensor, std::byte* to, const Item& item) const {
    constexpr int kRowsAtOnce = kThreads / kVecs;
    const int32_t* const table = p.block_tables + int64_t(item.row) * p.max_blocks;
    const int num_rows = (item.num_keys + kAttentionTileKeys - 1) & -kAttentionTileKeys;
    const int vec = int(threadIdx.x) % kVecs;
#pragma unroll 8
    for (int row = int(threadIdx.x) / kVecs; row < num_rows; row += kRowsAtOnce) {
      const bool exists = row < item.num_keys;
      const int position = item.piece * kPieceKeys + (exists ? row : 0);
      const T* const from = in_blocks<T>(tensor, p, table, position, item.head) + vec * 8;
      copy_async(to + panel_offset<kPieceKeys>(row, vec), from, exists);
    }
    commit_copies();
  }

  __device__ void compute(const Item& item, const Item& next, bool has_next) {
    uint4 query[kHeadDim / 16];
    load_query(item, query);
    wait_for_copies<1>();
    __syncthreads();  // the keys are there
    float scores[kWarpKeys / 8][4];
    multiply_keys(item, query, scores);
    publish_most(scores);
    __syncthreads();  // the keys are used, the largest scores there
    if (has_next)
      load_all(p.k, s.k, next);
    else
      commit_copies();
    const int num_tiles = (item.num_keys + kAttentionTileKeys - 1) / kAttentionTileKeys;
    Shifts shifts[2];
    find_shifts(num_tiles, shifts);
    publish_weights(scores, shifts);
    wait_for_copies<1>();
    __syncthreads();  // the values and weights are there
    float acc[kColumnTiles][4] = {};
    multiply_values(num_tiles, shifts, acc);
    const RowState state[2] = {finish(num_tiles, shifts[0], 0), finish(num_tiles, shifts[1], 1)};
    __syncthreads();  // the values are used
    if (has_next)
      load_all(p.v, s.v, next);
    else
      commit_copies();
    if (item.num_pieces == 1)
      write_out(item, state, acc);
    else
      deliver(item, state, acc);
  }

  // Rows behind the last head are 0.
  __device__ void load_query(const Item& item, uint4 (&query)[kHeadDim / 16]) const {
    const int64_t token = __ldg(p.row_starts + item.row);
    const T* const from = static_cast<const T*>(p.q) + token * p.q_stride +
                          int64_t(item.head) * p.group * kHeadDim + 2 * q;
    const auto pair = [&](int row, int column) {
      return row < p.group ? *reinterpret_cast<const uint32_t*>(from + row * kHeadDim + column)
                           : 0U;
    };
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      query[i] = {pair(g, 16 * i), pair(g + 8, 16 * i), pair(g, 16 * i + 8),
                  pair(g + 8, 16 * i + 8)};
    }
  }

  __device__ void multiply_keys(const Item& item, const uint4 (&query)[kHeadDim / 16],
                                float (&scores)[kWarpKeys / 8][4]) const {
#pragma unroll
    for (int j = 0; j < kWarpKeys / 8; ++j) {
      float(&c)[4] = scores[j];
      for (float& number : c) number = 0;
      const int row = kWarpKeys * warp + 8 * j + lane % 8;
#pragma unroll
      for (int i = 0; i < kHeadDim / 16; i += 2) {
        const uint4 keys = load_matrices(s.k + panel_offset<kPieceKeys>(row, 2 * i + lane / 8));
        mma<T>(c, query[i], keys.x, keys.y);
        mma<T>(c, query[i + 1], keys.z, keys.w);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (kWarpKeys * warp + 8 * j + 2 * q + i % 2 >= item.num_keys) c[i] = kNothing;
      }
    }
  }

  __device__ void publish_most(const float (&scores)[kWarpKeys / 8][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = kNothing;
#pragma unroll
      for (int j = 0; j < kWarpKeys / 8; ++j) {
        most = fmaxf(most, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
      }
      most = largest_of_quad(most);
      if (q == 0) s.most[warp][g + 8 * half] = most;
    }
  }

  __device__ void find_shifts(int num_tiles, Shifts (&shifts)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float shift = kNothing;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (tile < num_tiles) {
          const int row = g + 8 * half;
          const float most = fmaxf(s.most[2 * tile][row], s.most[2 * tile + 1][row]);
          shift = next_shift(shift, most, p.scale_log2);
        }
        shifts[half].at[tile] = shift;
        if (tile == warp / 2) shifts[half].of_warp = shift;
      }
    }
  }

  __device__ void publish_weights(float (&scores)[kWarpKeys / 8][4],
                                  const Shifts (&shifts)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float shift = shifts[half].of_warp;
      float w[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& score = scores[i / 2][2 * half + i % 2];
        w[i] = score = weight_of(score, p.scale_log2, shift);
      }
      s.sums[warp][g + 8 * half][q] = sum_of_eight(w);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float(&low)[4] = scores[2 * i];
      const float(&high)[4] = scores[2 * i + 1];
      s.weights[2 * warp + i][lane] = {pack<T>(low[0], low[1]), pack<T>(low[2], low[3]),
                                       pack<T>(high[0], high[1]), pack<T>(high[2], high[3])};
    }
  }

  // A warp computes kColumnTiles times eight columns of all rows.
  __device__ void multiply_values(int num_tiles, const Shifts (&shifts)[2],
                                  float (&acc)[kColumnTiles][4]) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile >= num_tiles) continue;
      if (tile > 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float f = rescaling(shifts[half].at[tile - 1], shifts[half].at[tile]);
#pragma unroll
          for (int j = 0; j < kColumnTiles; ++j) {
            acc[j][2 * half] = __fmul_rn(acc[j][2 * half], f);
            acc[j][2 * half + 1] = __fmul_rn(acc[j][2 * half + 1], f);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const uint4 first = s.weights[4 * tile + i][lane];
        const uint4 second = s.weights[4 * tile + i + 1][lane];
        const int key = kAttentionTileKeys * tile + 16 * i + lane;
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          const uint4 v =
              load_transposed(s.v + panel_offset<kPieceKeys>(key, warp * kColumnTiles + j));
          mma<T>(acc[j], first, v.x, v.y);
          mma<T>(acc[j], second, v.z, v.w);
        }
      }
    }
  }

  __device__ RowState finish(int num_tiles, const Shifts& shifts, int half) const {
    const int row = g + 8 * half;
    RowState state;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile >= num_tiles) continue;
      const float f = rescaling(state.shift, shifts.at[tile]);
      state.sum = next_sum(state.sum, f, s.sums[2 * tile][row][q], s.sums[2 * tile + 1][row][q]);
      state.shift = shifts.at[tile];
    }
    state.sum = sum_of_quad(state.sum);
    return state;
  }

  __device__ int column(int j) const { return 8 * (warp * kColumnTiles + j) + 2 * q; }

  __device__ T* out_of(const Item& item, int row) const {
    const int64_t token = __ldg(p.row_starts + item.row);
    return static_cast<T*>(p.out) + token * p.out_stride +
           (int64_t(item.head) * p.group + row) * kHeadDim;
  }

  __device__ void write_out(const Item& item, const RowState (&state)[2],
                            const float (&acc)[kColumnTiles][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = g + 8 * half;
      if (row >= p.group) continue;
      const float inverse = __frcp_rn(state[half].sum);
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        *reinterpret_cast<uint32_t*>(out_of(item, row) + column(j)) = pack<T>(
            normalized(acc[j][2 * half], inverse), normalized(acc[j][2 * half + 1], inverse));
      }
    }
  }

  __device__ float* sums_of(int64_t index, int row) const {
    return p.work.sums + (index * p.group + row) * kHeadDim;
  }
  __device__ float* stats_of(int64_t index, int row) const {
    return p.work.stats + (index * p.group + row) * 2;
  }

  __device__ void deliver(const Item& item, const RowState (&state)[2],
                          const float (&acc)[kColumnTiles][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = g + 8 * half;
      if (row >= p.group) continue;
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        *reinterpret_cast<float2*>(sums_of(item.index, row) + column(j)) = {acc[j][2 * half],
                                                                            acc[j][2 * half + 1]};
      }
      if (warp == 0 && q == 0) {
        *reinterpret_cast<float2*>(stats_of(item.index, row)) = {state[half].shift,
                                                                 state[half].sum};
      }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      int32_t* const arrived = p.work.arrived + int64_t(item.row) * p.kv_heads + item.head;
      s.is_last = atomicAdd(arrived, 1) == item.num_pieces - 1;
      if (s.is_last) *arrived = 0;  // for the next launch
    }
    __syncthreads();
    if (!s.is_last) return;
    __threadfence();
    for (int row = warp; row < p.group; row += kWarps) merge_pieces(item, row);
  }

  // A warp merges a row; a lane has kHeadDim / 32 columns.
  __device__ void merge_pieces(const Item& item, int row) const {
    constexpr int kColumns = kHeadDim / 32;
    using Columns = std::conditional_t<kColumns == 4, float4, float2>;
    const int64_t first = item.index - item.piece;
    RowState total;
    float acc[kColumns] = {};
#pragma unroll 4
    for (int i = 0; i < item.num_pieces; ++i) {
      const float2 stats = __ldcg(reinterpret_cast<const float2*>(stats_of(first + i, row)));
      const Columns loaded =
          __ldcg(reinterpret_cast<const Columns*>(sums_of(first + i, row)) + lane);
      const Merge m = merge(total, {stats.x, stats.y});
      acc[0] = merged(acc[0], loaded.x, m);
      acc[1] = merged(acc[1], loaded.y, m);
      if constexpr (kColumns == 4) {
        acc[2] = merged(acc[2], loaded.z, m);
        acc[3] = merged(acc[3], loaded.w, m);
      }
    }
    const float inverse = __frcp_rn(total.sum);
    auto* const to = reinterpret_cast<uint32_t*>(out_of(item, row) + lane * kColumns);
#pragma unroll
    for (int j = 0; j < kColumns; j += 2) {
      to[j / 2] = pack<T>(normalized(acc[j], inverse), normalized(acc[j + 1], inverse));
    }
  }
};

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kThreads, kHeadDim == 64 ? 2 : 1)
    decode_attention_kernel(const __grid_constant__ AttentionParams params) {
  extern __shared__ __align__(1024) std::byte memory[];
  DecodeCta<T, kHeadDim>(params, *reinterpret_cast<DecodeShared<kHeadDim>*>(memory)).run();
}

template <typename T, int kHeadDim>
void launch(const AttentionLaunch& launch) {
  constexpr auto kShared = int(sizeof(DecodeShared<kHeadDim>));
  constexpr int kCtasPerSm = kHeadDim == 64 ? 2 : 1;  // as many as there is shared memory for
  const auto kernel = decode_attention_kernel<T, kHeadDim>;
  int device = 0, num_sms = 0;
  LORATORY_CUDA_CHECK(cudaGetDevice(&device));
  LORATORY_CUDA_CHECK(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device));
  LORATORY_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  kernel<<<unsigned(kCtasPerSm * num_sms), kThreads, size_t(kShared), launch.stream>>>(
      launch.params);
  LORATORY_CUDA_CHECK(cudaGetLastError());
}

template <typename T>
void launch_for(const AttentionLaunch& of) {
  if (of.params.head_dim == 64)
    launch<T, 64>(of);
  else
    launch<T, 128>(of);
}

}  // namespace

void launch_decode_attention(const AttentionLaunch& of) {
  if (of.dtype == reference::Dtype::bf16)
    launch_for<__nv_bfloat16>(of);
  else
    launch_for<__half>(of);
}

}  // namespace loratory::gpu
