#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "scheduler_sim/trace/trace.hpp"

namespace loratory::sim {

/// How requests are spread over the replicas. docs/fleet.md has the formula and
/// source of each.
enum class RouterKind : uint8_t {
  round_robin,
  least_loaded,
  power_of_two,
  prefix_affinity,
  lora_affinity,
  llm_d
};

/// As on the command line: "round-robin", "power-of-two", ...
std::string_view name_of(RouterKind kind);

/// What a scrape of a replica's metrics said, and when it was taken is up to
/// the fleet.
struct EndpointMetrics {
  int64_t num_waiting = 0;
  double kv_usage = 0;               ///< of the KV blocks, 0 .. 1
  int32_t num_running_adapters = 0;  ///< distinct, of running requests
  int32_t num_waiting_adapters = 0;
};

/// What a router can learn of the replicas. "Now" is the arrival of the request
/// that it routes.
class FleetView {
 public:
  virtual ~FleetView() = default;
  virtual int32_t num_replicas() const = 0;
  /// Requests that were sent to it and have not ended: the router's own count,
  /// never stale.
  virtual int64_t num_outstanding(int32_t replica) = 0;
  /// The same of every replica, by replica.
  virtual const std::vector<int64_t>& all_outstanding() = 0;
  /// Of all replicas, as last scraped. The counter grows when a scrape changed
  /// something.
  virtual const std::vector<EndpointMetrics>& scraped() = 0;
  virtual uint64_t num_scraped_changes() const = 0;
  enum class AdapterUse : uint8_t { none = 0, running = 1, waiting = 2, both = 3 };
  virtual AdapterUse scraped_use(AdapterIndex adapter, int32_t replica) const = 0;
};

/// Chooses the replica of each request when it arrives. Called once for each,
/// in order of arrival. Repeats: a router draws from a seeded stream, by the
/// index of the request.
class Router {
 public:
  virtual ~Router() = default;
  /// `request` is an index in the trace.
  virtual int32_t route(size_t request, FleetView& fleet) = 0;
  /// Does it ask for more than the number of replicas? If not, requests can be
  /// assigned before any replica runs.
  virtual bool looks_at_replicas() const = 0;
};

struct RouterOptions {
  RouterKind kind = RouterKind::round_robin;
  uint64_t seed = 0;
  int32_t num_replicas = 1;
  int32_t max_loras = 1;     ///< of a replica
  uint32_t block_size = 16;  ///< of a replica's prefix cache
  size_t kv_blocks = 0;      ///< of a replica
};

/// `trace` outlives the router.
std::unique_ptr<Router> make_router(const Trace& trace, const RouterOptions& options);

}  // namespace loratory::sim
