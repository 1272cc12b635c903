#pragma once

#include <cuda.h>

#include "gpu/kernels/bulk_tensor.cuh"
#include "gpu/kernels/fragments.cuh"
#include "gpu/kernels/wgmma_narrow.cuh"
#include "gpu/product/skinny_plan.hpp"

// A CTA of the skinny kernel: warp 4 loads, warps 0 to 3 multiply. The tokens are the 64 rows of
// wgmma and the columns of y its columns, because those come in steps of 8: a tile can be as narrow
// as one SM's share of N. Shared memory has rows of x for the tokens alone. Eight stand for all 64;
// behind more of them the products read whatever lies there, which no row of a token meets.

namespace loratory::gpu {

template <typename T, int kTileColumns>
struct SkinnyConfig {
  using Weight = T;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kPanels = kColumns <= 64 ? 2 : 1;
  static constexpr int kWgmmaColumns = kColumns % 64 == 0   ? 64
                                       : kColumns % 32 == 0 ? 32
                                       : kColumns % 24 == 0 ? 24
                                                            : 16;
  static constexpr int kNumWgmma = kColumns / kWgmmaColumns;  // side by side
  static constexpr int kRowBytes = 2 * kPanelDepth;
  static constexpr int kWeightBytes = kPanels * kColumns * kRowBytes;  // of a stage
  static constexpr int kNumThreads = 5 * 32;
};

/// A place in the pipeline: the stage, and how often its barriers have turned.
struct SkinnyPlace {
  int stage = 0, parity = 0;
  __device__ void advance(int num_stages) {
    if (++stage == num_stages) stage = 0, parity ^= 1;
  }
};

template <typename C>
class SkinnyCta {
 public:
  __device__ SkinnyCta(const SkinnyParams& params, std::byte* dynamic, uint64_t* full,
                       uint64_t* empty)
      : p(params),
        stages_(dynamic + (1024 - shared_address(dynamic) % 1024) % 1024),
        full_(full),
        empty_(empty),
        rank_(cluster_rank()),
        cluster_(cluster_size()) {}

  __device__ void run(const CUtensorMap& weights, const CUtensorMap& x) {
    if (threadIdx.x < 32) init_barriers();
    if (threadIdx.x == 128) {
      prefetch_map(weights);
      prefetch_map(x);
    }
    launch_dependents();
    __syncwarp();
    cluster_arrive();
    cluster_wait();
    if (threadIdx.x >= 128) {
      if (is_elected()) load_all(weights, x);
      __syncwarp();
    } else {
      multiply_all();
    }
    __syncwarp();
    cluster_arrive();  // a neighbour may still send x here, or arrive at a barrier
    cluster_wait();
  }

 private:
  const SkinnyParams& p;
  std::byte* const stages_;
  uint64_t *const full_, *const empty_;
  const int rank_, cluster_;

  /// One warp.
  __device__ void init_barriers() {
    static_assert(kMaxSkinnyStages <= 32);
    const int stage = int(threadIdx.x) % 32;
    if (stage >= p.num_stages) return;
    init_barrier(full_ + stage, 1);
    init_barrier(empty_ + stage, 4 * cluster_);
  }

  // --- loads ----------------------------------------------------------------------------------

  /// One thread. The first stages take their weights while the previous kernel still runs. A stage
  /// of a narrow tile is short, 400 cycles at the rate of DRAM: places are added up, not computed.
  __device__ void load_all(const CUtensorMap& weights, const CUtensorMap& x) const {
    const int total = num_items() * p.num_steps;
    const int ahead = min(total, p.num_stages);
    Source from = source(0);
    for (int i = 0; i < ahead; ++i) {
      load_weights(weights, from);
      advance(from);
    }
    wait_for_prior_grid();
    fence_global_for_bulk_copies();
    from = source(0);
    for (int i = 0; i < ahead; ++i) {
      load_x(x, from);
      advance(from);
    }
    SkinnyPlace freed;
    for (int i = ahead; i < total; ++i) {
      wait_for_bytes(empty_ + freed.stage, freed.parity);
      load_weights(weights, from);
      load_x(x, from);
      advance(from);
      freed.advance(p.num_stages);
    }
  }

  // --- products -------------------------------------------------------------------------------

  __device__ void multiply_all() {
    SkinnyPlace place;
    for (int i = 0; i < num_items(); ++i) {
      float sums[C::kNumWgmma][C::kWgmmaColumns / 2];
      int previous = -1;
      for (int step = 0; step < p.num_steps; ++step) {
        wait_for_bytes(full_ + place.stage, place.parity);
        multiply(stages_ + place.stage * p.stage_bytes, step > 0, sums);
        wait_for_older_wgmma<1>();
        if (previous >= 0) release(previous);
        previous = place.stage;
        place.advance(p.num_stages);
      }
#pragma unroll
      for (int j = 0; j < C::kNumWgmma; ++j) wait_for_sums(sums[j]);
      release(previous);
      store(item(i), sums);
    }
  }

  // --- items ----------------------------------------------------------------------------------

  /// The items of this cluster are first, first + number of clusters, ...: token blocks of one
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
    return {at % p.num_token_blocks * kSkinnyTokens,
            (at / p.num_token_blocks * cluster_ + rank_) * C::kColumns};
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

  __device__ void load_weights(const CUtensorMap& map, const Source& from) const {
    uint64_t* const full = full_ + from.stage;
    std::byte* const to = stages_ + from.stage * p.stage_bytes;
    expect_bytes(full, p.stage_bytes);
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
      load_box(to + panel * C::kColumns * C::kRowBytes, map, from.k + panel * kPanelDepth,
               from.item.first_column, full, kEvictFirst);
    }
  }
  /// Of a cluster, each CTA loads some of the rows for all.
  __device__ void load_x(const CUtensorMap& map, const Source& from) const {
    const int first = rank_ * p.x_rows_of_cta;
    uint64_t* const full = full_ + from.stage;
    std::byte* const to =
        stages_ + from.stage * p.stage_bytes + C::kWeightBytes + first * C::kRowBytes;
    const int token = from.item.first_token + first;
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
      std::byte* const rows = to + panel * p.x_rows * C::kRowBytes;
      const int k = from.k + panel * kPanelDepth;
      if (cluster_ == 1)
        load_box(rows, map, k, token, full, kEvictLast);
      else
        multicast_box(rows, map, k, token, full, uint16_t((1 << cluster_) - 1), kEvictLast);
    }
  }

  /// Each warp says to every CTA that it has read the stage.
  __device__ void release(int stage) const {
    const int lane = int(threadIdx.x) % 32;
    if (lane < cluster_) arrive_at(empty_ + stage, lane);
  }

  /// A descriptor's address lies in its lower half and does not overflow it.
  __device__ static uint64_t moved(uint64_t descriptor, uint32_t by) {
    return (descriptor >> 32 << 32) | (uint32_t(descriptor) + by);
  }
  __device__ void multiply(const std::byte* stage, bool adds,
                           float (&sums)[C::kNumWgmma][C::kWgmmaColumns / 2]) const {
    // Rows of x eight apart are 0 bytes apart where eight rows stand for all: what tokens beyond
    // them get is not stored.
    const uint64_t no_stride = p.x_rows > kFewTokens ? 0 : uint64_t{1024 / 16} << 32;
    const uint64_t x = matrix_descriptor(stage + C::kWeightBytes) - no_stride;
    const uint64_t w = matrix_descriptor(stage);
    const uint32_t x_panel = uint32_t(p.x_rows * C::kRowBytes / 16);
    fence_wgmma();
#pragma unroll
    for (int k16 = 0; k16 < C::kPanels * 4; ++k16) {
      const int panel = k16 / 4, within = k16 % 4 * 2;
#pragma unroll
      for (int j = 0; j < C::kNumWgmma; ++j) {
        const int row = panel * C::kColumns + j * C::kWgmmaColumns;
        wgmma_any<typename C::Weight>(sums[j], moved(x, panel * x_panel + within),
                                      moved(w, row * C::kRowBytes / 16 + within), adds || k16 > 0);
      }
    }
    commit_wgmma();
  }

  // --- results ----------------------------------------------------------------------------------

  __device__ void store(const Item& of,
                        const float (&sums)[C::kNumWgmma][C::kWgmmaColumns / 2]) const {
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = of.first_token + 16 * warp + lane / 4 + 8 * half;
      if (token >= p.num_tokens) continue;
#pragma unroll
      for (int j = 0; j < C::kNumWgmma; ++j) {
#pragma unroll
        for (int n = 0; n < C::kWgmmaColumns / 8; ++n) {
          const int column = of.first_column + j * C::kWgmmaColumns + 8 * n + 2 * (lane % 4);
          store_two(token, column, sums[j][4 * n + 2 * half], sums[j][4 * n + 2 * half + 1]);
        }
      }
    }
  }
  __device__ void store_two(int token, int column, float a, float b) const {
    using Weight = typename C::Weight;
    const bool has_b = column + 1 < p.num_out;
    if (column >= p.num_out) return;
    if (p.bias != nullptr) {
      const auto* const bias = static_cast<const uint16_t*>(p.bias) + column;
      a += to_float<Weight>(bias[0]);
      if (has_b) b += to_float<Weight>(bias[1]);
    }
    const int64_t at = token * p.y_stride + column;
    if (p.out_is_f32) {
      store_two(static_cast<float*>(p.y) + at, a, b, has_b);
    } else if (p.in_pairs && has_b) {
      *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.y) + at) = pack<Weight>(a, b);
    } else {
      store_two(static_cast<uint16_t*>(p.y) + at, to_bits<Weight>(a), to_bits<Weight>(b), has_b);
    }
  }
  template <typename Out>
  __device__ void store_two(Out* y, Out a, Out b, bool has_b) const {
    y[0] = a;
    if (has_b) y[1] = b;
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    skinny_product_kernel(const __grid_constant__ CUtensorMap weights,
                          const __grid_constant__ CUtensorMap x,
                          const __grid_constant__ SkinnyParams params) {
  extern __shared__ std::byte dynamic[];
  __shared__ uint64_t full[kMaxSkinnyStages], empty[kMaxSkinnyStages];
  SkinnyCta<C>(params, dynamic, full, empty).run(weights, x);
}

using SkinnyKernel = void (*)(CUtensorMap, CUtensorMap, SkinnyParams);

/// The kernel of a tile width, or null. skinny_bf16.cu and skinny_f16.cu have them.
template <typename Weight>
SkinnyKernel skinny_kernel_of(int columns);

template <typename Weight, int... kColumns>
SkinnyKernel skinny_kernel_in(int columns) {
  SkinnyKernel found = nullptr;
  ((found = columns == kColumns ? skinny_product_kernel<SkinnyConfig<Weight, kColumns>> : found),
   ...);
  return found;
}

}  // namespace loratory::gpu
