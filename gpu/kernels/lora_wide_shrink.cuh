#pragma once

#include "gpu/kernels/lora_mma_product.cuh"
#include "gpu/kernels/lora_wgmma_product.cuh"
#include "gpu/kernels/lora_wide_ring.cuh"

namespace loratory::gpu {

/// h of a unit of many tokens: a CTA of the cluster takes a group or two, goes through their chunks
/// in order, and hands over what its registers hold.
template <typename C>
class WideShrink {
 public:
  __device__ explicit WideShrink(const Context<C>& context)
      : c(context), p(context.p), ring_(context), product_(context) {}

  __device__ void begin(const Unit& unit) { ring_.begin(unit); }
  __device__ void begin_x(const Unit&) { ring_.begin_x(); }

  /// Sums, and hands them over. The ring is free then, once all threads are through.
  __device__ void run(const Unit& unit, Exchange<C>& exchange) {
    Sums total;
    const bool works = product_.has_work(unit);
    if constexpr (C::kGroupsEach == 1)
      sum_group(works, total);
    else
      sum_two_groups(works, total);
    exchange.begin_block(unit, unit.first_block);
    if (works) product_.hand_over(unit, exchange, c.cta, total);
  }

 private:
  using Product = std::conditional_t<C::kWgmma, WgmmaProduct<C>, MmaProduct<C>>;
  using Sums = typename Product::Sums;
  static constexpr int kSums = sizeof(Sums) / sizeof(float);

  const Context<C> c;
  const LinearParams& p;
  WideRing<C> ring_;
  Product product_;

  /// Neighbours, which the balanced tree adds first: to -0, which changes no bit.
  __device__ void sum_two_groups(bool works, Sums& total) {
    static_assert(C::kGroupsEach <= 2);
#pragma unroll
    for (int j = 0; j < kSums; ++j) total[j] = -0.0F;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      Sums group;
      sum_group(works, group);
#pragma unroll
      for (int j = 0; j < kSums; ++j) total[j] += group[j];
    }
  }
  __device__ void sum_group(bool works, Sums& total) {
    if (chunk_size(p.num_in) % 64 == 0)
      sum_group<64>(works, total);
    else
      sum_group<32>(works, total);
  }

  /// The chunks of the group, each summed from 0, added in order: to -0, which changes no bit. A
  /// step is of one chunk: a whole stage, or half of one where chunks end in the middle. Its
  /// products run while the ring is refilled and the next stage comes.
  template <int kStep>
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
#pragma unroll
        for (int column = 0; column < 64; column += kStep) {
          if (column > 0) end_step(chunk, left, acc, total);
          product_.template start<kStep>(ring_.x_of(stage), stage, column, left < chunk, acc);
          left -= kStep;
        }
      }
      ring_.refill();
    }
    end_step(chunk, left, acc, total);
  }

  /// What was started is there, and may complete a chunk.
  __device__ static void end_step(int chunk, int& left, Sums& acc, Sums& total) {
    Product::wait(acc);
    if (left > 0) return;
#pragma unroll
    for (int j = 0; j < kSums; ++j) total[j] += acc[j];
    left = chunk;
  }
};

}  // namespace loratory::gpu
