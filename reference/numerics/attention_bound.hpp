#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "reference/numerics/dtype.hpp"

namespace loratory::reference {

/// How an implementation of attention computes: scores and sums in fp32, the weights 2^(x - shift)
/// with a shift that grows from tile to tile, tiles in pieces that are merged. The defaults are one
/// piece of one tile.
struct AttentionArithmetic {
  Dtype weights = Dtype::f32;  ///< what a weight is rounded to before its product with v
  Dtype out = Dtype::f32;
  double unit = 0x1p-24;      ///< of one product or sum of a matrix product; tensor cores 2^-22
  double exp_unit = 0x1p-22;  ///< relative error of one exponential
  int64_t tile_keys = std::numeric_limits<int64_t>::max();
  int64_t piece_keys = std::numeric_limits<int64_t>::max();
};

/// One head of one token in float64, and how far an implementation may be from it.
struct AttentionOracle {
  std::vector<double> exact, bound;  ///< [head_dim]
};

/// q [head_dim]; keys, values [n, head_dim], n >= 1: those of the positions that the token sees.
/// Derivation: docs/error_bounds.md. Valid if no intermediate overflows.
AttentionOracle attention_oracle(std::span<const float> q, std::span<const float> keys,
                                 std::span<const float> values, float scale,
                                 const AttentionArithmetic& arithmetic);

}  // namespace loratory::reference
