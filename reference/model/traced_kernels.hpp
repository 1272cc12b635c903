#pragma once

#include "reference/model/kernels.hpp"
#include "reference/model/rope.hpp"
#include "reference/moe/router.hpp"
#include "reference/numerics/bounded.hpp"

// The kernels of a forward pass for Traced, where going through the operators would trace one
// order of summation only. Derivations: docs/error_bounds.md, "A whole model".

namespace loratory::reference {

/// A number of the formula: used as it is, or rounded to float first.
template <>
inline Traced constant<Traced>(double value) {
  const double rounding = std::abs(value - double(float(value)));
  return rounding == 0 ? Traced(value) : Traced(value, Tape::current().add(rounding));
}

/// Tells the tape of what the root is one.
template <>
Traced inverse_root(std::span<const Traced> x, const Traced& mean);

Vector<Traced> product(const Matrix<float>& w, const Vector<Traced>& x);

/// The bias may also have been the first term of the sum.
Traced add_bias(const Traced& y, float bias, int64_t num_terms);

void softmax(std::span<Traced> values);

Traced stored(Dtype dtype, const Traced& v);

Traced stored_in_two(Dtype dtype, const Traced& v);

inline bool is_same(const Traced& a, const Traced& b) { return a.node == b.node; }

Traced sigmoid(const Traced& x);

Traced silu(const Traced& x);

Traced clamp_to_unit(const Traced& v);

/// Softmax over all experts. The weights have an unknown error where those of the probabilities
/// leave open which experts are chosen.
Routing<Traced> route(const Vector<Traced>& logits, int64_t k, bool norm_topk_prob);

}  // namespace loratory::reference
