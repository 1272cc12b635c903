#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "scheduler_sim/trace/trace.hpp"
#include "scheduler_sim/workload/client_load.hpp"
#include "scheduler_sim/workload/popularity.hpp"

namespace loratory::sim {

/// One request before it has lengths.
struct Arrival {
  int64_t time_ns = 0;
  AdapterIndex adapter = 0;

  friend bool operator==(const Arrival&, const Arrival&) = default;
};

/// Where a stream of arrivals ends: at the first limit reached.
struct ArrivalLimit {
  uint64_t num_requests = std::numeric_limits<uint64_t>::max();
  int64_t duration_ns = std::numeric_limits<int64_t>::max();  ///< times lie in [0, duration_ns)
};

/// Gaps are gamma with the given CV (standard deviation / mean); CV 1 is the Poisson process.
/// `poisson:RATE` or `gamma:RATE:CV` in a flag.
struct ArrivalLaw {
  double rate_rps = 1;  ///< requests per second, > 0
  double cv = 1;        ///< > 0
};

/// Throws InputError at `place` (the name of the flag).
ArrivalLaw parse_arrival_law(std::string_view text, std::string_view place = "--arrivals");

/// Every stream below is a stationary renewal process: the first gap has the law of the time that
/// is left when one looks in at random, so nothing special happens at time 0. Equal times keep the
/// order of adapters. The same arguments give the same arrivals on any machine.
/// Cost: one draw and O(log streams) an arrival.

/// One stream for all; every request draws its adapter from `mix`.
std::vector<Arrival> shared_arrivals(const ArrivalLaw& law, const AdapterMix& mix,
                                     const ArrivalLimit& limit, uint64_t seed);

/// One stream per adapter with its own rate (0: never) and one CV for all.
std::vector<Arrival> adapter_arrivals(const std::vector<double>& rates_rps, double cv,
                                      const ArrivalLimit& limit, uint64_t seed);

/// One stream per client of ServeGen: in each window the window's rate, times `rate_scale`, and its
/// gap law. Ends with the last window at the latest.
std::vector<Arrival> client_arrivals(const ClientLoad& load, double rate_scale,
                                     const ArrivalLimit& limit, uint64_t seed);

/// The arrivals of `trace` (adapters drawn from `mix`), up to the limit.
std::vector<Arrival> trace_arrivals(const Trace& trace, const AdapterMix& mix,
                                    const ArrivalLimit& limit, uint64_t seed);

/// Throws InputError at "--rate-scale" unless factor is finite and > 0.
void check_rate_scale(double factor);

/// Whether no arrival would lie past 100 years after scale_rate().
bool fits_at_rate(const Trace& trace, double factor);

/// Multiplies the request rate: every arrival time is divided by `factor` and rounded to the
/// nearest nanosecond. A client's patience (cancel - arrival) stays as it is.
/// Throws as check_rate_scale, and when the times no longer fit.
void scale_rate(Trace& trace, double factor);

}  // namespace loratory::sim
