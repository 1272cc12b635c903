#pragma once

#include <span>

#include "reference/numerics/numeric_mode.hpp"
#include "reference/numerics/tensor.hpp"

// What happens to the rows of one slot in one slice: the arithmetic that shrink(), expand() and
// the engines' forms of them share. They differ in how they find slot and rows.
//
// A row names a row of x, h and y alike. Arguments are checked by the caller. One thread; calls
// on different rows, or on different columns of y, may run at once.

namespace loratory::reference {

/// h[t, j] = round_h( sum_c a[j, c]·x[t, c] ),  j < rank, for every row t.
/// As shrink() in all else. Cost  O(K·(rank + rows·rank)).
struct ShrinkRows {
  ConstTensorView x;  ///< [T, K]
  ConstTensorView a;  ///< [R, K] of the slot
  int64_t rank = 0;
  TensorView h;  ///< [T, R] of the slice
};
void shrink_rows(const ShrinkRows& slice, std::span<const int32_t> rows);

/// y[t, offset + n] = base + scaling · sum_{j < rank} h[t, j]·b[n, j] for every row t.
/// As expand() in all else, `mode` included. Cost  O(N·(rank + rows·rank)).
struct ExpandRows {
  ConstTensorView h;  ///< [T, R] of the slice
  ConstTensorView b;  ///< [N, R] of the slot
  int64_t rank = 0;
  float scaling = 1;
  int64_t offset = 0;  ///< column of y that belongs to b's first row
  bool add_inputs = true;
  NumericMode mode{};
  TensorView y;  ///< [T, >= offset + N]
};
void expand_rows(const ExpandRows& slice, std::span<const int32_t> rows);

/// y[t, offset + n] = round_y(y + bias[n]) for every row t; bias [N] of the slot.
void add_bias_rows(const ConstTensorView& bias, int64_t offset, std::span<const int32_t> rows,
                   const TensorView& y);

}  // namespace loratory::reference
