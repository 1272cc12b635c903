#pragma once

#include <iosfwd>

#include "scheduler_sim/sizing/size_result.hpp"

namespace loratory::sim {

/// A snapshot of one configuration at the end of its replay, Prometheus text format 0.0.4.
///
/// A metric that vLLM exposes as `vllm:x` is `loratory:x` here with the same unit and labels
/// (model_name), so that a dashboard moves over by its prefix. Latencies are summaries (quantiles
/// .5, .9, .99) where vLLM has histograms; the rest of the names are listed in docs/results.md.
void write_prometheus(std::ostream& out, const ConfigResult& config,
                      const WorkloadSummary& workload);

}  // namespace loratory::sim
