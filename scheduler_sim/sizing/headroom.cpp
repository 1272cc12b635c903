#include "scheduler_sim/sizing/headroom.hpp"

#include <algorithm>

#include "scheduler_sim/workload/arrivals.hpp"

namespace loratory::sim {
namespace {

constexpr double kStepFactor = 1.025;

struct Bracket {
  int low;   // meets
  int high;  // does not
};

Bracket bracket_around(const std::function<bool(int)>& meets, int hint, int stride, int lowest) {
  if (meets(hint)) {
    for (int low = hint;; stride *= 2) {
      if (low == kMostStep) return {low, low + 1};
      const int next = std::min(low + stride, kMostStep);
      if (!meets(next)) return {low, next};
      low = next;
    }
  }
  for (int high = hint;; stride *= 2) {
    if (high == lowest) return {lowest - 1, high};
    const int next = std::max(high - stride, lowest);
    if (meets(next)) return {next, high};
    high = next;
  }
}

}  // namespace

double rate_factor(int step) {
  if (step == kNoStep) return 0;
  double factor = 1;
  for (int i = 0; i < step; ++i) factor *= kStepFactor;
  for (int i = 0; i > step; --i) factor /= kStepFactor;
  return factor;
}

int largest_step(const std::function<bool(int step)>& meets, int hint, int stride, int lowest) {
  auto [low, high] = bracket_around(meets, std::clamp(hint, lowest, kMostStep), stride, lowest);
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (meets(middle) ? low : high) = middle;
  }
  return low < lowest ? kNoStep : low;
}

Trace at_rate(const Trace& trace, double factor) {
  Trace scaled = trace;
  scale_rate(scaled, factor);
  return scaled;
}

}  // namespace loratory::sim
