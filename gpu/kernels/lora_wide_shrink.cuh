#pragma once

#include "gpu/kernels/lora_mma_product.cuh"
#include "gpu/kernels/lora_wgmma_product.cuh"
#include "gpu/kernels/lora_wide_ring.cuh"

namespace loratory::gpu {

/// h of a unit of many tokens: a CTA of the cluster takes as many groups as there are for each,
/// goes through their chunks in order, and hands over what its registers hold.
template <typename C>
class WideShrink {
 public:
  __device__ explicit WideShrink(const Context<C>& context)
      : c(context), p(context.p), ring_(context), product_(context) {}

  __device__ void begin(const Unit& unit) { ring_.begin(unit); }
  __device__ void begin_x(const Unit&) { ring_.begin_x(); }

  /// Sums, and hands them over. The ring is free then, once all threads are through.
  __device__ void run(const Unit& unit, Exchange<C>& exchange) {
    const bool works = product_.has_work(unit);
#pragma unroll
    for (int part = 0; part < C::kParts; ++part) {
      Sums total;
      sum_part(works, total);
      exchange.begin_block(unit, unit.first_block);
      if (works) product_.hand_over(unit, exchange, c.cta + part, total);
    }
  }

 private:
  using Product = std::conditional_t<C::kWgmma, WgmmaProduct<C>, MmaProduct<C>>;
  using Sums = typename Product::Sums;
  static constexpr int kSums = sizeof(Sums) / sizeof(float);

  const Context<C> c;
  const LinearParams& p;
  WideRing<C> ring_;
  Product product_;

  /// One, two or four groups as the balanced tree adds them. A group is added to the one before,
  /// and a pair to the pair before, which waits in shared memory; the first to -0, which changes no
  /// bit.
  __device__ void sum_part(bool works, Sums& total) {
    constexpr int kGroups = C::kGroupsEach / C::kParts;
    static_assert(kGroups <= 4);
    if constexpr (kGroups == 1) {
      sum_group(works, total);
    } else {
#pragma unroll
      for (int j = 0; j < kSums; ++j) total[j] = -0.0F;
#pragma unroll 1
      for (int i = 0; i < kGroups; ++i) {
        if (i == 2) set_aside(total);
        Sums group;
        sum_group(works, group);
#pragma unroll
        for (int j = 0; j < kSums; ++j) total[j] += group[j];
      }
    }
    if constexpr (kGroups == 4) add_pair(total);
  }
  __device__ void sum_group(bool works, Sums& total) {
    if (chunk_size(p.num_in) % 64 == 0)
      sum_group<false>(works, total);
    else
      sum_group<true>(works, total);
  }

  /// The chunks of the group, each summed from 0, added in order: to -0, which changes no bit. The
  /// products of a stage run while the ring is refilled and the next stage comes. Where a chunk
  /// ends in the middle of it, its halves go one after the other.
  template <bool kHasHalves>
  __device__ void sum_group(bool works, Sums& total) {
    Sums acc;
#pragma unroll
    for (int j = 0; j < kSums; ++j) total[j] = -0.0F, acc[j] = 0;
    const int chunk = chunk_size(p.num_in);
    int left = chunk;
#pragma unroll 1
    for (int i = ring_.num_stages(); i > 0; --i) {
      end_step(chunk, left, acc, total);
      const std::byte* const stage = ring_.wait_for_stage();
      __syncthreads();  // all of it is there, and the one before has been read
      if (works) {
        if (!kHasHalves || left >= 64) {
          start<64>(stage, 0, chunk, left, acc);
        } else {
          start<32>(stage, 0, chunk, left, acc);
          end_step(chunk, left, acc, total);
          start<32>(stage, 32, chunk, left, acc);
        }
      }
      ring_.refill();
    }
    end_step(chunk, left, acc, total);
  }

  template <int kColumns>
  __device__ void start(const std::byte* stage, int column, int chunk, int& left, Sums& acc) const {
    product_.template start<kColumns>(ring_.x_of(stage), stage, column, left < chunk, acc);
    left -= kColumns;
  }

  /// What was started is there, and may complete a chunk.
  __device__ static void end_step(int chunk, int& left, Sums& acc, Sums& total) {
    Product::wait(acc);
    if (left > 0) return;
#pragma unroll
    for (int j = 0; j < kSums; ++j) total[j] += acc[j];
    left = chunk;
  }

  /// A thread's own sums, four at a time.
  __device__ float4* aside() const { return c.aside() + threadIdx.x; }
  __device__ void set_aside(Sums& total) const {
#pragma unroll
    for (int j = 0; j < kSums; j += 4) {
      aside()[j / 4 * C::kNumThreads] = {total[j], total[j + 1], total[j + 2], total[j + 3]};
      total[j] = total[j + 1] = total[j + 2] = total[j + 3] = -0.0F;
    }
  }
  __device__ void add_pair(Sums& total) const {
#pragma unroll
    for (int j = 0; j < kSums; j += 4) {
      const float4 pair = aside()[j / 4 * C::kNumThreads];
      total[j] += pair.x, total[j + 1] += pair.y, total[j + 2] += pair.z, total[j + 3] += pair.w;
    }
  }
};

}  // namespace loratory::gpu
