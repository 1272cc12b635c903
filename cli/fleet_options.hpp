#pragma once

#include <string>

#include "scheduler_sim/sizing/fleet_size.hpp"

namespace CLI {
class App;
}

namespace loratory::cli {

/// Several engines behind a router, and what they cost.
struct FleetFlags {
  const CLI::App* command = nullptr;  ///< that has the flags
  std::string replicas;               ///< a number or auto; empty: one engine, no router
  std::string router = "round-robin";
  double scrape_ms = 50;
  double margin = 1.1;
  double gpu_hour_usd = 0;  ///< 0 = not known

  bool is_auto() const { return replicas == "auto"; }
};

void add_fleet_options(CLI::App& command, FleetFlags& flags);

/// Puts the fleet into the engine; of `auto`, one replica. Throws InputError.
void apply_fleet(sim::EngineSpec& engine, const FleetFlags& flags, uint64_t seed);

/// The number behind `auto` of a replay; the most that are tried if they do not suffice.
int32_t find_replicas(const std::vector<sim::Trace>& traces, const sim::EngineSpec& engine,
                      sim::EnginePoint point, const sim::Slo& slo, const FleetFlags& flags);

/// For `auto` of a sweep: the fewest replicas for each size.
std::vector<sim::ConfigResult> find_fleets(const std::vector<sim::Trace>& traces,
                                           const sim::EngineSpec& engine,
                                           const sim::SweepOptions& sweep, const FleetFlags& flags);
/// Of the cheapest of them; the most that are tried if none suffices.
int32_t replicas_of_cheapest(const std::vector<sim::ConfigResult>& fleets);

}  // namespace loratory::cli
