#include "scheduler_sim/trace/summary.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "reference/base/check.hpp"
#include "reference/base/units.hpp"

namespace loratory::sim {
namespace {

double percentile(const std::vector<uint32_t>& sorted, double percent) {
  const double index = percent / 100 * double(sorted.size() - 1);
  const auto below = size_t(index);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double low = sorted[below], high = sorted[above];
  return low + (index - double(below)) * (high - low);
}

TokenStatistics token_statistics(const Trace& trace, uint32_t TraceRequest::*tokens) {
  std::vector<uint32_t> sorted;
  sorted.reserve(trace.requests.size());
  for (const TraceRequest& request : trace.requests) sorted.push_back(request.*tokens);
  std::ranges::sort(sorted);
  const uint64_t sum = std::accumulate(sorted.begin(), sorted.end(), uint64_t{0});
  TokenStatistics statistics;
  statistics.mean = double(sum) / double(sorted.size());
  statistics.p50 = percentile(sorted, 50);
  statistics.p90 = percentile(sorted, 90);
  statistics.p95 = percentile(sorted, 95);
  statistics.p99 = percentile(sorted, 99);
  statistics.min = sorted.front();
  statistics.max = sorted.back();
  return statistics;
}

void summarize_arrivals(const Trace& trace, TraceSummary& summary) {
  const std::vector<TraceRequest>& requests = trace.requests;
  summary.span_s = double(requests.back().arrival_ns - requests.front().arrival_ns) / kNsPerSecond;
  summary.num_arrival_times = 1;
  if (summary.span_s == 0) return;
  summary.request_rate = double(requests.size()) / summary.span_s;
  const auto num_gaps = double(requests.size() - 1);
  summary.gap_mean_s = summary.span_s / num_gaps;
  double sum_squares = 0;
  for (size_t i = 1; i < requests.size(); ++i) {
    const int64_t gap_ns = requests[i].arrival_ns - requests[i - 1].arrival_ns;
    const double deviation = double(gap_ns) / kNsPerSecond - summary.gap_mean_s;
    sum_squares += deviation * deviation;
    if (gap_ns > 0) ++summary.num_arrival_times;
  }
  summary.gap_cv = std::sqrt(sum_squares / num_gaps) / summary.gap_mean_s;
}

void summarize_adapters(const Trace& trace, TraceSummary& summary) {
  for (const TraceAdapter& adapter : trace.adapters) {
    summary.adapters.push_back({adapter.name, adapter.rank, 0});
  }
  for (const TraceRequest& request : trace.requests) {
    if (request.adapter == kBaseModel) {
      ++summary.num_base_requests;
    } else {
      ++summary.adapters[request.adapter].num_requests;
    }
  }
  std::ranges::stable_sort(summary.adapters, std::greater{}, &AdapterShare::num_requests);
}

template <typename T>
uint64_t num_distinct(std::vector<T> values) {
  std::ranges::sort(values);
  return uint64_t(std::unique(values.begin(), values.end()) - values.begin());
}

}  // namespace

TraceSummary summarize(const Trace& trace) {
  LORATORY_ASSERT(!trace.requests.empty(), "a trace has at least one request");
  TraceSummary summary;
  summary.num_requests = trace.requests.size();
  summarize_arrivals(trace, summary);
  summary.prompt = token_statistics(trace, &TraceRequest::prompt_tokens);
  summary.output = token_statistics(trace, &TraceRequest::output_tokens);
  summarize_adapters(trace, summary);
  summary.num_blocks = trace.block_ids.size();
  summary.num_distinct_blocks = num_distinct(trace.block_ids);
  std::vector<uint32_t> sessions;
  for (const TraceRequest& request : trace.requests) {
    if (request.session != 0) sessions.push_back(request.session);
    if (request.cancel_ns != kNever) ++summary.num_cancelled;
  }
  summary.num_sessions = num_distinct(std::move(sessions));
  return summary;
}

}  // namespace loratory::sim
