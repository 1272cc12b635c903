#include "scheduler_sim/sizing/fleet_replay.hpp"

#include <algorithm>

#include "reference/base/check.hpp"
#include "scheduler_sim/fleet/fleet_result.hpp"
#include "scheduler_sim/workload/arrivals.hpp"

namespace loratory::sim {
namespace {

std::vector<Decision> decisions_of(const Replica& replica) {
  std::vector<Decision> decisions = replica.engine().log().decisions();
  for (Decision& d : decisions) {
    if (d.request != kNoRequestId) d.request = replica.requests()[d.request];
  }
  return decisions;
}

bool meets_with_every_trace(const std::vector<Trace>& traces, const EngineSpec& engine,
                            EnginePoint point, const Slo& slo) {
  return std::ranges::all_of(traces, [&](const Trace& trace) {
    return replay(trace, engine, point, slo).result.meets_slo;
  });
}

}  // namespace

void run_fleet(ReplayOutput& out, const Trace& trace, const SimulationConfig& config,
               const StepTimeModel& step_time, const EngineSpec& engine, const Slo& slo,
               bool keep_details, const OnArrivals& on_arrivals) {
  Fleet fleet(trace, config, step_time, *engine.fleet, pins_in(trace, engine));
  fleet.watch(on_arrivals);
  fleet.run();
  fill_fleet(out.result, fleet, trace, slo, config.scheduler.block_size, keep_details);
  out.result.fleet.router = name_of(engine.fleet->router);
  if (!config.keep_log) return;
  for (const Replica& replica : fleet.replicas()) {
    out.replica_decisions.push_back(decisions_of(replica));
  }
}

void fill_cost(ConfigResult& result, const EngineSpec& engine) {
  FleetSummary& fleet = result.fleet;
  fleet.num_replicas = engine.fleet ? engine.fleet->num_replicas : 1;
  fleet.num_gpus = fleet.num_replicas * engine.memory.tp;
  fleet.gpu_hours_per_million_tokens = gpu_hours_per_million_tokens(result, fleet.num_gpus);
  fleet.usd_per_million_tokens = fleet.gpu_hours_per_million_tokens * engine.gpu_hour_usd;
}

int32_t fewest_replicas(const std::vector<Trace>& traces, EngineSpec engine, EnginePoint point,
                        const Slo& slo, const FleetSearch& search) {
  LORATORY_ASSERT(engine.fleet.has_value(), "the engine says which router");
  std::vector<Trace> busier = traces;
  for (Trace& trace : busier) scale_rate(trace, search.margin);
  const auto meets = [&](int32_t num_replicas) {
    if (search.on_try) search.on_try(num_replicas);
    engine.fleet->num_replicas = num_replicas;
    return meets_with_every_trace(busier, engine, point, slo);
  };
  int32_t fails = 0, works = 1;
  while (!meets(works)) {
    if (works == search.max_replicas) return 0;
    fails = works;
    works = std::min(2 * works, search.max_replicas);
  }
  while (works - fails > 1) {
    const int32_t middle = fails + (works - fails) / 2;
    (meets(middle) ? works : fails) = middle;
  }
  return works;
}

}  // namespace loratory::sim
