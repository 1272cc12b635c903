#include "scheduler_sim/sizing/fleet_size.hpp"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "scheduler_sim/sizing/tasks.hpp"

namespace loratory::sim {
namespace {

std::optional<ConfigResult> fewest_at(const std::vector<Trace>& traces, EngineSpec engine,
                                      EnginePoint point, const Slo& slo,
                                      const FleetSearch& search) {
  const int32_t found = fewest_replicas(traces, engine, point, slo, search);
  if (found == 0) return std::nullopt;
  engine.fleet->num_replicas = found;
  return replay(traces.front(), engine, point, slo).result;
}

}  // namespace

std::vector<EnginePoint> fleet_points(const EngineSpec& engine, const SweepOptions& options,
                                      int64_t num_adapters) {
  std::vector<EnginePoint> points;
  for (const int32_t size :
       options.max_loras.empty() ? auto_sizes(num_adapters) : options.max_loras) {
    const int32_t cpu = options.max_cpu_loras.empty() ? most_host_places(engine, num_adapters, size)
                                                      : options.max_cpu_loras.back();
    if (cpu >= size) points.push_back({size, cpu});
  }
  return points;
}

std::vector<ConfigResult> fewest_fleets(const std::vector<Trace>& traces, const EngineSpec& engine,
                                        const std::vector<EnginePoint>& points,
                                        const SweepOptions& options, const FleetSearch& search) {
  std::vector<std::optional<ConfigResult>> found(points.size());
  std::atomic<int64_t> done = 0;
  run_tasks(std::ssize(points), options.num_threads, [&](int64_t i) {
    found[size_t(i)] = fewest_at(traces, engine, points[size_t(i)], options.slo, search);
    if (options.on_progress) options.on_progress(++done, std::ssize(points));
  });
  std::vector<ConfigResult> fleets;
  for (std::optional<ConfigResult>& fleet : found) {
    if (fleet) fleets.push_back(std::move(*fleet));
  }
  return fleets;
}

int32_t cheapest_fleet(const std::vector<ConfigResult>& fleets) {
  const auto best = std::ranges::min_element(
      fleets, {}, [](const ConfigResult& c) { return std::pair(c.fleet.num_gpus, c.slo_ttft_ms); });
  return best == fleets.end() ? -1 : int32_t(best - fleets.begin());
}

}  // namespace loratory::sim
