#pragma once

#include <cuda.h>

#include <type_traits>

#include "gpu/kernels/bulk_tensor.cuh"
#include "gpu/kernels/wgmma.cuh"
#include "gpu/product/skinny_plan.hpp"
#include "gpu/product/skinny_results.cuh"

// A CTA of the skinny kernel: one or two warpgroups multiply, behind them one warp loads W and one
// x. Up to 64 tokens, columns of y are the rows of wgmma, 64 at a time, and tokens its columns,
// which come in steps of 8: few tokens take few cycles. More tokens are its rows, 64 for each of
// two warpgroups, and the tile's columns its columns, in steps of 16. What a product reads behind a
// tile's last rows and tokens meets no number of the tile.

namespace loratory::gpu {

template <typename T, int kTileColumns, int kMostTokens>
struct SkinnyConfig {
  using Weight = T;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kTokens = kMostTokens;  // of wgmma
  static constexpr int kPanels = skinny_panels(kColumns, kTokens);
  static constexpr int kGroups = skinny_groups(kTokens);
  static constexpr bool kTokensAreRows = tokens_are_rows(kTokens);
  static_assert(kTokens <= kGroups * kWgmmaRows);
  static constexpr int kNumWgmma = kTokensAreRows ? 1 : skinny_blocks(kColumns);  // side by side
  static constexpr int kWgmmaColumns = kTokensAreRows ? (kColumns + 15) / 16 * 16 : kTokens;
  using Sums = float[kNumWgmma][kWgmmaColumns / 2];  // of a thread
  static constexpr int kRowBytes = 2 * kPanelDepth;
  static constexpr int kWeightBytes = kPanels * kColumns * kRowBytes;  // of a stage
  static constexpr int kConsumers = 128 * kGroups;                     // threads
  static constexpr int kNumThreads = kConsumers + 2 * 32;
};

/// A place in the pipeline: the stage, and how often its barriers have turned.
struct SkinnyPlace {
  int stage = 0, parity = 0;
  __device__ void advance(int num_stages) {
    if (++stage == num_stages) stage = 0, parity ^= 1;
  }
};

/// Of each stage: its weights have come, its x has come, all have read it.
struct SkinnyBarriers {
  uint64_t weights[kMaxSkinnyStages], x[kMaxSkinnyStages], empty[kMaxSkinnyStages];
};

template <typename C>
class SkinnyCta {
 public:
  __device__ SkinnyCta(const SkinnyParams& params, std::byte* dynamic, SkinnyBarriers& barriers)
      : p(params),
        stages_(kept_address(dynamic + (1024 - shared_address(dynamic) % 1024) % 1024)),
        barriers_(kept_address(&barriers)),
        cluster_(cluster_size()),
        column_cta_(cluster_rank() % params.column_ctas),
        token_cta_(cluster_rank() / params.column_ctas),
        warp_(__shfl_sync(~0U, int(threadIdx.x) / 32, 0)),
        first_token_(C::kTokensAreRows ? warp_ / 4 * kWgmmaRows : 0) {}

  __device__ void run(const CUtensorMap& weights, const CUtensorMap& x) {
    if (warp_ == 0) init_barriers();
    if (threadIdx.x == C::kConsumers) prefetch_map(weights);
    if (threadIdx.x == C::kConsumers + 32) prefetch_map(x);
    __syncwarp();
    cluster_arrive();
    cluster_wait();
    if (warp_ > C::kConsumers / 32) {
      if (is_elected()) load_all_x(x);
    } else if (warp_ == C::kConsumers / 32) {
      if (is_elected()) load_all_weights(weights);
    } else {
      multiply_all();
    }
    __syncwarp();
    cluster_arrive();  // a neighbour may still send x here, or arrive at a barrier
    cluster_wait();
  }

 private:
  using Weight = typename C::Weight;
  using Sums = typename C::Sums;

  const SkinnyParams& p;
  std::byte* const stages_;
  SkinnyBarriers* const barriers_;
  const int cluster_;                 // CTAs
  const int column_cta_, token_cta_;  // this one's place among them
  const int warp_;                    // the compiler knows that its lanes have the same one
  const int first_token_;             // of this warpgroup

  /// One warp.
  __device__ void init_barriers() {
    static_assert(kMaxSkinnyStages <= 32);
    const int stage = int(threadIdx.x) % 32;
    if (stage >= p.num_stages) return;
    init_barrier(barriers_->weights + stage, 1);
    init_barrier(barriers_->x + stage, 1);
    init_barrier(barriers_->empty + stage, C::kConsumers / 32 * cluster_);
  }

  // --- loads ----------------------------------------------------------------------------------

  // A stage of a narrow tile is short, 400 cycles at the rate of DRAM. So what a loader asks for is
  // chosen before its loop, places are added up and nothing is divided.

  /// One thread. CTAs with other tokens and the same columns each load some of the rows for all.
  __device__ void load_all_weights(const CUtensorMap& map) const {
    const auto ctas = uint16_t((1 | 1 << p.column_ctas) << column_cta_);
    const bool multicasts = p.token_ctas > 1;
    if (multicasts && p.is_gated)
      stream_weights([&](std::byte* to, int k, int column, uint64_t* arrived) {
        multicast_halves(to, map, k, column / 16, arrived, ctas, kEvictFirst);
      });
    else if (multicasts)
      stream_weights([&](std::byte* to, int k, int column, uint64_t* arrived) {
        multicast_box(to, map, k, column, arrived, ctas, kEvictFirst);
      });
    else if (p.is_gated)
      stream_weights([&](std::byte* to, int k, int column, uint64_t* arrived) {
        load_halves(to, map, k, column / 16, arrived, kEvictFirst);
      });
    else
      stream_weights([&](std::byte* to, int k, int column, uint64_t* arrived) {
        load_box(to, map, k, column, arrived, kEvictFirst);
      });
  }
  /// One thread. CTAs side by side each load some of the rows for all.
  __device__ void load_all_x(const CUtensorMap& map) const {
    wait_for_prior_grid();
    launch_dependents();  // behind the wait: who comes next finds x ready
    fence_global_for_bulk_copies();
    const auto ctas = uint16_t(((1 << p.column_ctas) - 1) << token_cta_ * p.column_ctas);
    if (p.column_ctas > 1)
      stream_x([&](std::byte* to, int k, int token, uint64_t* arrived) {
        multicast_box(to, map, k, token, arrived, ctas, kEvictLast);
      });
    else
      stream_x([&](std::byte* to, int k, int token, uint64_t* arrived) {
        load_box(to, map, k, token, arrived, kEvictLast);
      });
  }

  /// The first stages take their weights while the previous kernel still runs. They do not all ask
  /// at once: a memory system with deep queues holds up the small kernels that this one waits for.
  template <typename Load>
  __device__ void stream_weights(const Load& load) const {
    const int total = num_items() * p.num_steps;
    const int first = token_cta_ * (C::kColumns / p.token_ctas);
    Source from = source(0);
    SkinnyPlace freed;
    for (int i = 0; i < total; ++i) {
      if (i >= p.num_stages) {
        wait_for_bytes(barriers_->empty + freed.stage, freed.parity);
        freed.advance(p.num_stages);
      } else if (i >= p.num_asked_ahead) {
        wait_for_bytes(barriers_->weights + i - p.num_asked_ahead, 0);
      }
      uint64_t* const arrived = barriers_->weights + from.stage;
      std::byte* const to = stages_ + from.stage * p.stage_bytes + first * C::kRowBytes;
      expect_bytes(arrived, C::kWeightBytes);
#pragma unroll
      for (int panel = 0; panel < C::kPanels; ++panel) {
        load(to + panel * C::kColumns * C::kRowBytes, from.k + panel * kPanelDepth,
             from.item.first_column + first, arrived);
      }
      advance(from);
    }
  }
  template <typename Load>
  __device__ void stream_x(const Load& load) const {
    const int total = num_items() * p.num_steps;
    const int first = column_cta_ * (p.x_rows / p.column_ctas);
    const int panel_bytes = p.x_rows * C::kRowBytes;
    Source from = source(0);
    SkinnyPlace freed;
    for (int i = 0; i < total; ++i) {
      if (i >= p.num_stages) {
        wait_for_bytes(barriers_->empty + freed.stage, freed.parity);
        freed.advance(p.num_stages);
      }
      uint64_t* const arrived = barriers_->x + from.stage;
      std::byte* const to =
          stages_ + from.stage * p.stage_bytes + C::kWeightBytes + first * C::kRowBytes;
      expect_bytes(arrived, C::kPanels * panel_bytes);
#pragma unroll
      for (int panel = 0; panel < C::kPanels; ++panel) {
        load(to + panel * panel_bytes, from.k + panel * kPanelDepth, from.item.first_token + first,
             arrived);
      }
      advance(from);
    }
  }

  // --- products -------------------------------------------------------------------------------

  __device__ void multiply_all() {
    SkinnyPlace place;
    for (int i = 0; i < num_items(); ++i) {
      Sums sums;
      int previous = -1;
      for (int step = 0; step < p.num_steps; ++step) {
        const Operands operands = operands_of(place.stage);
        wait_for_both(barriers_->x + place.stage, barriers_->weights + place.stage, place.parity);
        multiply(operands, step > 0, sums);
        wait_for_older_wgmma<1>();
        if (previous >= 0) release(previous);
        previous = place.stage;
        place.advance(p.num_stages);
      }
#pragma unroll
      for (int j = 0; j < C::kNumWgmma; ++j) wait_for_sums(sums[j]);
      release(previous);
      const Item of = item(i);
      SkinnyResults<C>(p, of.first_token + first_token_, of.first_column).store(sums);
    }
  }

  // --- items ----------------------------------------------------------------------------------

  /// The items of this cluster are first, first + number of clusters, ...: token groups of one
  /// group of tiles side by side, which then share its weights in L2.
  __device__ int num_items() const {
    const int first = int(blockIdx.x) / cluster_, stride = int(gridDim.x) / cluster_;
    return first < p.num_items ? (p.num_items - first + stride - 1) / stride : 0;
  }
  struct Item {
    int first_token, first_column;
  };
  __device__ Item item(int i) const {
    const int at = int(blockIdx.x) / cluster_ + i * (int(gridDim.x) / cluster_);
    return {(at % p.num_token_groups * p.token_ctas + token_cta_) * p.block_tokens,
            (at / p.num_token_groups * p.column_ctas + column_cta_) * C::kColumns};
  }

  /// What a stage holds, and which one it is.
  struct Source {
    int index, step, k, stage;
    Item item;
  };
  __device__ Source source(int index) const { return {index, 0, 0, 0, item(index)}; }
  __device__ void advance(Source& from) const {
    if (++from.stage == p.num_stages) from.stage = 0;
    from.k += C::kPanels * kPanelDepth;
    if (++from.step < p.num_steps) return;
    from.step = from.k = 0;
    from.item = item(++from.index);
  }

  /// Each warp says to every CTA that it has read the stage.
  __device__ void release(int stage) const {
    const int lane = int(threadIdx.x) % 32;
    if (lane < cluster_) arrive_at(barriers_->empty + stage, lane);
  }

  /// Of wgmma, where a stage's first numbers of K lie.
  struct Operands {
    uint64_t w, x;
  };
  __device__ Operands operands_of(int stage) const {
    const std::byte* const at = stages_ + stage * p.stage_bytes;
    return {uniform(matrix_descriptor(at)),
            uniform(matrix_descriptor(at + C::kWeightBytes + first_token_ * C::kRowBytes))};
  }
  /// Equal in all lanes, which the compiler cannot know: it would move each descriptor of a step
  /// from each lane's registers to those of the warp.
  __device__ static uint64_t uniform(uint64_t descriptor) {
    return (descriptor >> 32 << 32) | __shfl_sync(~0U, uint32_t(descriptor), 0);
  }
  /// A descriptor's address lies in its lower half and does not overflow it.
  __device__ static uint64_t moved(uint64_t descriptor, uint32_t by) {
    return (descriptor >> 32 << 32) | (uint32_t(descriptor) + by);
  }
  __device__ void multiply(const Operands& of, bool adds, Sums& sums) const {
    const uint32_t x_panel = uint32_t(p.x_rows * C::kRowBytes / 16);
    fence_wgmma();
#pragma unroll
    for (int k16 = 0; k16 < C::kPanels * 4; ++k16) {
      const int panel = k16 / 4, within = k16 % 4 * 2;
      const uint64_t x = moved(of.x, panel * x_panel + within);
#pragma unroll
      for (int j = 0; j < C::kNumWgmma; ++j) {
        const int row = panel * C::kColumns + j * kWgmmaRows;
        const uint64_t w = moved(of.w, row * C::kRowBytes / 16 + within);
        wgmma<Weight>(sums[j], C::kTokensAreRows ? x : w, C::kTokensAreRows ? w : x,
                      adds || k16 > 0);
      }
    }
    commit_wgmma();
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    skinny_product_kernel(const __grid_constant__ CUtensorMap weights,
                          const __grid_constant__ CUtensorMap x,
                          const __grid_constant__ SkinnyParams params) {
  extern __shared__ std::byte dynamic[];
  __shared__ SkinnyBarriers barriers;
  SkinnyCta<C>(params, dynamic, barriers).run(weights, x);
}

using SkinnyKernel = void (*)(CUtensorMap, CUtensorMap, SkinnyParams);

/// The kernel of a tile width and as many tokens of wgmma, or null. skinny_bf16.cu and
/// skinny_f16.cu have them.
template <typename Weight>
SkinnyKernel skinny_kernel_of(int columns, int tokens);

template <typename Weight, int... kColumns>
SkinnyKernel skinny_kernel_in(int columns, int tokens) {
  SkinnyKernel found = nullptr;
  const auto look = [&]<int kTokens>(std::integral_constant<int, kTokens>) {
    ((found = columns == kColumns && tokens == kTokens
                  ? skinny_product_kernel<SkinnyConfig<Weight, kColumns, kTokens>>
                  : found),
     ...);
  };
  look(std::integral_constant<int, 8>{});
  look(std::integral_constant<int, 32>{});
  look(std::integral_constant<int, 64>{});
  look(std::integral_constant<int, 128>{});
  return found;
}

}  // namespace loratory::gpu
