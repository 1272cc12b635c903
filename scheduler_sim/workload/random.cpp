#include "scheduler_sim/workload/random.hpp"

#include <Random123/philox.h>

#include <cmath>

#include "reference/base/check.hpp"
#include "scheduler_sim/workload/deterministic_math.hpp"

namespace loratory::sim {

uint64_t RandomStream::bits(uint64_t index, uint64_t draw) const {
  const r123::Philox4x64::ctr_type counter = {{index, draw, 0, 0}};
  const r123::Philox4x64::key_type key = {{seed_, stream_}};
  return r123::Philox4x64{}(counter, key)[0];
}

double RandomStream::unit(uint64_t index, uint64_t draw) const {
  return (double(bits(index, draw) >> 12) + 0.5) * 0x1p-52;
}

uint64_t RandomStream::below(uint64_t bound, uint64_t index) const {
  LORATORY_ASSERT(bound >= 1, "there is no number below 0");
  __extension__ using Wide = unsigned __int128;
  return uint64_t(static_cast<Wide>(bits(index)) * bound >> 64);
}

double RandomStream::exponential(uint64_t index) const { return -det_log(unit(index)); }

double RandomStream::gamma(double shape, uint64_t index) const {
  LORATORY_ASSERT(shape > 0, "a gamma law needs a shape > 0");
  // Below 1 the method does not hold: draw with shape + 1, then shrink (draw 0 is kept for this).
  const double boost = shape < 1 ? det_pow(unit(index), 1 / shape) : 1;
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (uint64_t draw = 1;; draw += 2) {
    const double x = det_normal_quantile(unit(index, draw));
    const double root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (det_log(unit(index, draw + 1)) < 0.5 * x * x + d - d * v + d * det_log(v)) {
      return d * v * boost;
    }
  }
}

}  // namespace loratory::sim
