#include "gpu/product/product_bound.hpp"

#include <cmath>

#include "reference/numerics/error_bound.hpp"

namespace loratory::gpu {

double product_error_bound(const ProductFacts& facts, bool tensor_cores, reference::Dtype out) {
  const auto num_in = double(facts.num_in);
  const double lost = tensor_cores ? reference::gamma(num_in + 2 * std::ceil(num_in / 4), 0x1p-23)
                                   : reference::gamma(num_in, 0x1p-24);
  // Below the normal range each product and each sum may lose 2^-149.
  double error = lost * facts.magnitude + 2 * num_in * 0x1p-149;
  if (facts.bias != 0) error = reference::after_rounding(facts.result, error, 0x1p-24, 0);
  if (out != reference::Dtype::f32) {
    error = reference::after_rounding(facts.result, error, reference::unit_roundoff(out),
                                      reference::underflow_unit(out));
  }
  return error * reference::kOracleAllowance;
}

}  // namespace loratory::gpu
