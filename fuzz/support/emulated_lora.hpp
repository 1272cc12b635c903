#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/numerics/error_bound.hpp"

// One slice of LoRA as other implementations compute it: other orders of summation, tensor cores
// that cut, and faults. Fast, for millions of cases; what the statistical lane is proven with.

namespace loratory::reference {

/// How the numbers of a case are distributed.
enum class Numbers : uint8_t { normal, uniform, positive, heavy_tailed, cancelling };
inline constexpr int kNumNumbers = 5;
std::string_view name(Numbers numbers);

/// One adapter on one slice; all numbers are of their dtypes.
struct SliceNumbers {
  int64_t num_tokens = 1, num_in = 1, rank = 1, num_out = 1;
  float scaling = 1;
  std::vector<float> x;     ///< [T][K]
  std::vector<float> a;     ///< [K][r]
  std::vector<float> b;     ///< [r][N]
  std::vector<float> base;  ///< [T][N]
};

enum class SumOrder : uint8_t {
  sequential,
  blocked,   ///< blocks of `size` terms, each from zero, added in order
  split,     ///< `size` contiguous parts, added in order
  strided,   ///< `size` accumulators, every size-th term each, added as a tree
  pairwise,  ///< halves down to `size` terms
  shuffled,  ///< in an order of its own
};
inline constexpr int kNumSumOrders = 6;
std::string_view name(SumOrder order);

/// How sums are computed.
struct Recipe {
  SumOrder order = SumOrder::sequential;
  int64_t size = 1;
  bool fma = false;
  /// 0: fp32, to nearest. Else a tensor core that takes so many products a step: products exact,
  /// shifted to the largest exponent, cut below 2^-23 of it, added, the sum cut to fp32.
  int64_t terms_per_step = 0;
  int extra_bits = 0;               ///< by which terms are cut later than the sum
  bool scales_h = false;            ///< scaling · h in fp32 in place of scaling · sum
  bool folds_through_fp32 = false;  ///< scaling · B rounded to fp32 and then to B's dtype
};

enum class Fault : uint8_t {
  none,
  tf32_operands,        ///< x and A, of f32 weights
  bf16_operands,        ///< x and A, of f32 weights
  delta_rounded_twice,  ///< to y's dtype, in one_round
  h_in_bf16,            ///< in a mode that keeps more
  dropped_64_columns,   ///< the last of K
  dropped_last_column,
  dropped_rank,  ///< the last
  scaling_in_bf16,
  fp16_accumulation,     ///< every sum of shrink
  bf16_accumulation,     ///< the sum of shrink after every 64 terms
  split_summed_in_bf16,  ///< 4 parts of K, each and every sum of them
  y_cut,                 ///< toward zero in place of to nearest
  e4m3_operands,         ///< x and A
};
inline constexpr int kNumFaults = 14;
std::string_view name(Fault fault);

/// A case of the statistical lane: all of it follows from the seed and the limits.
struct EmulatedCase {
  uint64_t seed = 0;
  int64_t num_tokens = 1, num_in = 1, rank = 1, num_out = 1;
  Numbers numbers = Numbers::normal;
  Arithmetic arithmetic{};
  Recipe recipe{};

  SliceNumbers draw() const;
};

/// Every numeric mode, dtypes f32, bf16, f16 of weights and y, K of 16 to 28,672, r of 1 to 256, as
/// many of each power of two; T·K·r at most `num_products`.
EmulatedCase emulated_case(uint64_t seed, int64_t num_products);

std::string describe(const EmulatedCase& c);

/// y [T][N], with a fault or without.
std::vector<float> emulate(const EmulatedCase& c, const SliceNumbers& numbers,
                           Fault fault = Fault::none);

}  // namespace loratory::reference
