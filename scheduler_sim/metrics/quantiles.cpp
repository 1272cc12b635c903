#include "scheduler_sim/metrics/quantiles.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace loratory::sim {
namespace {

double between(double low, double high, double fraction) { return low + (high - low) * fraction; }

// In two passes, as numpy.std.
double deviation(const std::vector<double>& values, double mean) {
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / double(values.size()));
}

}  // namespace

double quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  const double place = q * double(values.size() - 1);
  const auto index = size_t(std::floor(place));
  const auto at = values.begin() + std::ptrdiff_t(index);
  std::nth_element(values.begin(), at, values.end());
  const double low = *at;
  if (index + 1 == values.size()) return low;
  return between(low, *std::min_element(at + 1, values.end()), place - double(index));
}

LatencySummary summarize_ms(std::vector<double>& values, double slo_percentile) {
  if (values.empty()) return {};
  LatencySummary s;
  s.mean_ms = std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
  s.std_ms = deviation(values, s.mean_ms);
  s.p50_ms = quantile(values, 0.50);
  s.p90_ms = quantile(values, 0.90);
  s.p95_ms = quantile(values, 0.95);
  s.p99_ms = quantile(values, 0.99);
  s.pslo_ms = quantile(values, slo_percentile / 100);
  return s;
}

std::vector<double> cdf(std::vector<double>& values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  std::vector<double> points(101);
  for (size_t i = 0; i <= 100; ++i) {
    const double place = double(i) / 100 * double(values.size() - 1);
    const auto index = size_t(std::floor(place));
    const size_t above = std::min(index + 1, values.size() - 1);
    points[i] = between(values[index], values[above], place - double(index));
  }
  return points;
}

}  // namespace loratory::sim
