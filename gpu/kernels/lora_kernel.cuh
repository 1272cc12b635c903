#pragma once

#include "gpu/kernels/lora_narrow_expand.cuh"
#include "gpu/kernels/lora_narrow_shrink.cuh"
#include "gpu/kernels/lora_wgmma_expand.cuh"
#include "gpu/kernels/lora_wide_expand.cuh"
#include "gpu/kernels/lora_wide_shrink.cuh"

// The delta of a packed linear layer, y += scaling · (x A^T) B^T: each product in its own launch
// with h between them in global memory, or both in one. docs/kernels.md explains it.
//
// Work     A cluster of kCluster CTAs takes an equal share of all items (WorkList) and goes through
//          it in units: of a segment of tokens of one slot some blocks of the ranks of all slices
//          (shrink), or some of the columns (expand, one CTA). Both in one: one slice or all, and
//          some of the columns; clusters that share a segment compute all of its h again, since A
//          comes from L2 then.
// Order    K is cut into 8 groups of 8 chunks; the length of a chunk follows from K alone. A chunk
//          is summed in steps of 16; chunks are added in order, then groups as a balanced tree.
//          That order is the same for every stage, cluster size, segment size and column part, so a
//          row's bits depend on x, the weights and the layer only.
// Loads    What is multiplied is copied into rings in shared memory, 16 bytes a lane: weights
//          before the kernel in front has ended, as much as the rings hold, x, h and y after. What
//          does not exist is filled with 0 on the way: no NaN beyond a rank or beyond K is
//          multiplied.
// Launches A kernel lets the next one start when it starts itself, so that several wait on the GPU
//          with their weights in shared memory. A CTA without work ends at once, but for the first
//          cluster, which waits: so a launch never ends before the one in front of it.
// Memory   No atomics, no memset, nothing in global memory but x, A, B, y and h between launches.

namespace loratory::gpu {

template <typename C>
class LoraCta {
 public:
  __device__ LoraCta(const LinearParams& params, std::byte* shared)
      : p(params), c(params, shared), exchange_(c), shrink_(c), expand_(c) {}

  __device__ void run() {
    if constexpr (!C::kWide) let_next_kernel_start();  // a wide one: once y is settled
    warm_caches();
    const uint32_t num_clusters = gridDim.x / C::kCluster;
    const uint32_t cluster = blockIdx.x / C::kCluster;
    const WorkList work(p, *p.num_segments, cluster, num_clusters, C::kStage);
    if (cluster > 0 && work.first == work.end) return;  // makes room for the next kernel
    exchange_.init();
    if constexpr (C::kWide) {
      run_wide(work);
    } else {
      for (uint32_t item = work.first; item < work.end;) {
        const Unit unit = begin_unit(work, item, 0);
        if (has_work(unit)) run(unit);
      }
    }
    previous_.wait();
    exchange_.end();
  }

 private:
  const LinearParams& p;
  const Context<C> c;
  PreviousKernel previous_{.lets_next_start = C::kWide};
  Exchange<C> exchange_;
  std::conditional_t<C::kWide, WideShrink<C>, NarrowShrink<C>> shrink_;
  using ManyTokens = std::conditional_t<(C::kTileWarps > 1), WgmmaExpand<C>, WideExpand<C>>;
  std::conditional_t<C::kExpands && (C::kTokenTiles > 1), ManyTokens, NarrowExpand<C>> expand_;

  /// The whole cluster alike.
  __device__ static bool has_work(const Unit& unit) { return unit.first_block < unit.end_block; }

  /// The sums of a unit are added up while the next one's loads are under way.
  __device__ void run_wide(const WorkList& work) {
    uint32_t item = work.first;
    Unit unit = begin_wide_unit(work, item, 0);
    while (has_work(unit)) {
      shrink_.run(unit, exchange_);
      const Unit next = begin_wide_unit(work, item, 1 - unit.table);
      exchange_.finish_block(unit, unit.first_block);
      exchange_.end_unit(unit);
      if (has_work(next)) exchange_.begin_unit();
      unit = next;
    }
  }
  /// The next unit with work, and its first loads; after the last a unit without.
  __device__ Unit begin_wide_unit(const WorkList& work, uint32_t& item, int table) {
    Unit unit{};
    while (item < work.end && !has_work(unit)) unit = begin_unit(work, item, table);
    if (!has_work(unit)) return unit;
    shrink_.begin(unit);
    previous_.wait();
    shrink_.begin_x(unit);
    return unit;
  }

  /// Tokens and slices of a unit, for all threads to read. Moves `item` to the next unit.
  __device__ Unit begin_unit(const WorkList& work, uint32_t& item, int table) {
    const UnitItems items = work.unit_at(item, C::kWide);
    item += items.end - items.first;
    const uint32_t num_rest = quotient(p.num_slices, work.slices_each);
    const uint32_t tokens = quotient(items.whole, num_rest);  // a segment, or a part of one
    const uint32_t segment = quotient(tokens, p.segment_parts);
    const int4 raw = __ldg(reinterpret_cast<const int4*>(p.segments + segment));
    const int skipped = int(tokens - segment * p.segment_parts) * C::kTokens;
    Unit u{.first_token = raw.y + skipped,
           .num_tokens = min(raw.z - skipped, C::kTokens),
           .num_slices = int(work.slices_each),
           .table = table};
    if (u.num_tokens <= 0) return u;      // the whole cluster alike
    __syncthreads();                      // the unit before has been read
    if (int(threadIdx.x) < C::kTokens) {  // tokens that do not exist: the last one again
      const int i = min(int(threadIdx.x), u.num_tokens - 1);
      const int row = __ldg(p.token_indices + u.first_token + i);
      if constexpr (C::kTileWarps > 1)
        c.rows()[threadIdx.x] = row;
      else
        c.tokens(table)[threadIdx.x] = token_at(row);
    }
    if (c.warp == C::kNumWarps - 1) {
      const uint32_t first_slice = (items.whole - tokens * num_rest) * work.slices_each;
      describe_slices<C::kTileColumns, C::kHPadding>(p, raw.x, int(first_slice), u.num_slices,
                                                     c.slices(table));
    }
    __syncthreads();
    const UnitSlice& totals = c.slices(table)[u.num_slices];
    u.num_rank_tiles = totals.first_rank_tile;
    u.end_block = (u.num_rank_tiles + C::kRankTiles - 1) / C::kRankTiles;
    if constexpr (C::kExpands) {
      const uint32_t first = share(totals.first_tile, items.first, work.items_each);
      set_tiles(u, first, share(totals.first_tile, items.end, work.items_each) - first);
      u.end_h = totals.h_column;
      if (!C::kShrinks && C::kTokenTiles > 1 && u.num_slices > 1) set_h(u);
    } else {
      u.first_block = int(items.first);
      u.end_block = min(u.end_block, int(items.end));
      if (u.first_block >= u.end_block) item += work.items_each - items.end;  // so are the others
    }
    return u;
  }

  /// Where the loads of begin_unit() will wait for each other, all at once before: a thread a line.
  __device__ void warm_caches() const {
    constexpr int kEach = 128 / sizeof(Segment);
    const int segment = kEach * int(threadIdx.x);
    if (segment < p.max_segments) touch(p.segments + segment);
    const int token = 32 * int(threadIdx.x);
    if (token < p.max_segments) touch(p.token_indices + token);  // as many tokens, at least
    if (c.warp == C::kNumWarps - 1 && c.lane < p.num_slices) {
      touch(p.slices[c.lane].ranks);
      if constexpr (C::kExpands) touch(p.slices[c.lane].scalings);
    }
  }

  __device__ UnitToken token_at(int row) const {
    auto* const x = reinterpret_cast<const std::byte*>(p.x + row * p.x_row_stride);
    auto* const y =
        static_cast<std::byte*>(p.y) + row * p.y_row_stride * int64_t(sizeof(typename C::Out));
    auto* const h = reinterpret_cast<std::byte*>(p.h + row * p.h_row_stride);
    return {C::kStage == LoraStage::expand ? h : x, C::kStage == LoraStage::shrink ? h : y};
  }

  /// Divided among the CTAs of the cluster.
  __device__ void set_tiles(Unit& u, uint32_t first, uint32_t count) const {
    u.first_tile = int(first + share(count, c.cta, C::kCluster));
    u.end_tile = int(first + share(count, c.cta + 1, C::kCluster));
  }

  /// h of the slices that the tiles belong to. A unit of few tokens has mostly all.
  __device__ void set_h(Unit& u) const {
    if (u.first_tile == u.end_tile) return;
    u.first_h = c.slice_of(u, u.first_tile, &UnitSlice::first_tile).h_column;
    u.end_h = (&c.slice_of(u, u.end_tile - 1, &UnitSlice::first_tile) + 1)->h_column;
  }

  __device__ void run(const Unit& unit) {
    exchange_.begin_unit();
    if constexpr (C::kShrinks) shrink_.begin(unit);
    if constexpr (C::kExpands) expand_.begin(unit);
    if (!C::kShrinks && p.y_settled) expand_.begin_base(unit);
    previous_.wait();
    if constexpr (C::kShrinks) {
      shrink_.begin_x(unit);
      if constexpr (C::kExpands) expand_.begin_base(unit);
      shrink_.run(unit, exchange_);
    } else {
      load_h(unit);
      if constexpr (C::kWgmma) show_copies_to_wgmma();
    }
    if constexpr (C::kExpands) {
      __syncthreads();
      expand_.run(unit);
    }
  }

  // --- expand alone: h from global memory, eight ranks a thread -------------------------------

  using EightRanks = float[8];

  /// h is waited for first, so y is asked for behind it.
  __device__ void load_h(const Unit& unit) {
    const int count = unit.num_tokens * h_pieces(unit);
    int e = int(threadIdx.x);
    EightRanks v = {};
    if (e < count) read_h(unit, e, v);
    if (!p.y_settled) expand_.begin_base(unit);
    while (e < count) {
      store_h(unit, e, v);
      e += C::kNumThreads;
      if (e < count) read_h(unit, e, v);
    }
  }
  __device__ static int h_pieces(const Unit& unit) { return (unit.end_h - unit.first_h) / 8; }
  __device__ static int h_column(const Unit& unit, int e) {
    return unit.first_h + e % h_pieces(unit) * 8;
  }
  __device__ void read_h(const Unit& unit, int e, EightRanks& v) const {
    const int token = e / h_pieces(unit);
    const int column = h_column(unit, e);
    const UnitSlice& s = c.slice_of(unit, column, &UnitSlice::h_column);
    const int j = column - s.h_column;
    const float* const h = h_row(token) + s.index * p.h_slice_stride + j;
    if (p.h_aligned && j + 8 <= s.rank) {
      reinterpret_cast<float4&>(v[0]) = reinterpret_cast<const float4*>(h)[0];
      reinterpret_cast<float4&>(v[4]) = reinterpret_cast<const float4*>(h)[1];
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = j + i < s.rank ? h[i] : 0;
    }
  }
  __device__ const float* h_row(int token) const {
    if constexpr (C::kTileWarps > 1) return p.h + c.rows()[token] * p.h_row_stride;
    return reinterpret_cast<const float*>(c.tokens()[token].x);
  }
  __device__ void store_h(const Unit& unit, int e, const EightRanks& v) const {
    uint2 hi[2], lo[2];
    split<typename C::Weight>({v[0], v[1], v[2], v[3]}, 4, hi[0], lo[0]);
    split<typename C::Weight>({v[4], v[5], v[6], v[7]}, 4, hi[1], lo[1]);
    std::byte* const place = c.h_place(e / h_pieces(unit), h_column(unit, e));
    *reinterpret_cast<uint4*>(place) = {hi[0].x, hi[0].y, hi[1].x, hi[1].y};
    *reinterpret_cast<uint4*>(place + C::kLowBytes) = {lo[0].x, lo[0].y, lo[1].x, lo[1].y};
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kNumThreads,
                                  C::kCtasPerSm - (sizeof(typename C::Out) == 4 ? 1 : 0))
    lora_kernel(const __grid_constant__ LinearParams params) {
  extern __shared__ __align__(1024) std::byte shared[];
  LoraCta<C>(params, shared).run();
}

}  // namespace loratory::gpu
