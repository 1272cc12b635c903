#include "scheduler_sim/sizing/fleet_size.hpp"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

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
  std::atomic<size_t> next = 0, done = 0;
  const auto work = [&] {
    for (size_t i = next++; i < points.size(); i = next++) {
      found[i] = fewest_at(traces, engine, points[i], options.slo, search);
      if (options.on_progress) options.on_progress(int64_t(++done), std::ssize(points));
    }
  };
  const auto cores = int(std::max(1u, std::thread::hardware_concurrency()));
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < (options.num_threads > 0 ? options.num_threads : cores); ++i) {
      helpers.emplace_back(work);
    }
    work();
  }
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
