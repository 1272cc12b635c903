#pragma once

#include "gpu/kernels/fragments.cuh"
#include "gpu/kernels/ptx.cuh"
#include "gpu/model/swish.cuh"
#include "gpu/product/skinny_plan.hpp"

namespace loratory::gpu {

/// Stores a tile's sums of a skinny kernel: bias or SwiGLU, and one rounding.
template <typename C>
class SkinnyResults {
 public:
  using Sums = typename C::Sums;

  /// Of the warpgroup's first token and the tile's first column of W's rows.
  __device__ SkinnyResults(const SkinnyParams& params, int first_token, int first_column)
      : p(params), first_token_(first_token), first_column_(first_column) {}

  __device__ void store(const Sums& sums) const {
    if constexpr (C::kTokensAreRows) return store_rows(sums);
    if (p.is_gated)
      store_gated(sums);
    else if (p.out_is_f32)
      store_all<Out::f32>(sums);
    else if (p.in_pairs)
      store_all<Out::pairs>(sums);
    else
      store_all<Out::singles>(sums);
  }

 private:
  using Weight = typename C::Weight;
  enum class Out : uint8_t { f32, pairs, singles };

  const SkinnyParams& p;
  const int first_token_, first_column_;

  // A thread has up to eight words before it stores the first, without a branch between them: from
  // a sum to its store it takes a hundred cycles and more, with SwiGLU 250, and one or two warps of
  // a scheduler hide none of that. __syncwarp() behind them keeps ptxas from starting on all words
  // at once, for which it has no registers.

  /// Tokens are rows of wgmma: of two, eight rows apart, a thread has two columns of each eight.
  __device__ void store_rows(const Sums& sums) const {
    const int lane = int(threadIdx.x) % 32;
    const int token = first_token_ + int(threadIdx.x) % 128 / 32 * 16 + lane / 4;
    const int column = first_column_ + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t row = (token + 8 * i) * p.y_stride;
      const float* const numbers = sums[0] + 2 * i;
      const bool exists = token + 8 * i < p.num_tokens;
      if (p.is_gated)
        store_gated_row(exists, row, first_column_ / 2 + lane % 4 * 2, numbers);
      else if (p.out_is_f32)
        store_row<Out::f32>(exists, row, column, numbers);
      else if (p.in_pairs)
        store_row<Out::pairs>(exists, row, column, numbers);
      else
        store_row<Out::singles>(exists, row, column, numbers);
    }
  }
  /// Eights of gate and up take turns.
  __device__ void store_gated_row(bool exists, int64_t row, int column, const float* sums) const {
    const auto make = [&](int i) {
      const float* const four = sums + 8 * i;
      return gated(pack<Weight>(four[0], four[1]), pack<Weight>(four[4], four[5]));
    };
    store_words<C::kColumns / 16>(make, [&](int i, uint32_t word) {
      const int at = column + 8 * i;
      auto* const y = static_cast<uint16_t*>(p.y) + row + at;
      if (exists && at < p.y_columns) *reinterpret_cast<uint32_t*>(y) = word;
    });
  }
  template <Out kOut>
  __device__ void store_row(bool exists, int64_t row, int column, const float* sums) const {
    const auto make = [&](int i) -> float2 {
      const int at = column + 8 * i;
      return {sums[4 * i] + bias_of(at), sums[4 * i + 1] + bias_of(at + 1)};
    };
    store_words<C::kColumns / 8>(make, [&](int i, const float2& two) {
      const int at = column + 8 * i;
      if (exists && at < p.y_columns) store_two<kOut>(row + at, at + 1 < p.y_columns, two);
    });
  }
  template <int kNumWords, typename Make, typename Store>
  __device__ static void store_words(const Make& make, const Store& store) {
    constexpr int kAtOnce = C::kColumns > 224 ? 4 : 8;  // 256 columns have 128 sums
#pragma unroll
    for (int first = 0; first < kNumWords; first += kAtOnce) {
      decltype(make(0)) words[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce && first + i < kNumWords; ++i) words[i] = make(first + i);
#pragma unroll
      for (int i = 0; i < kAtOnce && first + i < kNumWords; ++i) store(first + i, words[i]);
      __syncwarp();
    }
  }
  template <Out kOut>
  __device__ void store_two(int64_t at, bool has_second, const float2& two) const {
    if constexpr (kOut == Out::f32) {
      float* const y = static_cast<float*>(p.y) + at;
      y[0] = two.x;
      if (has_second) y[1] = two.y;
    } else {
      auto* const y = static_cast<uint16_t*>(p.y) + at;
      const uint32_t bits = pack<Weight>(two.x, two.y);
      if constexpr (kOut == Out::pairs) {
        *reinterpret_cast<uint32_t*>(y) = bits;
      } else {
        y[0] = uint16_t(bits);
        if (has_second) y[1] = uint16_t(bits >> 16);
      }
    }
  }

  // Columns are rows of wgmma.

  /// Of eight columns and all tokens: lanes have two neighbouring columns of a token.
  static constexpr int kNumEights = C::kTokens / 8;
  using Eights = uint32_t[kNumEights];

  /// SwiGLU: a thread has gate and up of the same column and tokens, eight rows apart.
  __device__ void store_gated(const Sums& sums) const {
    const int first = int(threadIdx.x) % 128 / 32 * 16;
#pragma unroll
    for (int j = 0; j < C::kNumWgmma; ++j) {
      const int row = first + j * kWgmmaRows;
      if (row >= C::kColumns) continue;
      Eights eights;
#pragma unroll
      for (int i = 0; i < kNumEights; ++i) {
        const float* const four = sums[j] + 4 * i;
        eights[i] = gated(transposed(pack<Weight>(four[0], four[1])),
                          transposed(pack<Weight>(four[2], four[3])));
      }
      store_pairs((first_column_ + row) / 2, eights);
      __syncwarp();
    }
  }
  /// Of two numbers each, as the product would have stored them.
  __device__ static uint32_t gated(uint32_t gates, uint32_t ups) {
    const float2 gate = unpack<Weight>(gates), up = unpack<Weight>(ups);
    return pack<Weight>(silu_mul(gate.x, up.x), silu_mul(gate.y, up.y));
  }

  template <Out kOut>
  __device__ void store_all(const Sums& sums) const {
    const int first = int(threadIdx.x) % 128 / 32 * 16;
#pragma unroll
    for (int j = 0; j < 2 * C::kNumWgmma; ++j) {
      const int row = first + j / 2 * kWgmmaRows + j % 2 * 8, column = first_column_ + row;
      if (row >= C::kColumns) continue;
      const float bias = bias_of(column + int(threadIdx.x) % 32 / 4);
      store_eights<kOut>(column, sums[j / 2] + 2 * (j % 2), bias);
      __syncwarp();
    }
  }
  /// Without a bias a sum of -0 stays what it is.
  __device__ float bias_of(int column) const {
    if (p.bias == nullptr || column >= p.y_columns) return -0.0F;
    return to_float<Weight>(static_cast<const uint16_t*>(p.bias)[column]);
  }
  /// Of each four numbers of `sums`, a lane has two neighbouring tokens of one column.
  template <Out kOut>
  __device__ void store_eights(int column, const float* sums, float bias) const {
    if constexpr (kOut == Out::f32) {
      store_f32(column, sums, bias);
    } else {
      Eights eights;
#pragma unroll
      for (int i = 0; i < kNumEights; ++i) {
        const float* const two = sums + 4 * i;
        eights[i] = transposed(pack<Weight>(two[0] + bias, two[1] + bias));
      }
      if constexpr (kOut == Out::pairs)
        store_pairs(column, eights);
      else
        store_singles(column, eights);
    }
  }

  __device__ void store_pairs(int first_column, const Eights& eights) const {
    const int token = first_token_ + int(threadIdx.x) % 32 / 4;
    const int column = first_column + int(threadIdx.x) % 4 * 2;
    if (column >= p.y_columns) return;
    uint16_t* y = static_cast<uint16_t*>(p.y) + token * p.y_stride + column;
#pragma unroll
    for (int i = 0; i < kNumEights; ++i) {
      if (token + 8 * i < p.num_tokens) *reinterpret_cast<uint32_t*>(y) = eights[i];
      y += 8 * p.y_stride;
    }
  }
  __device__ void store_singles(int first_column, const Eights& eights) const {
    const int token = first_token_ + int(threadIdx.x) % 32 / 4;
    const int column = first_column + int(threadIdx.x) % 4 * 2;
    uint16_t* y = static_cast<uint16_t*>(p.y) + token * p.y_stride + column;
#pragma unroll
    for (int i = 0; i < kNumEights; ++i) {
      const bool has_token = token + 8 * i < p.num_tokens;
      if (has_token && column < p.y_columns) y[0] = uint16_t(eights[i]);
      if (has_token && column + 1 < p.y_columns) y[1] = uint16_t(eights[i] >> 16);
      y += 8 * p.y_stride;
    }
  }
  __device__ void store_f32(int first_column, const float* sums, float bias) const {
    const int token = first_token_ + int(threadIdx.x) % 4 * 2;
    const int column = first_column + int(threadIdx.x) % 32 / 4;
    if (column >= p.y_columns) return;
    float* y = static_cast<float*>(p.y) + token * p.y_stride + column;
#pragma unroll
    for (int i = 0; i < kNumEights; ++i) {
      if (token + 8 * i < p.num_tokens) y[0] = sums[4 * i] + bias;
      if (token + 8 * i + 1 < p.num_tokens) y[p.y_stride] = sums[4 * i + 1] + bias;
      y += 8 * p.y_stride;
    }
  }
};

}  // namespace loratory::gpu
