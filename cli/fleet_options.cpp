#include "cli/fleet_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include <cmath>

#include "cli/flags.hpp"
#include "cli/progress.hpp"

namespace loratory::cli {
namespace {

using sim::RouterKind;

constexpr RouterKind kRouters[] = {RouterKind::round_robin,   RouterKind::least_loaded,
                                   RouterKind::power_of_two,  RouterKind::prefix_affinity,
                                   RouterKind::lora_affinity, RouterKind::llm_d};
constexpr int32_t kMostReplicas = 1000;

std::vector<std::string> names_of_routers() {
  std::vector<std::string> names;
  for (const RouterKind kind : kRouters) names.emplace_back(sim::name_of(kind));
  return names;
}

RouterKind router_named(const std::string& name) {
  return *std::ranges::find(kRouters, name, [](RouterKind kind) { return sim::name_of(kind); });
}

bool reads_metrics(RouterKind kind) {
  return kind == RouterKind::lora_affinity || kind == RouterKind::llm_d;
}

sim::FleetSearch search_of(const FleetFlags& flags) {
  sim::FleetSearch search;
  search.margin = flags.margin;
  search.max_replicas = kMostReplicas;
  return search;
}

}  // namespace

void add_fleet_options(CLI::App& command, FleetFlags& flags) {
  flags.command = &command;
  command
      .add_option(
          "--replicas", flags.replicas,
          "Engines that serve the trace: a number, or auto for the fewest that meet the SLO")
      ->group("Fleet");
  add_choice(command, "--router", flags.router, names_of_routers(),
             fmt::format("Who gets a request: {}", fmt::join(names_of_routers(), ", ")))
      ->group("Fleet");
  add_number(command, "--scrape-ms", flags.scrape_ms, {0, 3'600'000},
             "How old the metrics may be that lora-affinity and llm-d route by")
      ->group("Fleet");
  add_number(command, "--margin", flags.margin, {1, 100},
             "Multiple of the traffic at which --replicas auto must meet the SLO")
      ->group("Fleet");
  add_number(command, "--gpu-hour-usd", flags.gpu_hour_usd, {0, 1e6},
             "Price of one GPU for an hour: shows what a million tokens cost; 0 = not known")
      ->group("Fleet");
}

void apply_fleet(sim::EngineSpec& engine, const FleetFlags& flags, uint64_t seed) {
  engine.gpu_hour_usd = flags.gpu_hour_usd;
  if (flags.command->get_option("--replicas")->count() == 0) {
    refuse_ignored(*flags.command, {"--router", "--scrape-ms", "--margin"},
                   "one engine alone has no router", "add --replicas N or auto");
    return;
  }
  const RouterKind router = router_named(flags.router);
  if (!reads_metrics(router)) {
    refuse_ignored(*flags.command, {"--scrape-ms"},
                   fmt::format("the router {} reads no metrics", flags.router),
                   "leave it out, or choose lora-affinity or llm-d");
  }
  if (!flags.is_auto()) {
    refuse_ignored(*flags.command, {"--margin"}, "the number of replicas is given",
                   "leave it out, or use --replicas auto");
  }
  engine.fleet = {
      .num_replicas = flags.is_auto()
                          ? 1
                          : parse_number<int32_t>("--replicas", flags.replicas, {1, kMostReplicas},
                                                  "give the number of engines, or auto"),
      .router = router,
      .scrape_interval_ns = std::llround(1e6 * flags.scrape_ms),
      .seed = seed};
}

int32_t find_replicas(const std::vector<sim::Trace>& traces, const sim::EngineSpec& engine,
                      sim::EnginePoint point, const sim::Slo& slo, const FleetFlags& flags) {
  sim::FleetSearch search = search_of(flags);
  Progress progress("replicas");
  int64_t num_tries = 0;
  const auto most_tries = int64_t(2 * std::log2(kMostReplicas)) + 2;
  search.on_try = [&](int32_t) { progress.show(num_tries++, most_tries); };
  const int32_t found = sim::fewest_replicas(traces, engine, point, slo, search);
  return found > 0 ? found : kMostReplicas;
}

std::vector<sim::ConfigResult> find_fleets(const std::vector<sim::Trace>& traces,
                                           const sim::EngineSpec& engine,
                                           const sim::SweepOptions& sweep,
                                           const FleetFlags& flags) {
  Progress progress("replicas");
  sim::SweepOptions options = sweep;
  options.on_progress = [&](int64_t done, int64_t total) { progress.show(done, total); };
  const auto points = sim::fleet_points(engine, sweep, std::ssize(traces.front().adapters));
  return sim::fewest_fleets(traces, engine, points, options, search_of(flags));
}

int32_t replicas_of_cheapest(const std::vector<sim::ConfigResult>& fleets) {
  const int32_t cheapest = sim::cheapest_fleet(fleets);
  return cheapest < 0 ? kMostReplicas : fleets[size_t(cheapest)].fleet.num_replicas;
}

}  // namespace loratory::cli
