#pragma once

#include <cstdint>

#include "scheduler_sim/fleet/fleet.hpp"
#include "scheduler_sim/metrics/results.hpp"

namespace loratory::sim {

/// Fills `result` with the totals of a fleet that has run: percentiles over all requests, sums, the
/// mean of the replicas' busy fractions, and one entry of result.fleet.replicas for each. Records
/// are in the order of the trace; the timeline adds the replicas up, and no slots are drawn. Once.
void fill_fleet(ConfigResult& result, Fleet& fleet, const Trace& trace, const Slo& slo,
                uint32_t block_size, bool keep_details);

/// GPU-hours per million prompt and output tokens of completed requests; 0 without any.
double gpu_hours_per_million_tokens(const ConfigResult& result, int64_t num_gpus);

}  // namespace loratory::sim
