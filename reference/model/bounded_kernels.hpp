#pragma once

#include "reference/model/kernels.hpp"
#include "reference/model/rope.hpp"
#include "reference/moe/router.hpp"
#include "reference/numerics/bounded.hpp"

// The kernels of a forward pass for Bounded, where going through the operators would bound one
// order of summation only, or say too little. Derivations: docs/error_bounds.md, "A whole model".

namespace loratory::reference {

/// A number of the formula: used as it is, or rounded to float first.
template <>
inline Bounded constant<Bounded>(double value) {
  return {value, std::abs(value - double(float(value)))};
}

Vector<Bounded> product(const Matrix<float>& w, const Vector<Bounded>& x);

/// The bias may also have been the first term of the sum.
Bounded add_bias(const Bounded& y, float bias, int64_t num_terms);

void softmax(std::span<Bounded> values);

Bounded silu(const Bounded& x);

/// Clamping moves no two numbers apart.
Bounded clamp_to_unit(const Bounded& v);

/// Softmax over all experts. Weights of unknown error where the errors of two probabilities leave
/// open which expert is chosen.
Routing<Bounded> route(const Vector<Bounded>& logits, int64_t k, bool norm_topk_prob);

}  // namespace loratory::reference
