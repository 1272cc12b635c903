#include "scheduler_sim/workload/arrivals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "reference/base/check.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"
#include "reference/base/units.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/workload/deterministic_math.hpp"
#include "scheduler_sim/workload/random.hpp"
#include "scheduler_sim/workload/text_table.hpp"

namespace loratory::sim {
namespace {

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

// Law of one gap, its scale left open.
struct GapShape {
  GapLaw law = GapLaw::gamma;
  double shape = 1;

  double mean() const { return law == GapLaw::weibull ? det_gamma_function(1 + 1 / shape) : shape; }
  double draw(const RandomStream& stream, uint64_t index) const {
    return law == GapLaw::weibull ? det_pow(stream.exponential(index), 1 / shape)
                                  : stream.gamma(shape, index);
  }
  // What is left of a gap at a random moment: a length-biased gap times a uniform number.
  double draw_residual(const RandomStream& stream, uint64_t index) const {
    const double biased = law == GapLaw::weibull
                              ? det_pow(stream.gamma(1 + 1 / shape, index + 1), 1 / shape)
                              : stream.gamma(shape + 1, index + 1);
    return stream.unit(index) * biased;
  }
};

GapShape gap_shape_of_cv(double cv) { return {GapLaw::gamma, 1 / (cv * cv)}; }

GapShape gap_shape_of_cell(const ClientLoad::Cell& cell) {
  if (cell.law == GapLaw::none || cell.shape <= 0) return {};  // Poisson
  // A Weibull gap below shape 0.02 has a CV above 10^14: a fit gone wrong, and no mean to speak of.
  return {cell.law, std::max(cell.shape, 0.02)};
}

int64_t add_gap(int64_t time_ns, double gap_s) {
  const double end = double(time_ns) + gap_s * kNsPerSecond;
  return end < kMaxTimeNs ? time_ns + int64_t(gap_s * kNsPerSecond + 0.5) : kEnd;
}

// The arrival times of one adapter, one after the other.
class RenewalStream {
 public:
  // Arrivals begin after `begin_ns`; `epoch` tells apart the stretches of one adapter.
  RenewalStream(uint64_t seed, AdapterIndex adapter, uint64_t epoch, double rate_rps, GapShape gap,
                int64_t begin_ns)
      : gaps_(seed, Purpose::arrivals, adapter),
        first_index_(epoch << 40),
        unit_s_(1 / (rate_rps * gap.mean())),
        gap_(gap) {
    // The residual draws from its own half of the index space.
    const uint64_t residual_index = (uint64_t{1} << 63) + 2 * epoch;
    next_ns_ = add_gap(begin_ns, gap_.draw_residual(gaps_, residual_index) * unit_s_);
  }

  int64_t next_ns() const { return next_ns_; }
  void advance() {
    next_ns_ = add_gap(next_ns_, gap_.draw(gaps_, first_index_ + num_gaps_++) * unit_s_);
  }

 private:
  RandomStream gaps_;
  uint64_t first_index_;
  uint64_t num_gaps_ = 0;
  double unit_s_;  // scale of the gap law
  GapShape gap_;
  int64_t next_ns_ = 0;
};

// The arrivals of all streams in order of (time, adapter), as long as they are before `end_ns`.
void merge_streams(std::vector<std::pair<RenewalStream, AdapterIndex>>& streams, int64_t end_ns,
                   uint64_t max_requests, std::vector<Arrival>& arrivals) {
  using Head = std::tuple<int64_t, AdapterIndex, size_t>;
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads;
  for (size_t i = 0; i < streams.size(); ++i) {
    heads.emplace(streams[i].first.next_ns(), streams[i].second, i);
  }
  while (!heads.empty() && arrivals.size() < max_requests) {
    const auto [time_ns, adapter, index] = heads.top();
    if (time_ns >= end_ns) return;
    arrivals.push_back({time_ns, adapter});
    heads.pop();
    streams[index].first.advance();
    heads.emplace(streams[index].first.next_ns(), adapter, index);
  }
}

void refuse_too_many(double expected_requests) {
  constexpr double kMostRequests = 1e9;
  if (expected_requests <= kMostRequests) return;
  throw InputError("--duration",
                   fmt::format("about {:.0e} requests arrive in it", expected_requests),
                   "shorten it, lower the rate, or give --requests N");
}

// `rate_rps` of all streams together.
void require_an_end(const ArrivalLimit& limit, double rate_rps) {
  const ArrivalLimit none;
  if (limit.num_requests != none.num_requests) return;
  if (limit.duration_ns == none.duration_ns) {
    throw InputError("--requests", "the workload has no end", "give --requests N or --duration S");
  }
  refuse_too_many(rate_rps * double(limit.duration_ns) * 1e-9);
}

// A table of clients ends by itself.
void require_few(const ClientLoad& load, double rate_scale, const ArrivalLimit& limit) {
  if (limit.num_requests != ArrivalLimit{}.num_requests) return;
  double expected = 0;
  for (size_t window = 0; window < load.windows.size(); ++window) {
    const int64_t left_ns = limit.duration_ns - int64_t(window) * kClientWindowNs;
    if (left_ns <= 0) break;
    const double seconds = double(std::min(left_ns, kClientWindowNs)) * 1e-9;
    for (const ClientLoad::Cell& cell : load.windows[window]) {
      expected += cell.rate_rps * rate_scale * seconds;
    }
  }
  refuse_too_many(expected);
}

double scaled_ns(int64_t time_ns, double rate_factor) {
  return std::floor(double(time_ns) / rate_factor + 0.5);
}

}  // namespace

ArrivalLaw parse_arrival_law(std::string_view text, std::string_view place) {
  const auto parts = split(text, ':');
  const bool is_gamma = parts[0] == "gamma" && parts.size() == 3;
  if (!is_gamma && !(parts[0] == "poisson" && parts.size() == 2)) {
    static const std::vector<std::string> kLaws = {"poisson", "gamma", "trace"};
    throw InputError(
        place, fmt::format("unknown law of arrivals {}", shown(text)),
        did_you_mean_other(parts[0], kLaws, "give poisson:RATE, gamma:RATE:CV or trace:FILE"));
  }
  ArrivalLaw law;
  law.rate_rps = parse_number(parts[1], "rate", place);
  if (is_gamma) law.cv = parse_number(parts[2], "CV", place);
  if (law.rate_rps <= 0) throw InputError(place, "a rate of 0", "give requests per second, > 0");
  if (law.cv < 0.01 || law.cv > 100) {
    throw InputError(place, fmt::format("CV {} is out of range", law.cv), "give 0.01 .. 100");
  }
  return law;
}

std::vector<Arrival> shared_arrivals(const ArrivalLaw& law, const AdapterMix& mix,
                                     const ArrivalLimit& limit, uint64_t seed) {
  require_an_end(limit, law.rate_rps);
  std::vector<std::pair<RenewalStream, AdapterIndex>> streams;
  streams.emplace_back(RenewalStream(seed, 0, 0, law.rate_rps, gap_shape_of_cv(law.cv), 0), 0);
  std::vector<Arrival> arrivals;
  merge_streams(streams, limit.duration_ns, limit.num_requests, arrivals);
  const RandomStream picks(seed, Purpose::adapters);
  for (size_t i = 0; i < arrivals.size(); ++i) {
    arrivals[i].adapter = mix.pick(picks.unit(i), arrivals[i].time_ns);
  }
  return arrivals;
}

std::vector<Arrival> adapter_arrivals(const std::vector<double>& rates_rps, double cv,
                                      const ArrivalLimit& limit, uint64_t seed) {
  require_an_end(limit, std::accumulate(rates_rps.begin(), rates_rps.end(), 0.0));
  std::vector<std::pair<RenewalStream, AdapterIndex>> streams;
  for (AdapterIndex i = 0; i < rates_rps.size(); ++i) {
    if (rates_rps[i] <= 0) continue;
    streams.emplace_back(RenewalStream(seed, i, 0, rates_rps[i], gap_shape_of_cv(cv), 0), i);
  }
  std::vector<Arrival> arrivals;
  merge_streams(streams, limit.duration_ns, limit.num_requests, arrivals);
  return arrivals;
}

std::vector<Arrival> client_arrivals(const ClientLoad& load, double rate_scale,
                                     const ArrivalLimit& limit, uint64_t seed) {
  require_few(load, rate_scale, limit);
  std::vector<Arrival> arrivals;
  for (size_t window = 0; window < load.windows.size(); ++window) {
    const int64_t begin_ns = int64_t(window) * kClientWindowNs;
    if (begin_ns >= limit.duration_ns || arrivals.size() >= limit.num_requests) break;
    std::vector<std::pair<RenewalStream, AdapterIndex>> streams;
    for (AdapterIndex i = 0; i < load.names.size(); ++i) {
      const ClientLoad::Cell& cell = load.windows[window][i];
      const double rate_rps = cell.rate_rps * rate_scale;
      if (rate_rps <= 0) continue;
      const GapShape gap = gap_shape_of_cell(cell);
      streams.emplace_back(RenewalStream(seed, i, window, rate_rps, gap, begin_ns), i);
    }
    const int64_t end_ns = std::min(begin_ns + kClientWindowNs, limit.duration_ns);
    merge_streams(streams, end_ns, limit.num_requests, arrivals);
  }
  return arrivals;
}

std::vector<Arrival> trace_arrivals(const Trace& trace, const AdapterMix& mix,
                                    const ArrivalLimit& limit, uint64_t seed) {
  const RandomStream picks(seed, Purpose::adapters);
  std::vector<Arrival> arrivals;
  for (const TraceRequest& request : trace.requests) {
    if (request.arrival_ns >= limit.duration_ns || arrivals.size() >= limit.num_requests) break;
    const double u = picks.unit(arrivals.size());
    arrivals.push_back({request.arrival_ns, mix.pick(u, request.arrival_ns)});
  }
  return arrivals;
}

void check_rate_scale(double factor) {
  if (!(factor > 0) || !std::isfinite(factor)) {
    throw InputError("--rate-scale", fmt::format("{} is not a factor", factor), "give one > 0");
  }
}

bool fits_at_rate(const Trace& trace, double factor) {
  return std::ranges::all_of(trace.requests, [&](const TraceRequest& request) {
    return scaled_ns(request.arrival_ns, factor) < kMaxTimeNs;
  });
}

void scale_rate(Trace& trace, double factor) {
  check_rate_scale(factor);
  if (factor == 1) return;
  if (!fits_at_rate(trace, factor)) {
    throw InputError("--rate-scale", fmt::format("{} moves arrivals past 100 years", factor),
                     "give a larger factor");
  }
  for (TraceRequest& request : trace.requests) {
    const int64_t patience = request.cancel_ns - request.arrival_ns;
    request.arrival_ns = int64_t(scaled_ns(request.arrival_ns, factor));
    if (request.cancel_ns != kNever) {
      request.cancel_ns = request.arrival_ns + std::min(patience, kNever - request.arrival_ns);
    }
  }
}

}  // namespace loratory::sim
