#pragma once

#include <cstdint>

#include "reference/numerics/dtype.hpp"

namespace loratory::gpu {

/// One element of a product in float64.
struct ProductFacts {
  double result = 0;     ///< y* = sum_k x_k W_k + bias
  double magnitude = 0;  ///< sum_k |x_k W_k|
  double bias = 0;
  int64_t num_in = 0;  ///< K
};

/// |y - y*| for y in `out`. Valid if no intermediate overflows.
/// tensor_cores: n = K + 2·ceil(K / 4) roundings of unit 2^-23, since they truncate every term and
/// every sum of at least four terms; else K of unit 2^-24. Derivation: docs/error_bounds.md.
double product_error_bound(const ProductFacts& facts, bool tensor_cores, reference::Dtype out);

}  // namespace loratory::gpu
