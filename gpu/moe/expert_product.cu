#include <algorithm>
#include <cstdint>

#include "gpu/kernels/fragments.cuh"
#include "gpu/kernels/launch_kernel.cuh"
#include "gpu/kernels/ptx.cuh"
#include "gpu/moe/expert_tile.hpp"
#include "gpu/moe/moe_launch.hpp"
#include "gpu/plan/kernel_params.hpp"
#include "gpu/runtime/device_ability.hpp"

// A CTA takes items: a segment, rows of one expert, and a tile of its columns. Segments come first,
// so that CTAs side by side share the weights of an expert in L2. W and x go through a pipeline in
// shared memory (cp.async); W is the left operand of mma.sync, rows of x the right one.

namespace loratory::gpu {
namespace {

template <typename T, typename Tile>
class ExpertCta {
 public:
  __device__ ExpertCta(const ExpertProductLaunch& params, std::byte* stages, int* rows)
      : p(params), stages_(stages), rows_(rows) {}

  __device__ void run() {
    launch_dependents();
    const auto num_segments = uint32_t(__ldg(p.num_segments));
    const uint32_t num_tiles = uint32_t(p.num_out + Tile::kColumns - 1) / Tile::kColumns;
    bool has_waited = false;
    for (uint32_t item = blockIdx.x; item < num_segments * num_tiles; item += gridDim.x) {
      begin(item % num_segments, int(item / num_segments));
      load_first(has_waited);
      multiply_all();
      store();
      __syncthreads();  // stages and rows have been read
    }
    if (!has_waited) wait_for_prior_grid();
  }

 private:
  static constexpr int kAhead = Tile::kStages - 1;
  static constexpr int kXRows = (Tile::kRows + Tile::kRowsAtOnce - 1) / Tile::kRowsAtOnce;
  static constexpr int kWRows = Tile::kColumns / Tile::kRowsAtOnce;
  static constexpr int kGroups = Tile::kRows / 8;

  const ExpertProductLaunch& p;
  std::byte* const stages_;
  int* const rows_;  // [kRows] of y, in shared memory

  int num_rows_ = 0, first_column_ = 0;
  const T* weights_ = nullptr;  // of the expert
  const T* x_from_[kXRows];     // this thread's rows of x
  float acc_[Tile::kTiles][kGroups][4];

  __device__ static int lane() { return int(threadIdx.x) % 32; }
  __device__ static int warp() { return int(threadIdx.x) / 32; }
  __device__ static int row() { return int(threadIdx.x) / 8; }
  __device__ static int vec() { return int(threadIdx.x) % 8; }

  __device__ void begin(uint32_t segment, int tile) {
    const int4 raw = __ldg(reinterpret_cast<const int4*>(p.segments + segment));
    num_rows_ = raw.z;
    first_column_ = tile * Tile::kColumns;
    weights_ = static_cast<const T*>(p.weights) + raw.x * p.expert_stride;
    if (int(threadIdx.x) < Tile::kRows) {  // beyond the last row: that one again
      rows_[threadIdx.x] = __ldg(p.rows + raw.y + min(int(threadIdx.x), num_rows_ - 1));
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kXRows; ++i) {
      const uint32_t y_row = uint32_t(rows_[min(i * Tile::kRowsAtOnce + row(), Tile::kRows - 1)]);
      x_from_[i] = static_cast<const T*>(p.x) + int64_t(quotient(y_row, p.rows_per_x)) * p.x_stride;
    }
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc_[t][g][i] = 0;
      }
    }
  }

  // --- loads ----------------------------------------------------------------------------------

  __device__ int num_steps() const {
    return (p.num_in + 64 * Tile::kPanels - 1) / (64 * Tile::kPanels);
  }
  __device__ std::byte* stage(int step) const {
    return stages_ + step % Tile::kStages * Tile::kStageBytes;
  }

  /// The first item takes its weights while the previous kernel still runs.
  __device__ void load_first(bool& has_waited) const {
    for (int step = 0; step < kAhead; ++step) load_weights(step);
    if (!has_waited) wait_for_prior_grid();
    has_waited = true;
    for (int step = 0; step < kAhead; ++step) {
      load_x(step);
      commit_copies();
    }
  }

  /// What does not exist becomes 0: rows beyond N, columns beyond K.
  __device__ void load_weights(int step) const {
    if (step >= num_steps()) return;
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      const int column = (step * Tile::kPanels + panel) * 64 + 8 * vec();
      std::byte* const to = stage(step) + panel * Tile::kPanelBytes;
#pragma unroll
      for (int i = 0; i < kWRows; ++i) {
        const int place = i * Tile::kRowsAtOnce + row();
        const int n = first_column_ + Tile::column_of(place);
        const T* const from = weights_ + int64_t(n) * p.weight_stride + column;
        copy_async(to + swizzle_128b(place, vec()), from, n < p.num_out && column < p.num_in);
      }
    }
  }
  /// And rows beyond the segment.
  __device__ void load_x(int step) const {
    if (step >= num_steps()) return;
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      const int column = (step * Tile::kPanels + panel) * 64 + 8 * vec();
      std::byte* const to =
          stage(step) + panel * Tile::kPanelBytes + Tile::kColumns * Tile::kRowBytes;
#pragma unroll
      for (int i = 0; i < kXRows; ++i) {
        const int place = i * Tile::kRowsAtOnce + row();
        if (Tile::kRows % Tile::kRowsAtOnce != 0 && place >= Tile::kRows) continue;
        copy_async(to + swizzle_128b(place, vec()), x_from_[i] + column,
                   place < num_rows_ && column < p.num_in);
      }
    }
  }

  // --- products -------------------------------------------------------------------------------

  __device__ void multiply_all() {
    const int steps = num_steps();
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait_for_copies<kAhead - 1>();
      __syncthreads();  // the stage has arrived, and the one before it has been read
      load_weights(step + kAhead);
      load_x(step + kAhead);
      commit_copies();
#pragma unroll
      for (int panel = 0; panel < Tile::kPanels; ++panel) {
        multiply(stage(step) + panel * Tile::kPanelBytes);
      }
    }
    wait_for_copies<0>();
  }

  /// 64 numbers of K, in steps of 16.
  __device__ void multiply(const std::byte* w) {
    const std::byte* const x = w + Tile::kColumns * Tile::kRowBytes;
#pragma unroll
    for (int v = 0; v < 8; v += 2) {
      uint4 a[Tile::kTiles];
#pragma unroll
      for (int t = 0; t < Tile::kTiles; ++t) {
        a[t] = load_matrices(
            w + swizzle_128b(Tile::weight_place(warp(), t, lane()), Tile::weight_vec(v, lane())));
      }
      if constexpr (kGroups == 1) {
        multiply_group(a, x, v);
      } else {
#pragma unroll
        for (int g = 0; g < kGroups; g += 2) {
          const uint4 b =
              load_matrices(x + swizzle_128b(Tile::x_place(g, lane()), Tile::x_vec(v, lane())));
#pragma unroll
          for (int t = 0; t < Tile::kTiles; ++t) {
            mma<T>(acc_[t][g], a[t], b.x, b.y);
            mma<T>(acc_[t][g + 1], a[t], b.z, b.w);
          }
        }
      }
    }
  }
  /// Eight rows of x. Half of what ldmatrix brings is not used.
  __device__ void multiply_group(const uint4 (&a)[Tile::kTiles], const std::byte* x, int v) {
    const uint4 b =
        load_matrices(x + swizzle_128b(Tile::x_place(0, lane()), Tile::x_vec(v, lane())));
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) mma<T>(acc_[t][0], a[t], b.x, b.y);
  }

  // --- results ----------------------------------------------------------------------------------

  __device__ void store() const {
    const int column = first_column_ + Tile::first_column(warp(), lane());
    if (column >= p.num_out) return;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int place = Tile::row_of_sum(g, lane(), i);
        if (place >= num_rows_) continue;
        T* const y = static_cast<T*>(p.y) + rows_[place] * p.y_stride + column;
        uint32_t words[Tile::kTiles];
#pragma unroll
        for (int t = 0; t < Tile::kTiles; ++t) {
          words[t] = pack<T>(acc_[t][g][i], acc_[t][g][2 + i]);
        }
        if constexpr (Tile::kTiles == 2)
          *reinterpret_cast<uint2*>(y) = {words[0], words[1]};
        else
          *reinterpret_cast<uint32_t*>(y) = words[0];
      }
    }
  }
};

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kNumThreads, Tile::kCtasPerSm)
    expert_product_kernel(const __grid_constant__ ExpertProductLaunch p) {
  extern __shared__ __align__(128) std::byte stages[];
  __shared__ int rows[Tile::kRows];
  ExpertCta<T, Tile>(p, stages, rows).run();
}

// --- f32 --------------------------------------------------------------------------------------

constexpr int kPlainRows = 8, kPlainColumns = 32, kPlainDepth = 32;

/// A thread owns one sum of 8 rows and 32 columns, and adds its terms in the order of c.
__global__ void __launch_bounds__(kPlainRows* kPlainColumns)
    plain_expert_kernel(const __grid_constant__ ExpertProductLaunch p) {
  wait_for_prior_grid();
  launch_dependents();
  __shared__ float w[kPlainColumns][kPlainDepth + 1], x[kPlainRows][kPlainDepth + 1];
  const int column = int(threadIdx.x) % kPlainColumns, place = int(threadIdx.x) / kPlainColumns;
  const int num_segments = *p.num_segments;
  const int num_tiles = (p.num_out + kPlainColumns - 1) / kPlainColumns;
  for (int64_t item = blockIdx.x; item < int64_t(num_segments) * num_tiles; item += gridDim.x) {
    const Segment segment = p.segments[item % num_segments];
    const int first = int(item / num_segments) * kPlainColumns, n = first + column;
    const bool has_row = place < segment.num_tokens;
    const int64_t row = p.rows[segment.first + (has_row ? place : 0)];
    const auto* const from =
        static_cast<const float*>(p.x) + row / int32_t(p.rows_per_x) * p.x_stride;
    const auto* const weights =
        static_cast<const float*>(p.weights) + segment.slot * p.expert_stride;
    float sum = 0;
    for (int k = 0; k < p.num_in; k += kPlainDepth) {
      const int c = int(threadIdx.x) % kPlainDepth;  // kPlainDepth == kPlainColumns
      const bool exists = k + c < p.num_in;
      x[place][c] = has_row && exists ? from[k + c] : 0;
      for (int i = place; i < kPlainColumns; i += kPlainRows) {
        w[i][c] =
            exists && first + i < p.num_out ? weights[(first + i) * p.weight_stride + k + c] : 0;
      }
      __syncthreads();
      const int depth = min(kPlainDepth, p.num_in - k);
      for (int i = 0; i < depth; ++i) sum = __fmaf_rn(x[place][i], w[column][i], sum);
      __syncthreads();
    }
    if (has_row && n < p.num_out) static_cast<float*>(p.y)[row * p.y_stride + n] = sum;
  }
}
static_assert(kPlainDepth == kPlainColumns);

// --- launches ---------------------------------------------------------------------------------

/// As many CTAs as the GPU holds, or fewer if no step of this shape has work for them.
unsigned grid_of(const ExpertProductLaunch& p, int columns, int ctas_per_sm) {
  const int64_t items = int64_t{p.max_segments} * ((p.num_out + columns - 1) / columns);
  return unsigned(std::clamp<int64_t>(items, 1, int64_t{ctas_per_sm} * num_sms()));
}

template <typename T, typename Tile>
void launch_tile(const ExpertProductLaunch& p, CUstream_st* stream, LaunchOrder order) {
  const auto kernel = expert_product_kernel<T, Tile>;
  LORATORY_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           Tile::kSharedBytes));
  launch_kernel(kernel,
                {.grid = grid_of(p, Tile::kColumns, Tile::kCtasPerSm),
                 .block = unsigned(Tile::kNumThreads),
                 .shared_bytes = size_t(Tile::kSharedBytes)},
                stream, order, p);
}

template <typename T>
void launch_tiles(const ExpertProductLaunch& p, CUstream_st* stream, LaunchOrder order) {
  if (p.segment_size == 8) return launch_tile<T, NarrowExpertTile>(p, stream, order);
  if (p.segment_size == 32) return launch_tile<T, MiddleExpertTile>(p, stream, order);
  launch_tile<T, WideExpertTile>(p, stream, order);
}

}  // namespace

void launch_expert_product(const ExpertProductLaunch& p, CUstream_st* stream, LaunchOrder order) {
  switch (p.dtype) {
    case reference::Dtype::f32:
      return launch_kernel(
          plain_expert_kernel,
          {.grid = grid_of(p, kPlainColumns, 8), .block = kPlainRows * kPlainColumns}, stream,
          order, p);
    case reference::Dtype::f16:
      return launch_tiles<__half>(p, stream, order);
    default:
      return launch_tiles<__nv_bfloat16>(p, stream, order);
  }
}

}  // namespace loratory::gpu
