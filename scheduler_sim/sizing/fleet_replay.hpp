#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "scheduler_sim/sizing/engine_replay.hpp"

namespace loratory::sim {

/// Runs the fleet that `engine` asks for and fills the result's metrics, hash and replicas, and
/// where decisions are kept, those of each replica with the trace's request numbers.
void run_fleet(ReplayOutput& out, const Trace& trace, const SimulationConfig& config,
               const StepTimeModel& step_time, const EngineSpec& engine, const Slo& slo,
               bool keep_details, const OnArrivals& on_arrivals);

/// What the fleet of a result costs: replicas x tp GPUs, for as long as the replay took.
void fill_cost(ConfigResult& result, const EngineSpec& engine);

/// How `--replicas auto` searches.
struct FleetSearch {
  double margin = 1.1;          ///< the SLO must be met at this multiple of the traffic
  int32_t max_replicas = 1000;  ///< the search ends here
  /// Called before each replay with the number of replicas.
  std::function<void(int32_t num_replicas)> on_try;
};

/// The fewest replicas that meet the SLO with every trace, by doubling and then bisection; 0 if
/// max_replicas do not, or if one replica does not fit. More replicas are taken to be no worse.
int32_t fewest_replicas(const std::vector<Trace>& traces, EngineSpec engine, EnginePoint point,
                        const Slo& slo, const FleetSearch& search);

}  // namespace loratory::sim
