#pragma once

#include "gpu/kernels/lora_context.cuh"

namespace loratory::gpu {

/// The kernel before this one in the stream: x, y and h may be read once it has ended.
struct PreviousKernel {
  const bool lets_next_start;  ///< only then
  bool waited = false;

  __device__ void wait() {
    if (waited) return;
    waited = true;
    wait_for_previous_kernel();
    if (lets_next_start) let_next_kernel_start();
  }
};

/// From the sums of groups to h, across the CTAs of a cluster. Blocks of ranks take turns in the
/// buffers. Of a shrink alone each CTA receives the sums of its own tokens, and says when it has
/// read a block's: nobody sends into the same buffer before all have. Otherwise everybody receives
/// all, and a buffer is free when it is sent to again: who sends block i + 2 has received block
/// i + 1 of everybody, which they sent after they had read block i.
template <typename C>
class Exchange {
 public:
  __device__ explicit Exchange(const Context<C>& context) : c(context), p(context.p) {}

  /// Barriers may be used by others once everybody has come.
  __device__ void init() {
    if constexpr (C::kSends) {
      if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < C::kNumBuffers; ++i) init_barrier(c.barriers() + i);
      }
      cluster_arrive();
      has_arrived_ = true;
    }
  }
  /// Nobody leaves before all have come.
  __device__ void end() { wait_for_others(); }

  /// Before the first sum of a unit.
  __device__ void begin_unit() {
    if (!C::kHasPairs && blocks_done_ > 0) release();
  }

  /// After finish_block(): what was received has been used.
  __device__ void release() {
    if constexpr (C::kScatters) {
      wait_for_others();
      cluster_arrive();
      has_arrived_ = true;
    }
  }

  /// Before the first sum of a block is handed over, by all threads. The block whose buffer this
  /// one gets was released kNumBuffers blocks ago; of two, others may be waited for a block later.
  __device__ void begin_block(const Unit& unit, int block) {
    if constexpr (C::kHasPairs) release();  // until now this CTA kept its own sums there
    if (C::kNumBuffers == 1 || index(unit, block) == 0) wait_for_others();
    if constexpr (C::kSends) {
      if (threadIdx.x == 0) {
        expect_bytes(c.barriers() + buffer(unit, block), expected_bytes(unit, block));
      }
    }
  }

  /// To how many CTAs a sum goes.
  static constexpr uint32_t kCopies = C::kSends && !C::kScatters ? C::kCluster : 1;

  /// Four sums of a group, or of what a CTA sums at once, ranks j.. of the block; `cta` < kCopies.
  __device__ void hand_over(const Unit& unit, int block, int group, int token, int j, float4 sum,
                            int cta) const {
    if constexpr (!C::kHandsOver) {
      keep(unit, token, block * C::kBlockRank + j, sum, group > 0);
      return;
    }
    float* const to = c.receive() + buffer(unit, block) * C::kReceiveFloats;
    if constexpr (C::kScatters) {
      const int own_token = token / C::kCluster;
      send(to + group * C::kReceiveTile + own_token * C::kRowFloats + j,
           c.barriers() + buffer(unit, block), token % C::kCluster, as_bits(sum));
    } else if constexpr (C::kSends) {
      send(to + group * C::kReceiveTile + token * C::kRowFloats + j,
           c.barriers() + buffer(unit, block), cta, as_bits(sum));
    } else {
      *reinterpret_cast<float4*>(to + group * C::kReceiveTile + token * C::kRowFloats + j) = sum;
    }
  }

  /// h of a block: to shared memory, or to p.h. Four ranks a thread.
  __device__ void finish_block(const Unit& unit, int block) {
    if constexpr (!C::kHandsOver) return;
    if constexpr (C::kSends)
      wait_for_bytes(c.barriers() + buffer(unit, block), parity(unit, block));
    constexpr uint32_t kFours = C::kBlockRank / 4;
    const uint32_t count = uint32_t(own_tokens(unit)) * kFours;
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < count; e += C::kNumThreads) {
      const int own_token = int(e / kFours);
      const int j = int(e % kFours) * 4;
      const int token = C::kScatters ? own_token * C::kCluster + c.cta : own_token;
      const int rank = block * C::kBlockRank + j;
      if (rank / 16 >= unit.num_rank_tiles) continue;
      keep(unit, token, rank, add_groups(buffer(unit, block), own_token, j));
    }
  }

  /// After the last block.
  __device__ void end_unit(const Unit& unit) { blocks_done_ += unit.end_block - unit.first_block; }

 private:
  const Context<C> c;
  const LinearParams& p;
  bool has_arrived_ = false;  // and not waited
  int blocks_done_ = 0;

  __device__ void wait_for_others() {
    if constexpr (C::kSends) {
      if (has_arrived_) cluster_wait();
      has_arrived_ = false;
    }
  }

  /// Blocks before it, of all units.
  __device__ int index(const Unit& unit, int block) const {
    return blocks_done_ + block - unit.first_block;
  }
  __device__ int buffer(const Unit& unit, int block) const {
    return index(unit, block) % C::kNumBuffers;
  }
  __device__ int parity(const Unit& unit, int block) const {
    return index(unit, block) / C::kNumBuffers % 2;
  }

  /// Tokens of this CTA, and what it receives of a block.
  __device__ int own_tokens(const Unit& unit) const {
    if constexpr (!C::kScatters) return unit.num_tokens;
    return (unit.num_tokens - c.cta + C::kCluster - 1) / C::kCluster;
  }
  __device__ int expected_bytes(const Unit& unit, int block) const {
    int num_tiles = C::kRankTiles;
    if (C::kWide) num_tiles = min(num_tiles, unit.num_rank_tiles - block * C::kRankTiles);
    return C::kSenders * own_tokens(unit) * num_tiles * 64;
  }

  __device__ static uint4 as_bits(float4 v) {
    return {__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)};
  }

  /// Neighbours, then neighbouring pairs, then both halves: a sum of few additions errs little.
  __device__ float4 add_groups(int buffer, int own_token, int j) const {
    const float* const first =
        c.receive() + buffer * C::kReceiveFloats + own_token * C::kRowFloats + j;
    float4 sums[C::kSenders];
#pragma unroll
    for (int g = 0; g < C::kSenders; ++g) {
      sums[g] = *reinterpret_cast<const float4*>(first + g * C::kReceiveTile);
    }
#pragma unroll
    for (int step = 1; step < C::kSenders; step *= 2) {
#pragma unroll
      for (int g = 0; g < C::kSenders; g += 2 * step) sums[g] = added(sums[g], sums[g + step]);
    }
    return sums[0];
  }

  /// Four sums of a token; `rank` counts over the tiles of all slices. adds: to what this thread
  /// has written.
  __device__ void keep(const Unit& unit, int token, int rank, float4 v, bool adds = false) const {
    const UnitSlice& s = c.slice_of(unit, rank / 16, &UnitSlice::first_rank_tile);
    const int j = rank - 16 * s.first_rank_tile;
    if constexpr (C::kExpands) {
      auto* const place =
          reinterpret_cast<uint2*>(c.h_place(token, s.h_column + j / 8 * 8)) + j / 4 % 2;
      split<typename C::Weight>(v, s.rank - j, place[0], place[2]);
    } else {
      write_h(unit, s, token, j, v, adds);
    }
  }
  __device__ void write_h(const Unit& unit, const UnitSlice& s, int token, int j, float4 v,
                          bool adds) const {
    float* const h =
        reinterpret_cast<float*>(c.tokens(unit.table)[token].y) + s.index * p.h_slice_stride + j;
    if (p.h_aligned && j + 4 <= s.rank) {
      auto& four = *reinterpret_cast<float4*>(h);
      four = adds ? added(four, v) : v;
      return;
    }
    const float of[] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (j + i < s.rank) h[i] = adds ? h[i] + of[i] : of[i];
    }
  }
};

}  // namespace loratory::gpu
