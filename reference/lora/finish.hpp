#pragma once

#include "reference/numerics/numeric_mode.hpp"
#include "reference/numerics/tensor.hpp"

namespace loratory::reference {

/// The last roundings of one element of an expand: how d meets base [1.17].
struct Finish {
  bool add_inputs = true;
  SumMode sum = SumMode::one_round;
  Dtype delta_dtype = Dtype::f32;  ///< of a delta that is a tensor of its own: two_round

  void operator()(float d, const TensorView& y, int64_t t, int64_t column) const {
    if (sum == SumMode::two_round) d = float(round_to(delta_dtype, d));
    y.set(add_inputs ? float(y.get(t, column)) + d : d, t, column);
  }
};

}  // namespace loratory::reference
