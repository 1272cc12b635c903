#pragma once

#include <vector>

#include "scheduler_sim/metrics/results.hpp"

namespace loratory::sim {

/// Quantile q in [0, 1] by linear interpolation between order statistics (numpy's default).
/// Reorders `values`; 0 if empty. O(n).
double quantile(std::vector<double>& values, double q);

/// Mean, percentiles (also that of the SLO, in percent) and standard deviation of values in
/// milliseconds. Reorders them.
LatencySummary summarize_ms(std::vector<double>& values, double slo_percentile);

/// 101 quantiles, 0 % .. 100 %; empty if there are no values. Sorts.
std::vector<double> cdf(std::vector<double>& values);

}  // namespace loratory::sim
