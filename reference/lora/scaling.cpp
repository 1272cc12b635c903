#include "reference/lora/scaling.hpp"

#include <cmath>

#include "reference/base/input_error.hpp"

namespace loratory::reference {

float lora_scaling(double alpha, int32_t rank, bool use_rslora) {
  if (!std::isfinite(alpha)) throw InputError("lora_alpha", "is not finite");
  if (rank < 1) throw InputError("r", "is less than 1");
  const auto scaling = float(alpha / (use_rslora ? std::sqrt(double(rank)) : double(rank)));
  if (!std::isfinite(scaling)) throw InputError("lora_alpha", "overflows fp32 when divided by r");
  return scaling;
}

}  // namespace loratory::reference
