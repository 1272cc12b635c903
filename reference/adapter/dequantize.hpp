#pragma once

#include "reference/adapter/adapter.hpp"
#include "reference/numerics/matrix.hpp"

namespace loratory::reference {

/// A [rank, K] and B [N, rank] of a module as numbers, without its scaling.
///
/// Rounding  F32, F16 and BF16: none. fp8: bits · factor in fp32, one rounding; none if the factor
///           is a power of two (and nothing underflows).
/// Repeats   bitwise.   Cost  O(rank·K), O(N·rank).
/// Source    statements [1.43], [1.44].
Matrix<float> dequantized(const ConstTensorView& stored, const WeightScale& scale);
Matrix<float> dequantized_a(const LoraModule& module);
Matrix<float> dequantized_b(const LoraModule& module);

}  // namespace loratory::reference
