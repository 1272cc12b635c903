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
  return midpoint_ns(i);
}

double LatencyHistogram::midpoint_ns(size_t i) {
  // Buckets 0 .. 2^(kBits+1)-1 hold one value each; then 2^kBits buckets per power of two.
  const size_t one = size_t{1} << kBits;
  const size_t shift = i < 2 * one ? 0 : i / one - 1;
  const uint64_t low = uint64_t(i - shift * one) << shift;
  const uint64_t width = uint64_t{1} << shift;
  return double(low) + double(width - 1) / 2;
}

// About the whole part of the mean, in integers: nothing cancels. Squares of durations may leave
// 128 bits, those about the mean do not, and both are the same modulo 2^128.
double LatencyHistogram::std_ns() const {
  if (total_ == 0) return 0;
  const __int128 whole = sum_ns_ / total_;
  using Modular = unsigned __int128;
  const Modular squares =
      sum_squares_ - 2 * Modular(whole) * Modular(sum_ns_) + square(whole) * Modular(total_);
  const double rest = double(sum_ns_ - whole * total_) / double(total_);
  return std::sqrt(std::max(0.0, double(squares) / double(total_) - rest * rest));
}

LatencySummary LatencyHistogram::summary_ms(double slo_percentile) const {
  constexpr double kMsPerNs = 1e-6;
  const auto at = [&](double q) { return quantile_ns(q) * kMsPerNs; };
  return {.mean_ms = mean_ns() * kMsPerNs,
          .p50_ms = at(0.50),
          .p90_ms = at(0.90),
          .p95_ms = at(0.95),
          .p99_ms = at(0.99),
          .pslo_ms = at(slo_percentile / 100),
          .std_ms = std_ns() * kMsPerNs};
}

std::vector<DurationCount> LatencyHistogram::counts() const {
  std::vector<DurationCount> counts;
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] > 0) counts.push_back({midpoint_ns(i), counts_[i]});
  }
  return counts;
}

}  // namespace loratory::sim
