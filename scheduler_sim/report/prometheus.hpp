#pragma once

#include <iosfwd>

#include "scheduler_sim/sizing/size_result.hpp"

namespace loratory::sim {

/// A snapshot of one configuration at the end of its replay, Prometheus text format 0.0.4.
///
/// What vLLM exposes has its name, labels and unit here: counters hold the whole run, latencies of
/// completed requests are histograms with vLLM's own bounds, so that its dashboards and alert rules
/// load unchanged. A gap between two tokens within 0.05 % of a bound may be on its other side.
/// Histograms need the result's requests and itl_counts; without them they are empty. Our own
/// metrics begin with loratory_ and are listed in docs/results.md.
void write_prometheus(std::ostream& out, const ConfigResult& config,
                      const WorkloadSummary& workload, const Provenance& provenance);

}  // namespace loratory::sim
