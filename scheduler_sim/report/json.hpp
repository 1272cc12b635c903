#pragma once

#include <iosfwd>

#include "scheduler_sim/sizing/size_result.hpp"

namespace loratory::sim {

/// results.json, schema "loratory.results/2": the authority; every other output is a view of it.
/// Keys are listed in docs/results.md. Doubles are printed short and read back to the same value;
/// values that are not finite are null. Same result, same bytes.
///
/// A sweep adds recommended (index into configs, null when none meets the SLOs), reason,
/// next_limit, num_seeds, miss_ratio_curves and, in each config, goodput_min/max and
/// ttft_min/max_ms over seeds.
void write_results_json(std::ostream& out, const SizeResult& result);

}  // namespace loratory::sim
