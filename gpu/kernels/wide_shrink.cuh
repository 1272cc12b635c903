#pragma once

#include <type_traits>

#include "gpu/kernels/mma_product.cuh"
#include "gpu/kernels/quantized_wgmma.cuh"
#include "gpu/kernels/quantized_wide.cuh"
#include "gpu/kernels/wgmma_product.cuh"
#include "gpu/kernels/wide_pipeline.cuh"

namespace loratory::gpu {

/// h of a wide work tile. A CTA goes through its splits strip by strip and delivers the sums that
/// its registers hold.
template <typename C>
class WideShrink {
 public:
  __device__ explicit WideShrink(const Context<C>& context)
      : c(context), p(context.p), pipeline_(context), product_(context) {}

  __device__ void begin(const WorkTile& work) { pipeline_.begin(work); }
  __device__ void begin_x(const WorkTile&) { pipeline_.begin_x(); }

  /// Sums, and delivers the sums. The pipeline is free once all threads have returned.
  __device__ void run(const WorkTile& work, ClusterReduction<C>& reduction) {
    const bool works = product_.has_work(work);
    if constexpr (C::kWidens)
      pipeline_.widen_first();
    else if constexpr (C::kIsQuantized)
      product_.begin(work);
#pragma unroll
    for (int pass = 0; pass < C::kNumPasses; ++pass) {
      Sums total;
      sum_pass(works, total);
      reduction.begin_block(work, work.first_block);
      if (works) product_.deliver(work, reduction, c.cta + pass, total);
    }
  }

 private:
  using WideProduct = std::conditional_t<C::kWgmma, WgmmaProduct<C>, MmaProduct<C>>;
  static constexpr bool kTakesBytes = C::kIsQuantized && !C::kWgmma;
  using Product = std::conditional_t<kTakesBytes, QuantizedProduct<C>, WideProduct>;
  using PipelineOfBytes = std::conditional_t<C::kWgmma, WideningPipeline<C>, QuantizedPipeline<C>>;
  using Sums = typename Product::Sums;
  static constexpr int kSums = sizeof(Sums) / sizeof(float);

  const Context<C> c;
  const KernelParams& p;
  std::conditional_t<C::kIsQuantized, PipelineOfBytes, WidePipeline<C>> pipeline_;
  Product product_;

  /// Adds one, two or four splits as the balanced tree does. A split is added to the one before.
  /// The sum of the first pair is parked in shared memory and added to that of the second pair.
  /// Sums start from -0, which changes no bit.
  __device__ void sum_pass(bool works, Sums& total) {
    constexpr int kSplits = C::kSplitsPerCta / C::kNumPasses;
    static_assert(kSplits <= 4);
    if constexpr (kSplits == 1) {
      sum_split(works, total);
    } else {
#pragma unroll
      for (int j = 0; j < kSums; ++j) total[j] = -0.0F;
#pragma unroll 1
      for (int i = 0; i < kSplits; ++i) {
        if (i == 2) park_pair(total);
        Sums split;
        sum_split(works, split);
#pragma unroll
        for (int j = 0; j < kSums; ++j) total[j] += split[j];
      }
    }
    if constexpr (kSplits == 4) add_pair(total);
  }
  __device__ void sum_split(bool works, Sums& total) {
    if (strip_size(p.num_in) % 64 == 0)
      sum_split<false>(works, total);
    else
      sum_split<true>(works, total);
  }

  /// Sums each strip of a split from 0 and adds the strips in order to -0, which changes no bit.
  /// The products of a stage run while the pipeline refills. Where a strip ends in the middle of a
  /// stage, the two halves of the stage are multiplied one after the other.
  template <bool kHasHalves>
  __device__ void sum_split(bool works, Sums& total) {
    Sums acc;
#pragma unroll
    for (int j = 0; j < kSums; ++j) total[j] = -0.0F, acc[j] = 0;
    const int strip = strip_size(p.num_in);
    int left = strip;
#pragma unroll 1
    for (int i = pipeline_.num_k_tiles(); i > 0; --i) {
      end_step(strip, left, acc, total);
      const std::byte* const stage = pipeline_.wait_for_stage();
      __syncthreads();  // the whole stage has arrived, and the last one has been read
      if (works) {
        if (!kHasHalves || left >= 64) {
          start<64>(stage, 0, strip, left, acc);
        } else {
          start<32>(stage, 0, strip, left, acc);
          end_step(strip, left, acc, total);
          start<32>(stage, 32, strip, left, acc);
        }
      }
      pipeline_.refill();
    }
    end_step(strip, left, acc, total);
  }

  template <int kColumns>
  __device__ void start(const std::byte* stage, int column, int strip, int& left, Sums& acc) const {
    product_.template start<kColumns>(pipeline_.x_of(stage), pipeline_.a_of(stage), column,
                                      left < strip, acc);
    left -= kColumns;
  }

  /// Waits for what was started. It may complete a strip.
  __device__ static void end_step(int strip, int& left, Sums& acc, Sums& total) {
    Product::wait(acc);
    if (left > 0) return;
#pragma unroll
    for (int j = 0; j < kSums; ++j) total[j] += acc[j];
    left = strip;
  }

  /// A thread's own sums, four at a time.
  __device__ float4* parked() const { return c.parked() + threadIdx.x; }
  __device__ void park_pair(Sums& total) const {
#pragma unroll
    for (int j = 0; j < kSums; j += 4) {
      parked()[j / 4 * C::kNumThreads] = {total[j], total[j + 1], total[j + 2], total[j + 3]};
      total[j] = total[j + 1] = total[j + 2] = total[j + 3] = -0.0F;
    }
  }
  __device__ void add_pair(Sums& total) const {
#pragma unroll
    for (int j = 0; j < kSums; j += 4) {
      const float4 pair = parked()[j / 4 * C::kNumThreads];
      total[j] += pair.x, total[j + 1] += pair.y, total[j + 2] += pair.z, total[j + 3] += pair.w;
    }
  }
};

}  // namespace loratory::gpu
