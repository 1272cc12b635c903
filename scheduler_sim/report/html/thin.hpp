#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace loratory::sim::report {

inline constexpr size_t kMaxCurvePoints = 240;

/// Which of `size` entries a chart keeps: all up to `limit`; else the first, the last and entries
/// spaced by equal ratios of their rank, as popularity and miss-ratio curves change by ratios.
inline std::vector<size_t> kept_indices(size_t size, size_t limit = kMaxCurvePoints) {
  std::vector<size_t> kept;
  for (size_t i = 0; i < std::min(size, limit); ++i) {
    const double share = double(i) / double(limit - 1);
    const double rank = size <= limit ? double(i + 1) : std::pow(double(size), share);
    const auto index = size_t(std::llround(rank)) - 1;
    if (kept.empty() || index > kept.back()) kept.push_back(index);
  }
  return kept;
}

}  // namespace loratory::sim::report
