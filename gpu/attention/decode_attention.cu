// Attention of rows with one token. A work item is a piece of a row's context and one kv head. Each
// CTA takes an equal, contiguous share of all items. Some of its warps do nothing but copy: keys
// and values go through shared memory tile by tile, without a pause between items. Copies that
// wait for room in the memory system hold up the warp that issues them, and only these. The CTA
// that delivers the last piece of a row and head merges all of them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/attention/attention_params.hpp"
#include "gpu/attention/row_softmax.cuh"
#include "gpu/kernels/fragments.cuh"
#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/kernels/ptx.cuh"
#include "gpu/runtime/cuda_check.hpp"

namespace loratory::gpu {
namespace {

constexpr int kWarps = 8;  // that compute
constexpr int kConsumers = 32 * kWarps;
// Threads that copy, behind those that compute.
template <int kHeadDim>
constexpr int kProducers = kHeadDim == 64 ? 128 : 256;
// As many CTAs as there is shared memory for.
template <int kHeadDim>
constexpr int kCtasPerSm = kHeadDim == 64 ? 2 : 1;
constexpr int kTiles = kPieceKeys / kAttentionTileKeys;
constexpr int kWarpKeys = kPieceKeys / kWarps;  // half a tile: a warp's part of the scores
static_assert(kWarpKeys == 32 && kAttentionTileKeys == 64);

// A tile of a piece has a place of its own, which the next item's tile takes over.
template <int kHeadDim>
struct DecodeShared {
  alignas(1024) std::byte k[kPieceKeys * kHeadDim * 2];
  alignas(1024) std::byte v[kPieceKeys * kHeadDim * 2];
  alignas(1024) std::byte query[kMostGroup * kHeadDim * 2];
  uint4 weights[kPieceKeys / 16][32];  // fragments
  float most[kWarps][kMostGroup];      // the largest score of a warp's keys
  float sums[kWarps][kMostGroup][4];   // of its weights, for each thread of a quad
  uint64_t full_q, free_q;
  uint64_t full_k[kTiles], free_k[kTiles], full_v[kTiles], free_v[kTiles];
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

// The items of this CTA.
class Share {
 public:
  int64_t begin, end;

  __device__ explicit Share(const AttentionParams& params) : p(params) {
    const int64_t total = int64_t(p.work.piece_starts[p.num_rows]) * p.kv_heads;
    begin = total * blockIdx.x / gridDim.x;
    end = total * (blockIdx.x + 1) / gridDim.x;
  }

  __device__ Item at(int64_t index) const {
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

 private:
  const AttentionParams& p;
};

__device__ inline int num_tiles_of(const Item& item) {
  return (item.num_keys + kAttentionTileKeys - 1) / kAttentionTileKeys;
}

template <typename T, int kHeadDim>
class DecodeProducer {
 public:
  __device__ DecodeProducer(const AttentionParams& params, DecodeShared<kHeadDim>& shared)
      : p(params), s(shared), thread(int(threadIdx.x) - kConsumers) {}

  // Every item uses every barrier once, so that all are in the same phase.
  __device__ void run(const Share& share) const {
    if (share.begin == share.end) return;
    Item item = share.at(share.begin);
    for (int64_t i = share.begin; i < share.end; ++i) {
      const Item next = i + 1 < share.end ? share.at(i + 1) : item;
      prefetch_table(next);
      if (i == share.begin && p.overlaps_previous)
        copy_early(item, /*is_alone=*/i + 1 == share.end);
      else
        copy(item, i > share.begin, int(i - share.begin - 1) % 2);
      item = next;
    }
  }

 private:
  static constexpr int kVecs = kHeadDim / 8;
  static constexpr int kRowsAtOnce = kProducers<kHeadDim> / kVecs;

  const AttentionParams& p;
  DecodeShared<kHeadDim>& s;
  const int thread;

  // The first item, while the previous kernel may still run. What earlier steps wrote does not wait
  // for it: the keys, all but the tile of this step's token, and the values if no other item
  // follows. More would hold up the query.
  __device__ void copy_early(const Item& item, bool is_alone) const {
    const bool has_newest = item.piece + 1 == item.num_pieces;
    const int newest = has_newest ? num_tiles_of(item) - 1 : kTiles;
    copy_but(newest, p.k, s.k, s.full_k, item);
    if (is_alone) copy_but(newest, p.v, s.v, s.full_v, item);
    wait_for_prior_grid();
    copy_query(item);
    arrive_after_copies(&s.full_q);
    if (has_newest) copy_into(newest, p.k, s.k, s.full_k, item);
    if (!is_alone) copy_but(newest, p.v, s.v, s.full_v, item);
    if (has_newest) copy_into(newest, p.v, s.v, s.full_v, item);
  }
  __device__ void copy_but(int left_out, const void* tensor, std::byte* to, uint64_t* full,
                           const Item& item) const {
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile != left_out) copy_into(tile, tensor, to, full, item);
    }
  }
  __device__ void copy_into(int tile, const void* tensor, std::byte* to, uint64_t* full,
                            const Item& item) const {
    copy_tile(tensor, to, item, tile);
    arrive_after_copies(&full[tile]);
  }

  __device__ void copy(const Item& item, bool waits, int used) const {
    if (waits) wait_for_bytes(&s.free_q, used);
    copy_query(item);
    arrive_after_copies(&s.full_q);
    for (int tile = 0; tile < kTiles; ++tile) {
      if (waits) wait_for_bytes(&s.free_k[tile], used);
      copy_into(tile, p.k, s.k, s.full_k, item);
    }
    for (int tile = 0; tile < kTiles; ++tile) {
      if (waits) wait_for_bytes(&s.free_v[tile], used);
      copy_into(tile, p.v, s.v, s.full_v, item);
    }
  }

  __device__ const int32_t* table_of(const Item& item) const {
    return p.block_tables + int64_t(item.row) * p.max_blocks;
  }

  // The blocks of an item are then in L1 when its copies need them.
  __device__ void prefetch_table(const Item& item) const {
    constexpr int kLine = 32;  // entries
    const int32_t first = item.piece * kPieceKeys;
    const int32_t last = (first + item.num_keys - 1) >> p.block_shift;
    const int32_t at = (first >> p.block_shift) + thread * kLine;
    if (at < last + kLine) prefetch_line(table_of(item) + min(at, last));
  }

  // Rows behind the last head are 0.
  __device__ void copy_query(const Item& item) const {
    const int row = thread / kVecs, vec = thread % kVecs;
    static_assert(kRowsAtOnce == kMostGroup);
    const int64_t token = __ldg(p.row_starts + item.row);
    const T* const from = static_cast<const T*>(p.q) + token * p.q_stride +
                          int64_t(item.head) * p.group * kHeadDim + vec * 8;
    const bool exists = row < p.group;
    copy_async(s.query + panel_offset<kMostGroup>(row, vec), from + (exists ? row * kHeadDim : 0),
               exists);
  }

  // Keys behind the last one become 0; tiles behind it are left.
  __device__ void copy_tile(const void* tensor, std::byte* to, const Item& item, int tile) const {
    if (tile >= num_tiles_of(item)) return;
    const int first = tile * kAttentionTileKeys + thread / kVecs, vec = thread % kVecs;
    const int32_t* const table = table_of(item);
    // Of a block; the plan has seen that it fits.
    const int32_t numbers = p.kv_heads * p.block_size * kHeadDim;
    const T* const base =
        static_cast<const T*>(tensor) + item.head * p.block_size * kHeadDim + vec * 8;
#pragma unroll
    for (int i = 0; i < kAttentionTileKeys / kRowsAtOnce; ++i) {
      const int key = first + i * kRowsAtOnce;
      const bool exists = key < item.num_keys;
      const int position = item.piece * kPieceKeys + (exists ? key : 0);
      const int64_t block = int64_t{__ldg(table + (position >> p.block_shift))} * numbers;
      const int place = (position & (p.block_size - 1)) * kHeadDim;
      copy_async(to + panel_offset<kPieceKeys>(key, vec), base + (block + place), exists);
    }
  }
};

template <typename T, int kHeadDim>
class DecodeConsumer {
 public:
  __device__ DecodeConsumer(const AttentionParams& params, DecodeShared<kHeadDim>& shared)
      : p(params),
        s(shared),
        warp(int(threadIdx.x) / 32),
        lane(int(threadIdx.x) % 32),
        g(lane / 4),
        q(lane % 4) {}

  __device__ void run(const Share& share) {
    wait_for_prior_grid();  // also without items: the launch never ends before the previous one
    zero_padding();
    int32_t num_delivered = 0;  // of the same row and head, and not counted yet
    for (int64_t i = share.begin; i < share.end; ++i) {
      const Item item = share.at(i);
      compute(item, int(i - share.begin) % 2);
      if (item.num_pieces == 1) continue;
      ++num_delivered;
      if (i + 1 < share.end && item.piece + 1 < item.num_pieces) continue;
      count_pieces(item, num_delivered);
      num_delivered = 0;
    }
  }

 private:
  static constexpr int kColumnTiles = kHeadDim / 64;  // of eight columns, which a warp computes

  const AttentionParams& p;
  DecodeShared<kHeadDim>& s;
  const int warp, lane, g, q;  // g, q: the row and the pair of columns in a fragment

  // Of a row, g or g + 8: the shift after each tile, and after that of this warp's keys.
  struct Shifts {
    float at[kTiles];
    float of_warp = 0;
  };

  __device__ void zero_padding() const {
    const int vecs = p.group * p.kv_heads * kHeadDim / 8;
    for (int token = int(blockIdx.x); token < p.num_tokens; token += int(gridDim.x)) {
      const int32_t row = p.token_rows[token];
      if (row >= 0 && p.contexts[row] > 0) continue;
      auto* const out = reinterpret_cast<uint4*>(static_cast<T*>(p.out) + token * p.out_stride);
      for (int i = int(threadIdx.x); i < vecs; i += kConsumers) out[i] = uint4{};
    }
  }

  __device__ void sync() const { sync_threads<kConsumers>(); }

  __device__ void release(uint64_t* barrier) const {
    __syncwarp();
    if (lane == 0) arrive(barrier);
  }

  __device__ void compute(const Item& item, int phase) {
    float scores[kWarpKeys / 8][4] = {};
    wait_for_bytes(&s.full_q, phase);
    wait_for_bytes(&s.full_k[warp / 2], phase);
    multiply_keys(scores);
    release(&s.free_q);
    release(&s.free_k[warp / 2]);
    mask(item, scores);
    publish_most(scores);
    sync();
    const int num_tiles = num_tiles_of(item);
    Shifts shifts[2];
    find_shifts(num_tiles, shifts);
    publish_weights(scores, shifts);
    sync();
    float acc[kColumnTiles][4] = {};
    multiply_values(num_tiles, phase, shifts, acc);
    const RowState state[2] = {finish(num_tiles, shifts[0], 0), finish(num_tiles, shifts[1], 1)};
    if (item.num_pieces == 1)
      write_out(item, state, acc);
    else
      deliver(item, state, acc);
  }

  // Columns ascend for each score; scores of eight keys at a time take turns.
  __device__ void multiply_keys(float (&scores)[kWarpKeys / 8][4]) const {
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; i += 2) {
      uint4 query[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        query[j] =
            load_matrices(s.query + panel_offset<kMostGroup>(lane % 16, 2 * (i + j) + lane / 16));
      }
#pragma unroll
      for (int j = 0; j < kWarpKeys / 8; ++j) {
        const int row = kWarpKeys * warp + 8 * j + lane % 8;
        const uint4 keys = load_matrices(s.k + panel_offset<kPieceKeys>(row, 2 * i + lane / 8));
        mma<T>(scores[j], query[0], keys.x, keys.y);
        mma<T>(scores[j], query[1], keys.z, keys.w);
      }
    }
  }

  __device__ void mask(const Item& item, float (&scores)[kWarpKeys / 8][4]) const {
#pragma unroll
    for (int j = 0; j < kWarpKeys / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (kWarpKeys * warp + 8 * j + 2 * q + i % 2 >= item.num_keys) scores[j][i] = kNothing;
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

  // A warp computes kColumnTiles times eight columns of all rows. What it waits for comes tile by
  // tile; so do the places for the next item's values.
  __device__ void multiply_values(int num_tiles, int phase, const Shifts (&shifts)[2],
                                  float (&acc)[kColumnTiles][4]) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      wait_for_bytes(&s.full_v[tile], phase);
      if (tile < num_tiles) add_tile(tile, shifts, acc);
      release(&s.free_v[tile]);
    }
  }

  __device__ void add_tile(int tile, const Shifts (&shifts)[2],
                           float (&acc)[kColumnTiles][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (tile == 0) break;
      const float f = rescaling(shifts[half].at[tile - 1], shifts[half].at[tile]);
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        acc[j][2 * half] = __fmul_rn(acc[j][2 * half], f);
        acc[j][2 * half + 1] = __fmul_rn(acc[j][2 * half + 1], f);
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
  }

  // The last CTA to count merges.
  __device__ void count_pieces(const Item& item, int32_t num_delivered) {
    __threadfence();
    sync();
    if (threadIdx.x == 0) {
      int32_t* const arrived = p.work.arrived + int64_t(item.row) * p.kv_heads + item.head;
      s.is_last = atomicAdd(arrived, num_delivered) + num_delivered == item.num_pieces;
      if (s.is_last) *arrived = 0;  // for the next launch
    }
    sync();
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

template <int kHeadDim>
__device__ void init_barriers(DecodeShared<kHeadDim>& s) {
  init_barrier(&s.full_q, kProducers<kHeadDim>);
  init_barrier(&s.free_q, kWarps);
  for (int i = 0; i < kTiles; ++i) {
    init_barrier(&s.full_k[i], kProducers<kHeadDim>);
    init_barrier(&s.free_k[i], 2);  // a tile of keys is two warps'
    init_barrier(&s.full_v[i], kProducers<kHeadDim>);
    init_barrier(&s.free_v[i], kWarps);
  }
}

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kConsumers + kProducers<kHeadDim>, kCtasPerSm<kHeadDim>)
    decode_attention_kernel(const __grid_constant__ AttentionParams params) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<DecodeShared<kHeadDim>*>(memory);
  launch_dependents();
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  const Share share(params);
  if (threadIdx.x < kConsumers)
    DecodeConsumer<T, kHeadDim>(params, shared).run(share);
  else
    DecodeProducer<T, kHeadDim>(params, shared).run(share);
}

template <typename T, int kHeadDim>
void launch(const AttentionLaunch& launch) {
  constexpr auto kShared = int(sizeof(DecodeShared<kHeadDim>));
  const auto kernel = decode_attention_kernel<T, kHeadDim>;
  int device = 0, num_sms = 0;
  LORATORY_CUDA_CHECK(cudaGetDevice(&device));
  LORATORY_CUDA_CHECK(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device));
  LORATORY_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const GridShape shape{.grid = unsigned(kCtasPerSm<kHeadDim> * num_sms),
                        .block = unsigned(kConsumers + kProducers<kHeadDim>),
                        .shared_bytes = size_t(kShared)};
  launch_kernel(kernel, shape, launch.stream, order_of(launch.params), launch.params);
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
