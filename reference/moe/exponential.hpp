#pragma once

#include <cmath>

namespace loratory::reference {

/// exp of a float is exp in double rounded once: within (1 + 2^-28) half ulps, and the same bits
/// with nearly every libm.
inline float exponential(float v) { return float(std::exp(double(v))); }
/// Of any other number type, its own.
template <typename Real>
Real exponential(const Real& v) {
  using std::exp;
  return exp(v);
}

}  // namespace loratory::reference
