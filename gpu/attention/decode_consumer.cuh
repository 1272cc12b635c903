#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "gpu/attention/decode_shared.cuh"

// The warps that compute: scores, weights, their product with the values, and the merge of pieces.

namespace loratory::gpu::decode {

template <typename T, int kHeadDim>
__device__ T* out_of(const AttentionParams& p, const DecodeItem& item, int row) {
  const int64_t token = __ldg(p.row_starts + item.row);
  return static_cast<T*>(p.out) + token * p.out_stride +
         (int64_t(item.head) * p.group + row) * kHeadDim;
}
template <int kHeadDim>
__device__ float* sums_of(const AttentionParams& p, int64_t index, int row) {
  return p.work.sums + (index * p.group + row) * kHeadDim;
}
__device__ inline float* stats_of(const AttentionParams& p, int64_t index, int row) {
  return p.work.stats + (index * p.group + row) * 2;
}

// Counts pieces, which this thread knows to be written. All CTAs' pieces may be read if it is true.
__device__ inline bool are_all_there(const AttentionParams& p, const DecodeItem& item,
                                     int32_t num_delivered) {
  int32_t* const arrived = p.work.arrived + int64_t(item.row) * p.kv_heads + item.head;
  const bool out = count_arrivals(arrived, num_delivered) + num_delivered == item.num_pieces;
  if (out) *arrived = 0;  // for the next launch
  return out;
}

// A warp merges a row; a lane has kHeadDim / 32 columns.
template <typename T, int kHeadDim>
__device__ void merge_pieces(const AttentionParams& p, const DecodeItem& item, int row) {
  constexpr int kColumns = kHeadDim / 32;
  using Columns = std::conditional_t<kColumns == 4, float4, float2>;
  const int lane = int(threadIdx.x) % 32;
  const int64_t first = item.index - item.piece;
  RowState total;
  float acc[kColumns] = {};
#pragma unroll 4
  for (int i = 0; i < item.num_pieces; ++i) {
    const float2 stats = __ldcg(reinterpret_cast<const float2*>(stats_of(p, first + i, row)));
    const Columns loaded =
        __ldcg(reinterpret_cast<const Columns*>(sums_of<kHeadDim>(p, first + i, row)) + lane);
    const Merge m = merge(total, {stats.x, stats.y});
    acc[0] = merged(acc[0], loaded.x, m);
    acc[1] = merged(acc[1], loaded.y, m);
    if constexpr (kColumns == 4) {
      acc[2] = merged(acc[2], loaded.z, m);
      acc[3] = merged(acc[3], loaded.w, m);
    }
  }
  const float inverse = __frcp_rn(total.sum);
  auto* const to = reinterpret_cast<uint32_t*>(out_of<T, kHeadDim>(p, item, row) + lane * kColumns);
#pragma unroll
  for (int j = 0; j < kColumns; j += 2) {
    to[j / 2] = pack<T>(normalized(acc[j], inverse), normalized(acc[j + 1], inverse));
  }
}

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

  __device__ void run(const DecodeShare& share) {
    // CTA 0 waits even if it has nothing to do: the launch never ends before the previous one.
    if (share.is_empty() && int(blockIdx.x) >= max(1, p.num_tokens)) return;
    wait_for_prior_grid();
    zero_padding();
    if (share.is_empty()) return;
    DecodeItem item = share.begin;
    int32_t num_delivered = 0;  // of the same row and head, and not counted yet
    bool is_whole = false;      // the share has all pieces of the row and head
    for (;;) {
      is_whole = (item.piece == 0 || is_whole) && share.has_rest_of(item);
      compute(item, is_whole);
      const bool ends_share = share.ends_with(item);
      if (!is_whole && item.num_pieces > 1) ++num_delivered;
      if (num_delivered > 0 && (ends_share || item.is_last_of_head())) {
        count_pieces(item, num_delivered);
        num_delivered = 0;
      }
      if (ends_share && !share.late_follow) return;
      stage = stage.ahead(2 * num_tiles_of(item));
      query = query.ahead(1);
      if (!ends_share)
        item.advance(rows_of(p));
      else if (!read_late(s, late, item))
        return;
    }
  }

 private:
  static constexpr int kColumnTiles = kHeadDim / 64;  // of eight columns, which a warp computes

  const AttentionParams& p;
  DecodeShared<kHeadDim>& s;
  const int warp, lane, g, q;  // g, q: the row and the pair of columns in a fragment
  Stage stage;
  Place<kQueries> query;
  Place<kLates> late;
  // Of a row and head of which the share has all pieces: those so far.
  RowState total[2];
  float total_acc[kColumnTiles][4];

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

  __device__ void release(uint64_t* barrier, int count = 1) const {
    __syncwarp();
    if (lane == 0) arrive(barrier, count);
  }

  __device__ void compute(const DecodeItem& item, bool is_whole) {
    const int num_tiles = num_tiles_of(item);
    float scores[kWarpKeys / 8][4] = {};
    if (warp / 2 < num_tiles) {
      const Stage keys = stage.ahead(warp / 2);
      wait_for_bytes(&s.full_q[query.index()], query.phase());
      wait_for_bytes(&s.full[keys.index()], keys.phase());
      multiply_keys(s.query[query.index()], s.tiles[keys.index()], scores);
      release(&s.free[keys.index()], kWarps / 2);  // a tile of keys is two warps'
    }
    arrive(&s.free_q[query.index()]);  // each lane for itself: it has read the query
    mask(item, scores);
    publish_most(scores);
    sync();
    Shifts shifts[2];
    find_shifts(num_tiles, shifts);
    publish_weights(scores, shifts);
    sync();
    const RowState state[2] = {finish(num_tiles, shifts[0], 0), finish(num_tiles, shifts[1], 1)};
    float acc[kColumnTiles][4] = {};
    multiply_values(item, shifts, acc);
    if (item.num_pieces == 1)
      write_out(item, state, acc);
    else if (is_whole)
      join(item, state, acc);
    else
      deliver(item, state, acc);
  }

  // Columns ascend for each score; scores of eight keys at a time take turns.
  __device__ void multiply_keys(const std::byte* queries, const std::byte* keys_of_tile,
                                float (&scores)[kWarpKeys / 8][4]) const {
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; i += 2) {
      uint4 fragments[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        fragments[j] =
            load_matrices(queries + panel_offset<kMostGroup>(lane % 16, 2 * (i + j) + lane / 16));
      }
#pragma unroll
      for (int j = 0; j < kWarpKeys / 8; ++j) {
        const int row = kWarpKeys * (warp % 2) + 8 * j + lane % 8;
        const uint4 keys =
            load_matrices(keys_of_tile + tile_offset<kHeadDim>(row, 2 * i + lane / 8));
        mma<T>(scores[j], fragments[0], keys.x, keys.y);
        mma<T>(scores[j], fragments[1], keys.z, keys.w);
      }
    }
  }

  __device__ void mask(const DecodeItem& item, float (&scores)[kWarpKeys / 8][4]) const {
#pragma unroll
    for (int j = 0; j < kWarpKeys / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (kWarpKeys * warp + 8 * j + 2 * q + i % 2 >= item.num_keys()) scores[j][i] = kNothing;
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
  // tile; so do the places for later tiles.
  __device__ void multiply_values(const DecodeItem& item, const Shifts (&shifts)[2],
                                  float (&acc)[kColumnTiles][4]) const {
    const int num_tiles = num_tiles_of(item);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile >= num_tiles) break;
      const Stage values = stage.ahead(num_tiles + tile);
      wait_for_bytes(&s.full[values.index()], values.phase());
      const int num_keys = item.num_keys() - tile * kAttentionTileKeys;
      if (num_keys < kAttentionTileKeys) clear_behind(num_keys, s.tiles[values.index()]);
      add_tile(tile, s.tiles[values.index()], shifts, acc);
      release(&s.free[values.index()]);
    }
  }

  // Values behind the last key, in this warp's columns: their weights are 0, they may be NaN.
  __device__ void clear_behind(int num_keys, std::byte* values) const {
    for (int i = lane; i < (kAttentionTileKeys - num_keys) * kColumnTiles; i += 32) {
      const int key = num_keys + i / kColumnTiles, vec = first_vec() + i % kColumnTiles;
      *reinterpret_cast<uint4*>(values + tile_offset<kHeadDim>(key, vec)) = uint4{};
    }
    fence_shared_for_bulk_copies();  // later ones write here again
    __syncwarp();
  }

  __device__ void add_tile(int tile, const std::byte* values, const Shifts (&shifts)[2],
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
      const int key = 16 * i + lane;
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        const uint4 v = load_transposed(values + tile_offset<kHeadDim>(key, first_vec() + j));
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

  __device__ int first_vec() const { return warp * kColumnTiles; }
  __device__ int column(int j) const { return 8 * (first_vec() + j) + 2 * q; }

  __device__ void write_out(const DecodeItem& item, const RowState (&state)[2],
                            const float (&acc)[kColumnTiles][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = g + 8 * half;
      if (row >= p.group) continue;
      const float inverse = __frcp_rn(state[half].sum);
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        *reinterpret_cast<uint32_t*>(out_of<T, kHeadDim>(p, item, row) + column(j)) = pack<T>(
            normalized(acc[j][2 * half], inverse), normalized(acc[j][2 * half + 1], inverse));
      }
    }
  }

  // The steps of merge_pieces(), as the pieces come.
  __device__ void join(const DecodeItem& item, const RowState (&state)[2],
                       const float (&acc)[kColumnTiles][4]) {
    const bool is_first = item.piece == 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (is_first) total[half] = {};
      const Merge m = merge(total[half], state[half]);
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          total_acc[j][i] = merged(is_first ? 0 : total_acc[j][i], acc[j][i], m);
        }
      }
    }
    if (item.is_last_of_head()) write_out(item, total, total_acc);
  }

  __device__ void deliver(const DecodeItem& item, const RowState (&state)[2],
                          const float (&acc)[kColumnTiles][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = g + 8 * half;
      if (row >= p.group) continue;
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        *reinterpret_cast<float2*>(sums_of<kHeadDim>(p, item.index, row) + column(j)) = {
            acc[j][2 * half], acc[j][2 * half + 1]};
      }
      if (warp == 0 && q == 0) {
        *reinterpret_cast<float2*>(stats_of(p, item.index, row)) = {state[half].shift,
                                                                    state[half].sum};
      }
    }
  }

  // The last CTA to count merges.
  __device__ void count_pieces(const DecodeItem& item, int32_t num_delivered) {
    sync();
    if (threadIdx.x == 0) s.is_last = are_all_there(p, item, num_delivered);
    sync();
    if (!s.is_last) return;
    for (int row = warp; row < p.group; row += kWarps) merge_pieces<T, kHeadDim>(p, item, row);
  }
};

}  // namespace loratory::gpu::decode
