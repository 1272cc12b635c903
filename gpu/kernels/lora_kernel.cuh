#pragma once

#include <type_traits>

#include "gpu/kernels/gated_pair.cuh"
#include "gpu/kernels/narrow_expand.cuh"
#include "gpu/kernels/narrow_shrink.cuh"
#include "gpu/kernels/quantized_h.cuh"
#include "gpu/kernels/wgmma_expand.cuh"
#include "gpu/kernels/wide_expand.cuh"
#include "gpu/kernels/wide_shrink.cuh"

// The delta of a packed linear layer, y += scaling · (x A^T) B^T: a shrink and an expand in two
// launches with h between them in global memory, or both in one. docs/kernels.md explains it.
//
// Work     A cluster takes an equal share of all work items (WorkList). It processes the share in
//          work tiles: the neighbouring items of one segment. A tile is some rank blocks of all
//          slices (shrink), or some columns, on one CTA (expand). A linear in one launch takes some
//          columns of one slice or of all. Clusters that share a segment compute all of its h
//          again, because A comes from L2 then.
// Order    K is cut into 8 splits of 8 strips; the length of a strip follows from K alone. A strip
//          is summed in steps of 16 columns. Strips are added in order, then splits as a balanced
//          tree. The order is the same for every operation, cluster, segment size and part of the
//          columns, so the bits of a row depend on x, the weights and the layer alone.
// Loads    Operands are copied into pipelines in shared memory, 16 bytes per lane. Weights are
//          fetched before the previous kernel has ended, as much as the pipelines hold; x, h and y
//          after. The copy fills with 0 what does not exist: no NaN beyond a rank or beyond K is
//          multiplied.
// Launches A kernel lets the next one start as soon as it runs, so that several wait on the GPU
//          with their weights in shared memory. A CTA without work ends at once. Only the first
//          cluster waits, so that a launch never ends before the previous one.
// SwiGLU   A gated expand writes the activation of y instead of y. A work tile's column tiles are
//          then of gate and up at once, and rows without an adapter are work as well. One of its
//          kernels shrinks the activation for the next layer too, split by split (NextShrink).
// Memory   No memset. Global memory holds x, A, B, y, and h between two launches. Of a shrink whose
//          CTAs meet there it also holds sums of splits, and the only atomic counts
//          (MemoryReduction).

namespace loratory::gpu {

template <typename C>
class LoraCta {
 public:
  __device__ LoraCta(const KernelParams& params, std::byte* shared)
      : p(params), c(params, shared), reduction_(c), shrink_(c), expand_(c) {}

  __device__ void run() {
    if (!C::kSettlesY || p.x_is_ready) launch_dependents();  // else once y is settled
    const auto warmed = warm_caches();
    const uint32_t cluster = blockIdx.x / C::kCluster;
    const WorkList list(p, num_segments(), cluster, {C::kOp, C::kNumWarps});
    if (cluster > 0 && list.first == list.end) return;  // makes room for the next kernel
    reduction_.init();
    warmed.look(p.segments);
    if constexpr (C::kWide) {
      run_wide(list);
    } else {
      for (uint32_t item = list.first; item < list.end;) {
        const WorkTile work = begin_work(list, item, 0);
        if (has_work(work)) run(work);
      }
    }
    if (C::kThroughMemory && cluster > 0) return;  // makes room for CTAs that have not begun
    prior_.wait();
    reduction_.end();
  }

 private:
  const KernelParams& p;
  const Context<C> c;
  PriorGrid prior_{.launches_dependents = C::kSettlesY};
  Reduction<C> reduction_;
  std::conditional_t<C::kWide, WideShrink<C>, NarrowShrink<C>> shrink_;
  using ManyTokens = std::conditional_t<(C::kPipelineWarps > 1), WgmmaExpand<C>, WideExpand<C>>;
  std::conditional_t<C::kExpands && (C::kTokenTiles > 1), ManyTokens, NarrowExpand<C>> expand_;

  struct Nothing {
    __device__ explicit Nothing(const KernelParams&) {}
  };
  std::conditional_t<C::kGated, GatedSegments<C>, Nothing> gated_{p};

  __device__ uint32_t num_segments() const {
    if constexpr (C::kGated) return gated_.count(p);
    return *p.num_segments;
  }
  __device__ int4 segment_at(uint32_t i) const {
    if constexpr (C::kGated) return gated_.at(p, i);
    return __ldg(reinterpret_cast<const int4*>(p.segments + i));
  }

  /// All CTAs of a cluster answer alike. Rows without a rank have an activation too.
  __device__ static bool has_work(const WorkTile& work) {
    if constexpr (C::kGated) return work.num_tokens > 0;
    return work.first_block < work.end_block;
  }

  /// The loads of the next work tile run while the sums of this one are reduced.
  __device__ void run_wide(const WorkList& list) {
    uint32_t item = list.first;
    WorkTile work = begin_wide_work(list, item, 0);
    while (has_work(work)) {
      shrink_.run(work, reduction_);
      const WorkTile next = begin_wide_work(list, item, 1 - work.table);
      reduction_.reduce_block(work, work.first_block);
      reduction_.end_work(work);
      if (has_work(next)) reduction_.begin_work();
      work = next;
    }
  }
  /// Finds the next tile with work and starts its loads. After the last one it returns a tile
  /// without work.
  __device__ WorkTile begin_wide_work(const WorkList& list, uint32_t& item, int table) {
    WorkTile work{};
    while (item < list.end && !has_work(work)) work = begin_work(list, item, table);
    if (!has_work(work)) return work;
    shrink_.begin(work);
    if (!p.x_is_ready) prior_.wait();
    shrink_.begin_x(work);
    return work;
  }

  /// Writes the tokens and slices of a work tile where all threads read them. Moves `item` to the
  /// next tile.
  __device__ WorkTile begin_work(const WorkList& list, uint32_t& item, int table) {
    const ItemRange items = list.item_range_at(item, C::kWide || C::kShrinksNext);
    item += items.end - items.first;
    constexpr bool kFuses = C::kGated || C::kOp == LoraOp::shrink;  // always all slices together
    const bool fuses = kFuses || list.fuses_slices();
    // A segment, or a part of one.
    const uint32_t tokens = fuses ? items.problem : quotient(items.problem, p.num_slices);
    const int num_slices = C::kGated ? 2 : fuses ? int(p.num_slices) : 1;
    // 1 of a wide shrink too, but ptxas spills where it knows that.
    const Divisor parts = C::kShrinks && !C::kWide ? Divisor() : p.parts_per_segment;
    const uint32_t segment = quotient(tokens, parts);
    const int4 raw = segment_at(segment);
    const int skipped = int(tokens - segment * uint32_t(parts)) * C::kTokens;
    WorkTile w{.first_token = raw.y + skipped,
               .num_tokens = min(raw.z - skipped, C::kTokens),
               .num_slices = num_slices,
               .table = table,
               .slot = raw.x};
    if (w.num_tokens <= 0) return w;      // all CTAs of the cluster alike
    __syncthreads();                      // the last tile's table has been read
    if (int(threadIdx.x) < C::kTokens) {  // beyond the last token: that one again
      const int i = min(int(threadIdx.x), w.num_tokens - 1);
      const int row = __ldg(p.token_indices + w.first_token + i);
      if constexpr (C::kKeepsRows)
        c.rows()[threadIdx.x] = row;
      else
        c.tokens(table)[threadIdx.x] = token_at(row);
      if constexpr (!C::kShrinks)
        c.weights()[threadIdx.x] = p.router_weights == nullptr ? 1 : __ldg(p.router_weights + row);
    }
    if (c.warp == C::kNumWarps - 1) {
      const int first_slice = fuses ? 0 : int(items.problem - tokens * uint32_t(p.num_slices));
      describe_slices<C>(p, raw.x, first_slice, w.num_slices, c.slices(table));
    }
    __syncthreads();
    const TileSlice& totals = c.slices(table)[w.num_slices];
    w.num_rank_tiles = totals.first_rank_tile;
    w.end_block = (w.num_rank_tiles + C::kRankTiles - 1) / C::kRankTiles;
    if constexpr (C::kExpands) {
      const uint32_t first = first_column_tile(totals, items.first, list);
      set_columns(w, first, first_column_tile(totals, items.end, list) - first);
      w.end_h = totals.h_column;
      if (!C::kShrinks && !C::kGated && C::kTokenTiles > 1 && w.num_slices > 1) set_h(w);
    } else {
      w.first_block = int(items.first);
      w.end_block = min(w.end_block, int(items.end));
      // An adapter of fewer ranks: the other items of the problem have no work either.
      if (w.first_block >= w.end_block) item += list.items_per_problem() - items.end;
    }
    return w;
  }

  static constexpr int kLines = C::kExpands ? 5 : C::kWide ? 3 : 4;
  using WarmLines = gpu::WarmLines<kLines>;

  /// Asks at once for all that begin_work() waits for in turn, one line per thread.
  __device__ WarmLines warm_caches() const {
    WarmLines lines;
    constexpr int kEach = 128 / sizeof(Segment);
    const int segment = kEach * int(threadIdx.x);
    if (segment < p.max_segments) lines.load(0, p.segments + segment);
    const int token = 32 * int(threadIdx.x);
    if (token < p.max_segments) lines.load(1, p.token_indices + token);  // at least as many tokens
    if (c.warp == C::kNumWarps - 1 && c.lane < p.num_slices) {
      lines.load(2, p.slices[c.lane].ranks);
      if constexpr (C::kExpands) lines.load(3, p.slices[c.lane].scalings);
    }
    if constexpr (!C::kWide) {
      constexpr int kSector = 32;
      const int in_slices = kSector * int(threadIdx.x);
      if (in_slices < int(sizeof(SliceParams)) * p.num_slices) {
        lines.load_parameter(kLines - 1, slices_in_memory(p) + in_slices);
      }
    }
    return lines;
  }

  __device__ TileToken token_at(int row) const {
    const int64_t x_row = quotient(uint32_t(row), p.rows_per_x);
    auto* const x =
        reinterpret_cast<const std::byte*>(p.x) + x_row * p.x_row_stride * int64_t{C::kXBytes};
    auto* const y =
        static_cast<std::byte*>(p.y) + row * p.y_row_stride * int64_t(sizeof(typename C::Out));
    auto* const h = reinterpret_cast<std::byte*>(p.h) + row * p.h_row_stride * int64_t{C::kHBytes};
    return {C::kShrinks ? x : h, C::kExpands ? y : h};
  }

  /// Of a work item.
  __device__ uint32_t first_column_tile(const TileSlice& totals, uint32_t item,
                                        const WorkList& list) const {
    const auto all = uint32_t(totals.first_column_tile);
    if constexpr (!C::kShrinksNext) return list.share_of_item(all, item);
    const int each = split_size(p.slices[0].num_out) / C::kTileColumns;
    return min(all, item * uint32_t(each));
  }

  /// Divides the column tiles among the CTAs of the cluster.
  __device__ void set_columns(WorkTile& work, uint32_t first, uint32_t count) const {
    work.first_column_tile = int(first + share(count, c.cta, C::kCluster));
    work.end_column_tile = int(first + share(count, c.cta + 1, C::kCluster));
  }

  /// Narrows h to the slices that the column tiles belong to. A narrow tile mostly needs all.
  __device__ void set_h(WorkTile& work) const {
    if (work.first_column_tile == work.end_column_tile) return;
    work.first_h = c.slice_of(work, work.first_column_tile, &TileSlice::first_column_tile).h_column;
    const TileSlice& last =
        c.slice_of(work, work.end_column_tile - 1, &TileSlice::first_column_tile);
    work.end_h = (&last + 1)->h_column;
  }

  __device__ void run(const WorkTile& work) {
    reduction_.begin_work();
    if constexpr (C::kShrinks) shrink_.begin(work);
    if constexpr (C::kExpands) expand_.begin(work);
    if (!C::kShrinks && p.may_read_y_early) expand_.begin_base(work);
    if constexpr (C::kIsQuantized) prepare(work);
    if constexpr (C::kShrinks) {
      if (!p.x_is_ready) prior_.wait();
      shrink_.begin_x(work);
      if constexpr (C::kExpands) expand_.begin_base(work);
      shrink_.run(work, reduction_);
    } else {
      fetch_h(work);
    }
    if constexpr (C::kExpands) {
      __syncthreads();
      expand_.run(work);
    }
  }

  /// All that does not need h comes before the wait.
  __device__ void fetch_h(const WorkTile& work) {
    if constexpr (C::kTokenTiles == 1) expand_.find_first(work);
    const PlaceOfH first = place_of_h(work, int(threadIdx.x));
    wait_for_prior_grid();  // for each tile: a flag would cost a register
    load_h(work, first);
    if constexpr (C::kWgmma) fence_async_proxy();
  }

  /// What 8-bit weights need beyond the loads, done while the previous kernel runs.
  __device__ void prepare(const WorkTile& work) {
    if (prior_.waited || quantized(p).stages_ahead == 0) return;
    if constexpr (C::kShrinks)
      shrink_.prepare(work);
    else if constexpr (C::kTokenTiles == 1)
      expand_.prepare(work);
  }

  // --- expand: h from global memory, eight ranks per thread -----------------------------------

  using EightRanks = float[8];

  /// Eight ranks of h, in global memory and in shared memory.
  struct PlaceOfH {
    const std::byte* from = nullptr;
    int to = 0;    // bytes from `shared` on; 0: nowhere
    int left = 0;  // ranks from here on
    float weight = 1;
  };
  /// Of vector e of the work tile's tokens and ranks.
  __device__ PlaceOfH place_of_h(const WorkTile& work, int e) const {
    const int of_token = (work.end_h - work.first_h) / 8;
    if (e >= work.num_tokens * of_token) return {};
    const int token = quotient_of_small(e, of_token);
    const int column = work.first_h + (e - token * of_token) * 8;
    const TileSlice& s = c.slice_of(work, column, &TileSlice::h_column);
    const int j = column - s.h_column;
    return {.from = h_row(token) + (s.index * p.h_slice_stride + j) * C::kHBytes,
            .to = int(place_in_shared(token, column) - c.shared),
            .left = s.rank - j,
            .weight = c.weights()[token]};
  }
  __device__ const std::byte* h_row(int token) const {
    if constexpr (!C::kKeepsRows) return c.tokens()[token].x;
    return reinterpret_cast<const std::byte*>(p.h) +
           c.rows()[token] * p.h_row_stride * int64_t{C::kHBytes};
  }
  static constexpr bool kPermutesH = C::kIsQuantized && !C::kWgmma;
  __device__ std::byte* place_in_shared(int token, int column) const {
    if constexpr (kPermutesH) return c.permuted_h(token, column);
    return c.h_address(token, column);
  }

  /// The first product waits for h, so y is requested after h.
  __device__ void load_h(const WorkTile& work, PlaceOfH at) {
    if constexpr (C::kHBytes == 1) {
      if (!C::kWgmma && quantized(p).quantizes_h) {
        return QuantizedH<C>(c).quantize(work, [&] {
          if (!p.may_read_y_early) expand_.begin_base(work);
        });
      }
      QuantizedH<C>(c).load_factors(work);
    }
    EightRanks v = {};
    read_h(at, v);
    if (!p.may_read_y_early) expand_.begin_base(work);
    for (int e = int(threadIdx.x); at.to > 0;) {
      if (p.router_weights != nullptr) weigh(at.weight, v);
      store_h(at, v);
      e += C::kNumThreads;
      at = place_of_h(work, e);
      read_h(at, v);
    }
  }
  __device__ void read_h(const PlaceOfH& at, EightRanks& v) const {
    if (at.to == 0) return;
    if constexpr (C::kHBytes == 1) return read_bits(at, v);
    const auto* const h = reinterpret_cast<const float*>(at.from);
    if (C::kWgmma && p.h_split_stride != 0) {
      add_splits(h, at.left, v);
    } else if (p.h_aligned && at.left >= 8) {
      reinterpret_cast<float4&>(v[0]) = reinterpret_cast<const float4*>(h)[0];
      reinterpret_cast<float4&>(v[4]) = reinterpret_cast<const float4*>(h)[1];
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = i < at.left ? h[i] : 0;
    }
  }
  /// h of a kernel that left the sums of its splits, four ranks at a time.
  __device__ void add_splits(const float* h, int left, EightRanks& v) const {
    const auto pair = [&](int split, int i) {
      const float* const at = h + split * p.h_split_stride + i;
      return added(*reinterpret_cast<const float4*>(at),
                   *reinterpret_cast<const float4*>(at + p.h_split_stride));
    };
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      float4 sum{};
      if (i < left) sum = added(added(pair(0, i), pair(2, i)), added(pair(4, i), pair(6, i)));
      reinterpret_cast<float4&>(v[i]) = sum;
    }
  }
  /// The router weight of a delta meets h, which keeps more digits than y.
  __device__ static void weigh(float weight, EightRanks& v) {
#pragma unroll
    for (float& h : v) h = __fmul_rn(h, weight);
  }
  /// 8-bit h, as numbers that f16 holds.
  __device__ void read_bits(const PlaceOfH& at, EightRanks& v) const {
    const auto* const h = reinterpret_cast<const uint8_t*>(at.from);
    uint64_t bits = 0;
    if (p.h_aligned && at.left >= 8) {
      bits = *reinterpret_cast<const uint64_t*>(h);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) bits |= uint64_t(i < at.left ? h[i] : 0) << 8 * i;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = decoded(quantized(p).h_dtype, uint8_t(bits >> 8 * i));
  }
  __device__ void store_h(const PlaceOfH& at, const EightRanks& v) const {
    std::byte* const to = c.shared + at.to;
    uint2 hi[2], lo[2];
    if constexpr (kPermutesH) {
      split_hi_lo<typename C::Split>({v[0], v[1], v[4], v[5]}, 4, hi[0], lo[0]);
      split_hi_lo<typename C::Split>({v[2], v[3], v[6], v[7]}, 4, hi[1], lo[1]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        *reinterpret_cast<uint2*>(to + 32 * i) = hi[i];
        *reinterpret_cast<uint2*>(to + 32 * i + C::kLowBytes) = lo[i];
      }
    } else {
      split_hi_lo<typename C::Split>({v[0], v[1], v[2], v[3]}, 4, hi[0], lo[0]);
      split_hi_lo<typename C::Split>({v[4], v[5], v[6], v[7]}, 4, hi[1], lo[1]);
      *reinterpret_cast<uint4*>(to) = {hi[0].x, hi[0].y, hi[1].x, hi[1].y};
      *reinterpret_cast<uint4*>(to + C::kLowBytes) = {lo[0].x, lo[0].y, lo[1].x, lo[1].y};
    }
  }
};

/// fp32 y takes twice the registers of a 16-bit one, which costs one CTA of eight warps per SM.
template <typename C>
__global__ void __launch_bounds__(C::kNumThreads,
                                  C::kCtasPerSm -
                                      (sizeof(typename C::Out) == 4 ? C::kCtasOfEightWarps : 0))
    lora_kernel(const __grid_constant__ KernelParams params) {
  extern __shared__ __align__(1024) std::byte shared[];
  LoraCta<C>(params, shared).run();
}

}  // namespace loratory::gpu
