#pragma once

#include <cstdint>

#include "reference/moe/exponential.hpp"

// What lies between the two products of an expert. Real as in router.hpp.

namespace loratory::reference {

enum class Activation : uint8_t {
  silu,      ///< g / (1 + exp(-g))
  gpt_oss,   ///< clamped; gated only
  identity,  ///< for tests in exact numbers
  relu,      ///< max(g, 0); NaN stays
};

inline constexpr float kGptOssAlpha = 1.702F;
inline constexpr float kGptOssLimit = 7;

/// Rounded to Real at every step.
template <typename Real>
Real activate(Activation activation, const Real& gate) {
  switch (activation) {
    case Activation::silu:
      return Real(gate / Real(Real(1) + exponential(Real(-gate))));
    case Activation::relu:
      return gate < Real(0) ? Real(0) : gate;
    default:
      return gate;
  }
}

template <typename Real>
Real clamp_above(const Real& v, const Real& limit) {
  return v > limit ? limit : v;
}

/// act(gate) · up; gpt-oss: (up' + 1) · gate' / (1 + exp(-1.702 gate')), gate' = min(gate, 7),
/// up' = min(max(up, -7), 7).
template <typename Real>
Real activate(Activation activation, const Real& gate, const Real& up) {
  if (activation != Activation::gpt_oss) return Real(activate(activation, gate) * up);
  const Real limit(kGptOssLimit), g = clamp_above(gate, limit);
  const Real u = clamp_above(up, limit) < Real(-limit) ? Real(-limit) : clamp_above(up, limit);
  const Real sigmoid_denominator = Real(Real(1) + exponential(Real(-Real(Real(kGptOssAlpha) * g))));
  return Real(Real(u + Real(1)) * Real(g / sigmoid_denominator));
}

}  // namespace loratory::reference
