#pragma once

#include <cub/warp/warp_scan.cuh>

#include "gpu/layout/device_segment_builder.hpp"

// Builds the segments of a step on the device: a counting sort of the tokens by slot.
//
// Work     A CTA places 1,024 tokens, one per thread. Each CTA counts all tokens by itself, those
//          before its own apart from the rest. So CTAs never wait for each other, and one launch is
//          enough. A step has few tokens, and they come from L2.
// Order    The key of a token is its slot + 1; that of a base token is 0. A token goes to where its
//          key begins, behind the tokens of its key in earlier CTAs, earlier warps and lower lanes.
//          That is a stable sort. Atomics only count.
// Segments The first token of a segment writes it.

namespace loratory::gpu {

inline constexpr int kBuilderThreads = 1024;
inline constexpr int kBuilderWarps = kBuilderThreads / 32;
inline constexpr int kNumSums = 1 + kMaxSegmentSizes;  // tokens, segments of each list
inline constexpr uint32_t kAllLanes = 0xFFFFFFFF;
inline constexpr int32_t kNoToken = -1;  // the key of a thread that has no token

/// Tables in shared memory, by key.
struct BuilderTables {
  uint8_t* warp_counts;  ///< [keys][warps] of this CTA's tokens
  int32_t* earlier;      ///< [keys] tokens of earlier CTAs
  int32_t* begins;  ///< [keys + 1] first counts of the other tokens, then where each key begins
  int32_t* first_segments;  ///< [lists][keys]
  int32_t num_keys;

  __device__ BuilderTables(void* shared, int32_t max_loras) : num_keys(max_loras + 1) {
    warp_counts = static_cast<uint8_t*>(shared);
    earlier = reinterpret_cast<int32_t*>(warp_counts + num_keys * kBuilderWarps);
    begins = earlier + num_keys;
    first_segments = begins + num_keys + 1;
  }
  static int64_t num_bytes(int64_t max_loras, int64_t num_lists) {
    return (max_loras + 1) * (kBuilderWarps + 4 * (2 + num_lists)) + 4;
  }

  /// Sets all counts to zero.
  __device__ void clear() {
    static_assert(kBuilderWarps == 2 * sizeof(uint4));
    for (int i = int(threadIdx.x); i < 2 * num_keys; i += kBuilderThreads) {
      reinterpret_cast<uint4*>(warp_counts)[i] = make_uint4(0, 0, 0, 0);
    }
    for (int i = int(threadIdx.x); i < 2 * num_keys; i += kBuilderThreads) earlier[i] = 0;
  }

  /// Tokens of the key in the warps before `warp`: the sum of the first `warp` bytes of its row.
  __device__ int32_t in_earlier_warps(int32_t key, int warp) const {
    const auto* const row = reinterpret_cast<const uint32_t*>(warp_counts + key * kBuilderWarps);
    uint32_t sum = 0;
#pragma unroll
    for (int word = 0; word < kBuilderWarps / 4; ++word) {
      const int num_warps = min(max(warp - 4 * word, 0), 4);
      const auto mask = uint32_t((uint64_t(1) << (8 * num_warps)) - 1);
      sum = __dp4a(row[word] & mask, 0x01010101u, sum);
    }
    return int32_t(sum);
  }
};

__device__ inline bool is_bad(int32_t slot, int32_t max_loras) {
  return uint32_t(slot) + 1 > uint32_t(max_loras);
}
__device__ inline int32_t key_of(int32_t slot, int32_t max_loras) {
  return is_bad(slot, max_loras) ? 0 : slot + 1;
}

/// The slot of a token, or the pair of a row of experts.
template <bool kExperts>
__device__ inline int32_t slot_of(const SegmentBuilderParams& p, int32_t t) {
  if constexpr (kExperts)
    return pair_of(p.pairs, t);
  else
    return __ldg(p.token_to_slot + t);
}

/// Adds the tokens [first, last) to counts[key].
template <bool kExperts>
__device__ inline void count_tokens(const SegmentBuilderParams& p, int32_t first, int32_t last,
                                    int32_t* counts, int32_t* num_bad) {
  constexpr int kAtOnce = 8;  // loads in flight
  for (int32_t t = first + int(threadIdx.x); t < last; t += kAtOnce * kBuilderThreads) {
    int32_t slots[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      slots[i] = slot_of<kExperts>(p, min(t + i * kBuilderThreads, last - 1));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (t + i * kBuilderThreads >= last) break;
      atomicAdd(counts + key_of(slots[i], p.max_loras), 1);
      if (is_bad(slots[i], p.max_loras)) atomicAdd(num_bad, 1);
    }
  }
}

/// Of one key, or of all: tokens, and segments of each list.
struct KeySums {
  int32_t of[kNumSums] = {};
};

__device__ inline int32_t inclusive_warp_sum(int32_t value) {
  using Scan = cub::WarpScan<int32_t>;
  typename Scan::TempStorage none;  // a whole warp scans by shuffles
  Scan(none).InclusiveSum(value, value);
  return value;
}

/// `totals` plus the sums of all lower threads. Adds the sums of all threads to `totals`.
/// Two levels of warp scans: cub::BlockScan adds the 32 sums of the warps one after the other, and
/// a build takes a quarter longer.
__device__ inline KeySums exclusive_sums(const KeySums& sums, KeySums& totals) {
  __shared__ int32_t warp_sums[kNumSums][kBuilderWarps];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  KeySums before;
#pragma unroll
  for (int i = 0; i < kNumSums; ++i) {
    const int32_t inclusive = inclusive_warp_sum(sums.of[i]);
    if (lane == 31) warp_sums[i][warp] = inclusive;
    before.of[i] = totals.of[i] + inclusive - sums.of[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kNumSums; ++i) {
    const int32_t of_warps = inclusive_warp_sum(warp_sums[i][lane]);
    const int32_t lower_warps = __shfl_sync(kAllLanes, of_warps, max(warp - 1, 0));
    if (warp > 0) before.of[i] += lower_warps;
    totals.of[i] += __shfl_sync(kAllLanes, of_warps, kBuilderWarps - 1);
  }
  __syncthreads();  // warp_sums may be used again
  return before;
}

/// Turns counts into where each key begins, in the sorted tokens and in each list. `totals` are
/// those of the step.
__device__ inline void scan_keys(const SegmentBuilderParams& p, const BuilderTables& tables,
                                 KeySums& totals) {
  for (int32_t first = 0; first < tables.num_keys; first += kBuilderThreads) {
    const int32_t key = first + int(threadIdx.x);
    const bool exists = key < tables.num_keys;
    const int32_t count = exists ? tables.earlier[key] + tables.begins[key] : 0;
    KeySums sums{{count}};
#pragma unroll
    for (int i = 0; i < kMaxSegmentSizes; ++i) {
      if (i >= p.num_lists || key == 0) continue;  // base tokens belong to no segment
      sums.of[1 + i] = count / p.lists[i].segment_size + (count % p.lists[i].segment_size != 0);
    }
    const KeySums before = exclusive_sums(sums, totals);
    if (!exists) continue;
    tables.begins[key] = before.of[0];
#pragma unroll
    for (int i = 0; i < kMaxSegmentSizes; ++i) {
      if (i < p.num_lists) tables.first_segments[i * tables.num_keys + key] = before.of[1 + i];
    }
  }
  if (threadIdx.x == 0) tables.begins[tables.num_keys] = totals.of[0];
}

/// Writes token t, which has `rank` others of its key before it, and the segments that begin with
/// it.
__device__ inline void place_token(const SegmentBuilderParams& p, const BuilderTables& tables,
                                   int32_t t, int32_t key, int32_t rank) {
  const int32_t at = tables.begins[key] + rank;
  p.token_indices[at] = t;
  if (key == 0) return;
#pragma unroll
  for (int i = 0; i < kMaxSegmentSizes; ++i) {
    if (i >= p.num_lists || rank % p.lists[i].segment_size != 0) continue;
    const int32_t segment =
        tables.first_segments[i * tables.num_keys + key] + rank / p.lists[i].segment_size;
    reinterpret_cast<int4*>(p.lists[i].segments)[segment] =
        make_int4(key - 1, at, min(p.lists[i].segment_size, tables.begins[key + 1] - at), 0);
  }
}

template <bool kExperts>
__global__ void __launch_bounds__(kBuilderThreads, 1)
    build_segments_kernel(const SegmentBuilderParams p) {
  extern __shared__ uint4 shared[];
  __shared__ int32_t num_bad;
  BuilderTables tables(shared, p.max_loras);
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int32_t asked = p.num_tokens_used == nullptr ? p.num_tokens : *p.num_tokens_used;
  const int32_t num_tokens = min(max(asked, 0), p.num_tokens);
  const int32_t begin = int32_t(blockIdx.x) * kBuilderThreads;
  const int32_t end = min(begin + kBuilderThreads, num_tokens);
  if (begin >= end && blockIdx.x > 0) return;

  const int32_t t = begin + int(threadIdx.x);
  const int32_t slot = t < end ? slot_of<kExperts>(p, t) : kNoToken;
  tables.clear();
  if (threadIdx.x == 0) num_bad = asked != num_tokens;
  __syncthreads();

  const int32_t key = t < end ? key_of(slot, p.max_loras) : kNoToken;
  const uint32_t peers = __match_any_sync(kAllLanes, key);
  const int lower_lanes = __popc(peers & ((1u << lane) - 1));
  if (key != kNoToken && lower_lanes == 0) {
    tables.warp_counts[key * kBuilderWarps + warp] = uint8_t(__popc(peers));
    atomicAdd(tables.begins + key, __popc(peers));
  }
  if (is_bad(slot, p.max_loras)) atomicAdd(&num_bad, 1);
  count_tokens<kExperts>(p, 0, begin, tables.earlier, &num_bad);
  count_tokens<kExperts>(p, end, num_tokens, tables.begins, &num_bad);
  __syncthreads();

  KeySums totals;
  scan_keys(p, tables, totals);
  __syncthreads();

  if (key != kNoToken) {
    place_token(p, tables, t, key,
                tables.earlier[key] + tables.in_earlier_warps(key, warp) + lower_lanes);
  }
  if (blockIdx.x > 0 || threadIdx.x > 0) return;
#pragma unroll
  for (int i = 0; i < kMaxSegmentSizes; ++i) {
    if (i < p.num_lists) *p.lists[i].num_segments = totals.of[1 + i];
  }
  *p.num_bad_entries += num_bad;
}

}  // namespace loratory::gpu
