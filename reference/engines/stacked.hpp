#pragma once

#include <span>
#include <vector>

#include "reference/numerics/numeric_mode.hpp"
#include "reference/numerics/tensor.hpp"

// The slices of a packed module in one tensor, as SGLang and TokenSpeed keep them. A slot has one
// rank r for all slices, and its slices follow each other at distance r, not at the buffer's R:
// who writes at i·R and reads at i·r computes with other rows (statement [1.26]).

namespace loratory::reference {

struct StackedWeights {
  ConstTensorView a;                   ///< [L, S·R, K]; slice i in rows [i·r, (i+1)·r)
  ConstTensorView b;                   ///< [L, sum N_i, R]
  std::vector<int64_t> output_offset;  ///< [S + 1]: slice i is b's rows and y's columns from here

  int64_t num_slices() const { return int64_t(output_offset.size()) - 1; }
};

/// Rows of one slot, as a kernel's program sees them: all look-ups are done.
struct SlotRows {
  int32_t slot = -1;
  int32_t rank = 0;
  float scaling = 1;
  std::span<const int32_t> rows;  ///< of x, h and y alike
};

/// h[t, i·r + j] = round_h( sum_c A[slot, i·r + j, c]·x[t, c] ): shrink() of these rows.
/// Shapes   x [T, K], h [T, S·R].  Nothing is done for rank 0.
/// Errors   InputError: slot, rank or a row outside its tensor; shapes or dtypes that disagree.
void stacked_shrink(const ConstTensorView& x, const ConstTensorView& a, int64_t num_slices,
                    const SlotRows& part, const TensorView& h);

/// y[t, o_i + n] += scaling · sum_j h[t, i·r + j]·B[slot, o_i + n, j]: expand() of these rows.
/// Shapes   y [T, >= output_offset.back()].  Errors as above.
void stacked_expand(const ConstTensorView& h, const ConstTensorView& b,
                    std::span<const int64_t> output_offset, const SlotRows& part,
                    const NumericMode& mode, const TensorView& y);

/// The buffer between the two: zeros [T, S·R] of fp32, or of x's dtype with store_as_x.
Tensor stacked_buffer(const ConstTensorView& x, const StackedWeights& weights,
                      const NumericMode& mode);

}  // namespace loratory::reference
