#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/attention/attention_params.hpp"
#include "gpu/attention/row_softmax.cuh"
#include "gpu/attention/weights_product.cuh"
#include "gpu/kernels/fragments.cuh"
#include "gpu/kernels/ptx.cuh"
#include "gpu/kernels/wgmma.cuh"

// Attention of rows with several tokens. A CTA computes 128 pairs of a token and a head that share
// a kv head, a warpgroup half of them each. A third warpgroup copies keys and values into a
// pipeline of tiles. While a warpgroup finds the weights of one tile, its product of the weights
// and values of the tile before runs.

namespace loratory::gpu::prefill {

constexpr int kTileKeys = kAttentionTileKeys;
constexpr int kTilesPerPiece = kPieceKeys / kTileKeys;
constexpr int kConsumers = 2;  // warpgroups
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kGroupRows = 64;  // rows of a warpgroup
constexpr int kStages = 4;
constexpr int kLag = 2;  // tiles whose copies may be in flight
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
static_assert(kPrefillRows == kConsumers * kGroupRows);
static_assert(128 * kProducerRegisters + 256 * kConsumerRegisters <= 65536);

template <int kHeadDim>
struct PrefillShared {
  alignas(1024) std::byte q[kPrefillRows * kHeadDim * 2];
  alignas(1024) std::byte k[kStages][kTileKeys * kHeadDim * 2];
  alignas(1024) std::byte v[kStages][kTileKeys * kHeadDim * 2];
  uint64_t full[kStages], free[kStages];
};

// What a CTA computes.
struct Work {
  int32_t row, head;       // head: of keys
  int32_t first_pair;      // of the row's chunk
  int32_t num_pairs;       // of the row's chunk
  int32_t first_token;     // of the row's chunk, in the batch
  int32_t first_position;  // of that token
  int32_t num_keys, num_tiles;
};

__device__ inline Work work_of(const AttentionParams& p, const PrefillTile& tile, int32_t head) {
  Work w{.row = tile.row, .head = head, .first_pair = tile.index * kPrefillRows};
  w.first_token = __ldg(p.row_starts + tile.row);
  const int32_t num_tokens = __ldg(p.row_starts + tile.row + 1) - w.first_token;
  w.num_pairs = num_tokens * p.group;
  w.first_position = __ldg(p.contexts + tile.row) - num_tokens;
  const int32_t last = min(w.first_pair + kPrefillRows, w.num_pairs) - 1;
  w.num_keys = w.first_position + last / p.group + 1;
  w.num_tiles = (w.num_keys + kTileKeys - 1) / kTileKeys;
  return w;
}

template <typename T, int kHeadDim>
class Producer {
 public:
  __device__ Producer(const AttentionParams& params, const Work& work,
                      PrefillShared<kHeadDim>& shared)
      : p(params), w(work), s(shared), thread(int(threadIdx.x) % 128) {}

  __device__ void run() const {
    for (int tile = 0; tile < w.num_tiles; ++tile) {
      const int stage = tile % kStages;
      if (tile >= kStages) wait_for_bytes(&s.free[stage], (tile / kStages - 1) % 2);
      copy(tile, stage);
      commit_copies();
      if (tile < kLag) continue;
      wait_for_copies<kLag>();
      announce(tile - kLag);
    }
    wait_for_copies<0>();
    for (int tile = max(0, w.num_tiles - kLag); tile < w.num_tiles; ++tile) announce(tile);
  }

 private:
  const AttentionParams& p;
  const Work& w;
  PrefillShared<kHeadDim>& s;
  const int thread;

  // Each thread makes its own copies visible to wgmma.
  __device__ void announce(int tile) const {
    fence_async_proxy();
    arrive(&s.full[tile % kStages]);
  }

  // Keys behind the last one become 0.
  __device__ void copy(int tile, int stage) const {
    constexpr int kVecs = kHeadDim / 8;
    constexpr int kRowsAtOnce = 128 / kVecs;
    const int32_t* const table = p.block_tables + int64_t(w.row) * p.max_blocks;
    const int vec = thread % kVecs;
#pragma unroll
    for (int i = 0; i < kTileKeys / kRowsAtOnce; ++i) {
      const int row = i * kRowsAtOnce + thread / kVecs;
      const int position = tile * kTileKeys + row;
      const bool exists = position < w.num_keys;
      const int64_t block = __ldg(table + ((exists ? position : 0) >> p.block_shift));
      const int64_t place = position & (p.block_size - 1);
      const int64_t at =
          ((block * p.kv_heads + w.head) * p.block_size + place) * kHeadDim + vec * 8;
      const int to = panel_offset<kTileKeys>(row, vec);
      copy_async(s.k[stage] + to, static_cast<const T*>(p.k) + at, exists);
      copy_async(s.v[stage] + to, static_cast<const T*>(p.v) + at, exists);
    }
  }
};

template <typename T, int kHeadDim>
class Consumer {
 public:
  __device__ Consumer(const AttentionParams& params, const Work& work,
                      PrefillShared<kHeadDim>& shared)
      : p(params),
        w(work),
        s(shared),
        group(int(threadIdx.x) / 128 - 1),
        thread(int(threadIdx.x) % 128),
        first_row(group * kGroupRows + thread / 32 * 16 + thread % 32 / 4),
        q(thread % 4) {}

  __device__ void run() {
    load_query();
    for (int half = 0; half < 2; ++half) position[half] = position_of(first_row + 8 * half);
    first_position = position_of(first_row - thread % 32 / 4);
    wait_for_bytes(&s.full[0], 0);
    start_scores(0);
    wait_for_product(scores);
    find_weights(0);
    pack_weights();
    const int last = w.num_tiles - 1;
    for (int tile = 0; tile < last; ++tile) step(tile);
    start_product(last);
    wait_for_product(acc);
    merge_piece(last / kTilesPerPiece, state);
    write_out();
  }

 private:
  const AttentionParams& p;
  const Work& w;
  PrefillShared<kHeadDim>& s;
  const int group, thread, first_row, q;
  int32_t position[2];     // of the tokens of this thread's rows
  int32_t first_position;  // of the warp's first row
  float scores[32];        // of a tile, then its weights
  uint4 weights[4];        // of the tile before, as fragments
  float acc[kHeadDim / 2];
  float total[kHeadDim / 2] = {};
  RowState state[2], merged_state[2];
  float factor[2];  // what acc is multiplied by before the next tile

  __device__ int32_t position_of(int row) const {
    const int32_t pair = w.first_pair + row;
    return pair < w.num_pairs ? w.first_position + pair / p.group : w.num_keys - 1;
  }

  // The rows of this warpgroup; those that do not exist are 0.
  __device__ void load_query() const {
    constexpr int kVecs = kHeadDim / 8;
    const int vec = thread % kVecs;
    for (int row = group * kGroupRows + thread / kVecs; row < (group + 1) * kGroupRows;
         row += 128 / kVecs) {
      const int32_t pair = w.first_pair + row;
      const bool exists = pair < w.num_pairs;
      const int64_t token = w.first_token + (exists ? pair / p.group : 0);
      const int64_t head = int64_t(w.head) * p.group + (exists ? pair % p.group : 0);
      copy_async(s.q + panel_offset<kPrefillRows>(row, vec),
                 static_cast<const T*>(p.q) + token * p.q_stride + head * kHeadDim + vec * 8,
                 exists);
    }
    commit_copies();
    wait_for_copies<0>();
    fence_async_proxy();
    sync_warpgroup(group);
  }

  // The product of a tile, and meanwhile the weights of the next.
  __device__ void step(int tile) {
    const int next = tile + 1;
    wait_for_bytes(&s.full[next % kStages], next / kStages % 2);
    start_scores(next);
    start_product(tile);
    const RowState ended[2] = {state[0], state[1]};
    wait_for_all_but_last(scores);
    find_weights(next);
    wait_for_product(acc);
    release(tile);
    if (next % kTilesPerPiece == 0)
      merge_piece(tile / kTilesPerPiece, ended);
    else
      rescale();
    pack_weights();
  }

  __device__ void release(int tile) const {
    if (thread % 32 == 0) arrive(&s.free[tile % kStages]);
  }

  __device__ void start_scores(int tile) {
    constexpr int kPanels = kHeadDim / 64;
    fence_wgmma();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const uint64_t a = matrix_descriptor(s.q + (panel * kPrefillRows + group * kGroupRows) * 128);
      const uint64_t b = matrix_descriptor(s.k[tile % kStages] + panel * kTileKeys * 128);
#pragma unroll
      for (int i = 0; i < 4; ++i) wgmma<T>(scores, a + 2 * i, b + 2 * i, panel + i > 0);
    }
    commit_wgmma();
  }

  __device__ void start_product(int tile) {
    const uint64_t v = values_descriptor(s.v[tile % kStages], kTileKeys * 128);
    fence_wgmma();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      multiply_weights<T>(acc, weights[i], v + 128 * i, i > 0 || tile % kTilesPerPiece > 0);
    }
    commit_wgmma();
  }

  __device__ void mask(int tile) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int key = tile * kTileKeys + i / 4 * 8 + 2 * q + i % 2;
      if (key > position[i / 2 % 2]) scores[i] = kNothing;
    }
  }

  // Scores become weights; state and factor those of the tile.
  __device__ void find_weights(int tile) {
    if ((tile + 1) * kTileKeys - 1 > first_position) mask(tile);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (tile % kTilesPerPiece == 0) state[half] = {};
      float most = kNothing;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        most = fmaxf(most, fmaxf(scores[4 * j + 2 * half], scores[4 * j + 2 * half + 1]));
      }
      const float shift = next_shift(state[half].shift, largest_of_quad(most), p.scale_log2);
      factor[half] = rescaling(state[half].shift, shift);
      float sums[2];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        float weight[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& score = scores[16 * part + i / 2 * 4 + 2 * half + i % 2];
          weight[i] = score = weight_of(score, p.scale_log2, shift);
        }
        sums[part] = sum_of_eight(weight);
      }
      state[half] = {shift, next_sum(state[half].sum, factor[half], sums[0], sums[1])};
    }
  }

  __device__ void pack_weights() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const w8 = scores + 8 * i;
      weights[i] = {pack<T>(w8[0], w8[1]), pack<T>(w8[2], w8[3]), pack<T>(w8[4], w8[5]),
                    pack<T>(w8[6], w8[7])};
    }
  }

  // Multiplying by 1 changes nothing, so a warp may leave it out.
  __device__ void rescale() {
    if (__all_sync(0xFFFFFFFF, factor[0] == 1 && factor[1] == 1)) return;
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) acc[i] = __fmul_rn(acc[i], factor[i / 2 % 2]);
  }

  // Rows that do not reach this piece have no numbers in acc.
  __device__ void merge_piece(int piece, const RowState (&ended)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_quad(ended[half].sum);  // by all lanes of the warp
      if (piece * kPieceKeys > position[half]) continue;
      const Merge m = merge(merged_state[half], {ended[half].shift, sum});
#pragma unroll
      for (int j = 0; j < kHeadDim / 8; ++j) {
        for (int i = 4 * j + 2 * half; i < 4 * j + 2 * half + 2; ++i) {
          total[i] = merged(total[i], acc[i], m);
        }
      }
    }
  }

  __device__ void write_out() const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t pair = w.first_pair + first_row + 8 * half;
      if (pair >= w.num_pairs) continue;
      const int64_t token = w.first_token + pair / p.group;
      const int64_t head = int64_t(w.head) * p.group + pair % p.group;
      T* const to = static_cast<T*>(p.out) + token * p.out_stride + head * kHeadDim + 2 * q;
      const float inverse = __frcp_rn(merged_state[half].sum);
#pragma unroll
      for (int j = 0; j < kHeadDim / 8; ++j) {
        *reinterpret_cast<uint32_t*>(to + 8 * j) =
            pack<T>(normalized(total[4 * j + 2 * half], inverse),
                    normalized(total[4 * j + 2 * half + 1], inverse));
      }
    }
  }
};

/// What a CTA does, with shared memory of its own.
template <typename T, int kHeadDim>
__device__ void run_cta(const AttentionParams& p, PrefillShared<kHeadDim>& shared) {
  launch_dependents();
  wait_for_prior_grid();  // also a CTA without work: the launch never ends before the previous one
  const int32_t tile = int32_t(blockIdx.x) / p.kv_heads;
  if (tile >= *p.work.num_tiles) return;
  const Work work = work_of(p, p.work.tiles[tile], int32_t(blockIdx.x) % p.kv_heads);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&shared.full[i], 128);
      init_barrier(&shared.free[i], 4 * kConsumers);
    }
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers<kProducerRegisters>();
    Producer<T, kHeadDim>(p, work, shared).run();
  } else {
    take_registers<kConsumerRegisters>();
    Consumer<T, kHeadDim>(p, work, shared).run();
  }
}

}  // namespace loratory::gpu::prefill
