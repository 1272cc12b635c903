#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "scheduler_sim/fleet/replica.hpp"
#include "scheduler_sim/fleet/router.hpp"

namespace loratory::sim {

/// What a router has of the replicas' metrics endpoints. Each replica is scraped every interval,
/// replica r of n at r/n of it, since a gateway has one ticker for each; before its first scrape a
/// replica looks idle. Interval 0: every replica is scraped at every look.
///
/// The metrics are vLLM's: num_requests_waiting, kv_cache_usage_perc, and the adapters of
/// lora_requests_info, which are those of running and of waiting requests, not those in slots.
/// Source: Gateway API inference extension v1.4.0, pkg/epp/server/options.go (50 ms) and
/// framework/plugins/datalayer/extractor/metrics/extractor.go.
class MetricsScrapes {
 public:
  MetricsScrapes(int32_t num_replicas, size_t num_adapters, int64_t interval_ns);

  /// Takes the scrapes that were due by `now_ns`. No replica is past the last `now_ns`, but for
  /// what it was sent then.
  void take_due(int64_t now_ns, std::deque<Replica>& replicas);

  const std::vector<EndpointMetrics>& metrics() const { return metrics_; }
  uint64_t num_changes() const { return num_changes_; }
  FleetView::AdapterUse use_of(AdapterIndex adapter, int32_t replica) const;

 private:
  int64_t num_due(int64_t now_ns) const;
  int64_t time_of(int64_t scrape) const;
  void take(int64_t time_ns, int32_t replica, const SimulatedEngine& engine);
  void take_adapters(int32_t replica, const SimulatedEngine& engine);
  int32_t add_use(AdapterIndex adapter, int32_t replica, FleetView::AdapterUse use);

  int64_t interval_ns_;
  int64_t num_taken_ = 0;                 // scrapes are numbered in the order of their times
  std::vector<EndpointMetrics> metrics_;  // by replica
  std::vector<uint64_t> num_decisions_;   // by replica, when its adapters were noted
  std::vector<std::vector<AdapterIndex>> in_use_;  // by replica: those with an entry in uses_
  size_t num_adapters_;
  std::vector<uint8_t> uses_;  // by adapter, then replica; empty until there is one
  uint64_t num_changes_ = 0;
};

}  // namespace loratory::sim
