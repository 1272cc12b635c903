#pragma once

#include <cstdint>
#include <vector>

#include "reference/adapter/adapter.hpp"
#include "reference/numerics/matrix.hpp"

namespace loratory::reference {

/// A or B of an adapter as a slot of fp8 holds it: element (i, j) is bits · factor.
struct Fp8Weights {
  int64_t num_rows = 0, num_columns = 0;
  std::vector<uint8_t> bits;  ///< f8_e4m3fn, row-major
  float factor = 1;

  Matrix<float> numbers() const;
};

/// Bits of a file in f8_e4m3fn with one factor are kept. Everything else becomes bits · 2^e for the
/// least e >= -126 for which no number saturates; e is 0 for a matrix of zeros.
///
/// Rounding  kept bits: none. Otherwise the numbers of dequantize.hpp, once, to nearest even. Where
///           the factor is 2^e, numbers() rounds nothing.
/// Repeats   bitwise.   Cost  O(numbers).
/// Source    statement [1.50a].
Fp8Weights fp8_a(const LoraModule& module);
Fp8Weights fp8_b(const LoraModule& module);

}  // namespace loratory::reference
