#include "scheduler_sim/sizing/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/base/check.hpp"
#include "scheduler_sim/sizing/fleet_replay.hpp"
#include "scheduler_sim/sizing/memory_advice.hpp"
#include "scheduler_sim/sizing/miss_ratio_curve.hpp"
#include "scheduler_sim/sizing/recommend.hpp"
#include "scheduler_sim/sizing/sweep_rows.hpp"
#include "scheduler_sim/sizing/tasks.hpp"

namespace loratory::sim {
namespace {

// Second round of `auto`: the middles between the best row and its neighbours.
std::vector<int32_t> sizes_around_best(const SizeResult& coarse) {
  const int32_t smallest = choose(coarse, Choice::smallest);
  const int32_t best = smallest >= 0 ? smallest : best_goodput(coarse);
  std::vector<int32_t> sizes;
  if (best < 0) return sizes;
  const int32_t size = coarse.configs[size_t(best)].max_loras;
  const auto middle = [&](size_t other) {
    const int32_t mid = (size + coarse.configs[other].max_loras) / 2;
    if (mid != size && mid != coarse.configs[other].max_loras) sizes.push_back(mid);
  };
  if (best > 0) middle(size_t(best) - 1);
  if (size_t(best) + 1 < coarse.configs.size()) middle(size_t(best) + 1);
  return sizes;
}

// The rows that are drawn, with all they need: the recommended one (or the best) and its
// neighbours, of which only the CDFs are kept.
void add_details(SizeResult& result, int32_t row, int32_t chosen, const std::vector<Trace>& traces,
                 const EngineSpec& engine) {
  if (row < 0 || size_t(row) >= result.configs.size()) return;
  ConfigResult& config = result.configs[size_t(row)];
  if (!config.feasible) return;
  ConfigResult detailed =
      replay(traces[config.seed], engine, {config.max_loras, config.max_cpu_loras}, result.slo,
             ReplayDetail::details)
          .result;
  config.ttft_cdf_ms = std::move(detailed.ttft_cdf_ms);
  config.tpot_cdf_ms = std::move(detailed.tpot_cdf_ms);
  if (row != chosen) return;
  config.timeline = std::move(detailed.timeline);
  config.slot_spans = std::move(detailed.slot_spans);
  config.requests = std::move(detailed.requests);
  config.itl_counts = std::move(detailed.itl_counts);
}

// Where the miss-ratio curves have points: the sizes that auto would try, and those of the rows.
std::vector<int32_t> curve_sizes(const SizeResult& result, const Trace& trace) {
  std::vector<int32_t> sizes = auto_sizes(int64_t(trace.adapters.size()));
  for (const ConfigResult& c : result.configs) sizes.push_back(c.max_loras);
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

// The system at this size with every trace, up to the first that misses.
Remedy try_out(const Alternative& alternative, const std::vector<Trace>& traces, EnginePoint point,
               const Slo& slo) {
  Remedy remedy{.flags = alternative.flags};
  for (const Trace& trace : traces) {
    ConfigResult result = replay(trace, alternative.engine, point, slo).result;
    remedy.fits = result.feasible;
    remedy.result = std::move(result);
    if (!remedy.result.meets_slo) break;
  }
  return remedy;
}

// As many replicas as `--replicas auto` would take, if a part of the traffic meets the SLO on one.
std::optional<Remedy> more_replicas(const ConfigResult& c, const std::vector<Trace>& traces,
                                    const EngineSpec& engine, const Slo& slo) {
  if (c.headroom <= 0) return std::nullopt;
  const EnginePoint point{c.max_loras, c.max_cpu_loras};
  Alternative fleet{.flags = "", .engine = engine};
  if (!fleet.engine.fleet) fleet.engine.fleet = FleetOptions{};
  const int32_t found = fewest_replicas(traces, fleet.engine, point, slo, {});
  if (found == 0) return std::nullopt;
  fleet.engine.fleet->num_replicas = found;
  fleet.flags = fmt::format("--replicas {}", found);
  return try_out(fleet, traces, point, slo);
}

// Up to the first alternative that meets the SLO.
std::vector<Remedy> try_alternatives(const SizeResult& result, const std::vector<Trace>& traces,
                                     const SweepOptions& options) {
  if (!options.alternatives || result.configs.empty()) return {};
  const std::vector<Alternative> alternatives = options.alternatives();
  const auto closest = size_t(std::max(0, best_goodput(result)));
  const EnginePoint point{result.configs[closest].max_loras, result.configs[closest].max_cpu_loras};
  std::vector<Remedy> remedies(alternatives.size());
  run_tasks(std::ssize(alternatives), options.num_threads, [&](int64_t i) {
    remedies[size_t(i)] = try_out(alternatives[size_t(i)], traces, point, result.slo);
  });
  const auto meets = [](const Remedy& r) { return r.result.meets_slo; };
  const auto first = std::ranges::find_if(remedies, meets);
  if (first != remedies.end()) remedies.erase(first + 1, remedies.end());
  return remedies;
}

std::vector<Remedy> find_remedies(const SizeResult& result, const std::vector<Trace>& traces,
                                  const EngineSpec& engine, const SweepOptions& options) {
  const int32_t closest = best_goodput(result);
  // No other system takes requests that max_model_len does not allow.
  if (closest >= 0 && result.configs[size_t(closest)].cause.kind == CauseKind::too_long) return {};
  std::vector<Remedy> remedies = try_alternatives(result, traces, options);
  if (closest < 0) return remedies;
  if (auto fleet = more_replicas(result.configs[size_t(closest)], traces, engine, result.slo)) {
    remedies.insert(remedies.begin(), std::move(*fleet));
  }
  return remedies;
}

// What is drawn: three rows and the curves, four tasks that write to four places.
void draw_from(SizeResult& result, const std::vector<Trace>& traces, const EngineSpec& engine,
               int num_threads) {
  const int32_t chosen = result.recommended >= 0 ? result.recommended : best_goodput(result);
  const std::vector<int32_t> sizes = curve_sizes(result, traces.front());
  run_tasks(4, num_threads, [&](int64_t i) {
    if (i < 3 && chosen >= 0) add_details(result, chosen + int32_t(i) - 1, chosen, traces, engine);
    if (i < 3) return;
    const auto references = adapter_references(traces.front());
    if (!references.empty()) result.miss_ratio_curves = miss_ratio_curves(references, sizes);
  });
}

}  // namespace

std::vector<int32_t> auto_sizes(int64_t num_adapters) {
  std::vector<int32_t> sizes;
  const auto most = int32_t(std::clamp<int64_t>(num_adapters, 1, 4096));
  for (int32_t size = 1; size < most; size *= 2) sizes.push_back(size);
  sizes.push_back(most);
  return sizes;
}

int32_t most_host_places(const EngineSpec& engine, int64_t num_adapters, int32_t max_loras) {
  int64_t places = num_adapters;
  if (engine.memory.host_memory_bytes > 0) {
    const MemoryPlan one = plan_memory(engine.model, engine.gpu, engine.memory, 1, 1);
    places = std::min(places, engine.memory.host_memory_bytes / one.split.host_bytes);
  }
  return int32_t(std::max<int64_t>(max_loras, places));
}

SizeResult sweep(const std::vector<Trace>& traces, const EngineSpec& engine,
                 const SweepOptions& options) {
  LORATORY_ASSERT(!traces.empty(), "one trace per seed, at least one");
  const bool is_auto = options.max_loras.empty();
  SweepRows rows(traces, engine, options);
  rows.replay_sizes(is_auto ? auto_sizes(int64_t(traces.front().adapters.size()))
                            : options.max_loras);
  if (is_auto) rows.replay_sizes(sizes_around_best(rows.result()));
  const Yardsticks yardsticks = measure_yardsticks(traces.front(), engine, options.slo);
  if (options.find_headroom) rows.find_headrooms();
  rows.find_causes(yardsticks);

  int32_t recommended = choose(rows.result());
  if (recommended >= 0 && options.max_cpu_loras.empty()) {
    recommended = int32_t(rows.shrink_host(size_t(recommended)));
  }
  SizeResult result = rows.result();
  result.recommended = recommended;
  result.longest_request = longest_request(traces.front());
  result.smallest = choose(result, Choice::smallest);
  const int32_t focus = recommended >= 0 ? recommended : best_goodput(result);
  if (focus >= 0) result.bounds = rows.find_limit(size_t(focus), yardsticks);
  if (recommended < 0) {
    result.remedies = find_remedies(result, traces, engine, options);
    result.more_room = more_room(result, engine);
  }
  const auto shown = size_t(std::max(0, focus));
  if (!result.configs.empty() && !traces.front().adapters.empty()) {
    result.rank_cost = rank_cost(result.configs[shown], engine);
  }
  draw_from(result, traces, engine, options.num_threads);
  return result;
}

}  // namespace loratory::sim
