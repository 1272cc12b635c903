#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "scheduler_sim/metrics/results.hpp"

namespace loratory::sim {

/// Counts of durations in buckets of relative width 2^-10, for streams too long to keep (every gap
/// between two tokens). Quantiles are bucket midpoints: within 0.05 % of the exact ones.
class LatencyHistogram {
 public:
  void add(int64_t ns, int64_t count = 1) {
    const size_t i = index(uint64_t(ns));
    if (i >= counts_.size()) counts_.resize(i + 1, 0);
    counts_[i] += count;
    total_ += count;
    sum_ns_ += __int128{ns} * count;
    sum_squares_ += square(ns) * uint64_t(count);
  }
  void add(const LatencyHistogram& other) {
    counts_.resize(std::max(counts_.size(), other.counts_.size()), 0);
    for (size_t i = 0; i < other.counts_.size(); ++i) counts_[i] += other.counts_[i];
    total_ += other.total_;
    sum_ns_ += other.sum_ns_;
    sum_squares_ += other.sum_squares_;
  }
  int64_t total() const { return total_; }
  double mean_ns() const { return total_ == 0 ? 0 : double(sum_ns_) / double(total_); }
  /// Standard deviation of the population, exact but for the last rounding, as long as the squares
  /// about the mean add up to less than 2^128: a billion durations six days from it.
  double std_ns() const;
  /// The value below which a share `q` of the counts lies; 0 if empty.
  double quantile_ns(double q) const;
  /// Mean, percentiles (also that of the SLO, in percent) and deviation, in milliseconds.
  LatencySummary summary_ms(double slo_percentile) const;
  /// The buckets that are not empty, ascending, with their midpoints.
  std::vector<DurationCount> counts() const;

 private:
  static constexpr int kBits = 10;
  static size_t index(uint64_t v) {
    const int shift = std::max(0, int(std::bit_width(v)) - (kBits + 1));
    return (size_t(shift) << kBits) + size_t(v >> shift);
  }

  static double midpoint_ns(size_t i);
  static unsigned __int128 square(__int128 v) {
    return static_cast<unsigned __int128>(v) * static_cast<unsigned __int128>(v);
  }

  std::vector<int64_t> counts_;
  int64_t total_ = 0;
  __int128 sum_ns_ = 0;
  unsigned __int128 sum_squares_ = 0;  // modulo 2^128
};

}  // namespace loratory::sim
