#pragma once

#include <cstdint>
#include <vector>

#include "scheduler_sim/sizing/fleet_replay.hpp"
#include "scheduler_sim/sizing/sweep.hpp"

namespace loratory::sim {

/// The points that are compared: each max_loras of the sweep (or those that `auto` tries first)
/// with the largest host size that was asked for, else with most_host_places(), as in the sweep.
std::vector<EnginePoint> fleet_points(const EngineSpec& engine, const SweepOptions& options,
                                      int64_t num_adapters);

/// Replicas against max_loras: for each point the fewest replicas that meet the SLO
/// (fewest_replicas), replayed with the first trace at its own rate. Points for which there is no
/// such number are left out. On all cores; calls options.on_progress after each point.
std::vector<ConfigResult> fewest_fleets(const std::vector<Trace>& traces, const EngineSpec& engine,
                                        const std::vector<EnginePoint>& points,
                                        const SweepOptions& options, const FleetSearch& search);

/// The one with the fewest GPUs; of equal ones that with the lowest TTFT at the SLO's percentile.
/// -1 = there is none.
int32_t cheapest_fleet(const std::vector<ConfigResult>& fleets);

}  // namespace loratory::sim
