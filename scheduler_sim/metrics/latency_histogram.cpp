#include "scheduler_sim/metrics/latency_histogram.hpp"

#include <algorithm>
#include <cmath>

namespace loratory::sim {

double LatencyHistogram::quantile_ns(double q) const {
  if (total_ == 0) return 0;
  const auto rank = int64_t(std::floor(q * double(total_ - 1)));
  int64_t before = 0;
  size_t i = 0;
  while (before + counts_[i] <= rank) before += counts_[i++];
  // Buckets 0 .. 2^(kBits+1)-1 hold one value each; then 2^kBits buckets per power of two.
  const size_t one = size_t{1} << kBits;
  const size_t shift = i < 2 * one ? 0 : i / one - 1;
  const uint64_t low = uint64_t(i - shift * one) << shift;
  const uint64_t width = uint64_t{1} << shift;
  return double(low) + double(width - 1) / 2;
}

}  // namespace loratory::sim
