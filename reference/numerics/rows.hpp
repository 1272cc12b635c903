#pragma once

#include <span>

#include "reference/numerics/tensor.hpp"

// Many elements at once. Each function says which of load(), store() and round_to() it is; it only
// looks at the dtype once. The bits are those of the slow one, payloads of NaN apart.

namespace loratory::reference {

/// out[i] = load(element i), which lies i·stride elements behind `address`. Real: float, double.
template <typename Real>
void load_elements(Dtype dtype, const std::byte* address, int64_t stride, std::span<Real> out);

/// store(values[i]) at each. Rounds once, to nearest even.
void store_elements(Dtype dtype, std::byte* address, int64_t stride, std::span<const float> values);

/// values[i] = round_to(dtype, values[i]).
void round_elements(Dtype dtype, std::span<float> values);

/// Columns [first, first + out.size()) of a row of a tensor of two axes. Bounds are asserted.
template <typename Real>
void read_row(const ConstTensorView& view, int64_t row, int64_t first, std::span<Real> out);

void write_row(const TensorView& view, int64_t row, int64_t first, std::span<const float> values);

}  // namespace loratory::reference
