#pragma once

#include <vector>

#include "scheduler_sim/report/html/markup.hpp"
#include "scheduler_sim/sizing/size_result.hpp"

/// What the console and the page say of a fleet.
namespace loratory::sim::report {

/// Is there a fleet, or a price?
bool shows_fleet(const SizeResult& result);

/// Replicas, GPUs and what a million tokens cost, one row a configuration that fits; max_cpu_loras
/// too, where it differs.
DataTable fleet_cost_table(const std::vector<ConfigResult>& configs);

/// One row a replica; of more than 12, the lowest, the median and the highest of each column.
DataTable replica_table(const ConfigResult& config, const Slo& slo);

/// The configuration whose replicas are shown: the recommended one, else the first of a fleet;
/// nullptr if there is none.
const ConfigResult* shown_fleet(const SizeResult& result);

}  // namespace loratory::sim::report
