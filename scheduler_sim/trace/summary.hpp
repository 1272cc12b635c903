#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// Tokens of the requests of a trace. Percentiles interpolate linearly between order statistics:
/// the p-th stands at index p/100 * (n - 1), as numpy's default does.
struct TokenStatistics {
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0;
  uint32_t min = 0, max = 0;
};

struct AdapterShare {
  std::string name;
  uint32_t rank = 0;  ///< 0 = the trace does not say
  uint64_t num_requests = 0;
};

/// What `trace info` says of a trace.
struct TraceSummary {
  uint64_t num_requests = 0;
  double span_s = 0;               ///< last arrival - first arrival
  double request_rate = 0;         ///< num_requests / span_s; 0 when all arrive at once
  double gap_mean_s = 0;           ///< of the gaps between arrivals
  double gap_cv = 0;               ///< their (population) standard deviation / mean
  uint64_t num_arrival_times = 0;  ///< distinct ones
  TokenStatistics prompt, output;

  uint64_t num_base_requests = 0;      ///< without an adapter
  std::vector<AdapterShare> adapters;  ///< most requests first, equal ones in trace order

  uint64_t num_blocks = 0;  ///< entries of block_ids
  uint64_t num_distinct_blocks = 0;
  uint64_t num_sessions = 0;
  uint64_t num_cancelled = 0;  ///< requests with a cancel time
};

/// Requires at least one request. O(n log n); the same trace gives the same numbers.
TraceSummary summarize(const Trace& trace);

}  // namespace loratory::sim
