#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "scheduler_sim/fleet/metrics_scrapes.hpp"
#include "scheduler_sim/fleet/replica.hpp"
#include "scheduler_sim/fleet/router.hpp"

namespace loratory::sim {

struct FleetOptions {
  int32_t num_replicas = 1;
  RouterKind router = RouterKind::round_robin;
  int64_t scrape_interval_ns = 50'000'000;  ///< of metrics; 0 = never stale
  uint64_t seed = 0;                        ///< of the router's draws
};

/// Replays one trace over several engines of one configuration, in virtual time. Each request goes
/// to a replica when it arrives; replicas share nothing but the clock.
///
/// A router that looks at no replica has its requests assigned first, and then each replica runs
/// on its own. For the others there is one loop in the order of arrivals, in which a replica
/// advances when its next decision is due or somebody looks at it.
///
/// Repeats  same trace, configuration and options: same assignment, same event logs.
/// Cost     that of the replicas' own replays; a request that is routed by load costs O(replicas).
class Fleet : private FleetView {
 public:
  /// `trace` and `step_time` outlive the fleet. `pins` are on every GPU from the start.
  Fleet(const Trace& trace, const SimulationConfig& config, const StepTimeModel& step_time,
        const FleetOptions& options, const std::vector<AdapterIndex>& pins = {});

  /// `on_arrivals` is called once every 4,096 requests with how many have arrived; before run().
  void watch(std::function<void(int64_t)> on_arrivals) { on_arrivals_ = std::move(on_arrivals); }
  /// Runs to the end: every request finished. Once.
  void run();
  /// The same with a router of one's own.
  void run(Router& router);

  std::deque<Replica>& replicas() { return replicas_; }
  const std::deque<Replica>& replicas() const { return replicas_; }

 private:
  int32_t num_replicas() const override { return options_.num_replicas; }
  int64_t num_outstanding(int32_t replica) override;
  const std::vector<int64_t>& all_outstanding() override;
  const std::vector<EndpointMetrics>& scraped() override;
  uint64_t num_scraped_changes() const override { return scrapes_.num_changes(); }
  AdapterUse scraped_use(AdapterIndex adapter, int32_t replica) const override {
    return scrapes_.use_of(adapter, replica);
  }

  void run_apart(Router& router);
  void run_together(Router& router);
  void send(size_t request, int32_t replica);
  void count_arrival();

  const Trace& trace_;
  RouterOptions router_options_;
  FleetOptions options_;
  std::deque<Replica> replicas_;
  MetricsScrapes scrapes_;
  int64_t now_ns_ = 0;                // arrival of the request that is routed
  std::vector<int64_t> outstanding_;  // by replica, up to date until counted_until_ns_
  std::vector<int64_t> counted_until_ns_;
  int64_t num_arrivals_ = 0;
  std::function<void(int64_t)> on_arrivals_;
};

}  // namespace loratory::sim
