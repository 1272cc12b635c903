#include "scheduler_sim/fleet/router.hpp"

#include <algorithm>

#include "reference/base/check.hpp"
#include "scheduler_sim/fleet/scored_router.hpp"
#include "scheduler_sim/workload/random.hpp"

namespace loratory::sim {
namespace {

class RoundRobin final : public Router {
 public:
  int32_t route(size_t request, FleetView& fleet) override {
    return int32_t(request % size_t(fleet.num_replicas()));
  }
  bool looks_at_replicas() const override { return false; }
};

// Of those with the fewest outstanding requests, the next one after the last
// choice.
class LeastLoaded final : public Router {
 public:
  int32_t route(size_t /*request*/, FleetView& fleet) override {
    const std::vector<int64_t>& outstanding = fleet.all_outstanding();
    const int64_t fewest = *std::ranges::min_element(outstanding);
    auto best = std::find(outstanding.begin() + next_, outstanding.end(), fewest);
    if (best == outstanding.end()) best = std::ranges::find(outstanding, fewest);
    const auto replica = int32_t(best - outstanding.begin());
    next_ = replica + 1 < fleet.num_replicas() ? replica + 1 : 0;
    return replica;
  }
  bool looks_at_replicas() const override { return true; }

 private:
  int32_t next_ = 0;
};

// Two draws, which may hit the same replica; the first wins a tie.
class PowerOfTwo final : public Router {
 public:
  explicit PowerOfTwo(uint64_t seed) : stream_(seed, Purpose::routing) {}
  int32_t route(size_t request, FleetView& fleet) override {
    const auto n = uint64_t(fleet.num_replicas());
    const auto first = int32_t(stream_.below(n, 2 * request));
    const auto second = int32_t(stream_.below(n, 2 * request + 1));
    return fleet.num_outstanding(second) < fleet.num_outstanding(first) ? second : first;
  }
  bool looks_at_replicas() const override { return true; }

 private:
  RandomStream stream_;
};

}  // namespace

std::string_view name_of(RouterKind kind) {
  switch (kind) {
    case RouterKind::round_robin:
      return "round-robin";
    case RouterKind::least_loaded:
      return "least-loaded";
    case RouterKind::power_of_two:
      return "power-of-two";
    case RouterKind::prefix_affinity:
      return "prefix-affinity";
    case RouterKind::lora_affinity:
      return "lora-affinity";
    case RouterKind::llm_d:
      return "llm-d";
  }
  return "";
}

std::unique_ptr<Router> make_router(const Trace& trace, const RouterOptions& options) {
  switch (options.kind) {
    case RouterKind::round_robin:
      return std::make_unique<RoundRobin>();
    case RouterKind::least_loaded:
      return std::make_unique<LeastLoaded>();
    case RouterKind::power_of_two:
      return std::make_unique<PowerOfTwo>(options.seed);
    case RouterKind::prefix_affinity:
      return std::make_unique<ScoredRouter>(trace, options, ScorerWeights{.prefix = 1});
    case RouterKind::lora_affinity:
      return std::make_unique<ScoredRouter>(
          trace, options, ScorerWeights{.queue = 1, .kv = 1, .prefix = 1, .lora = 1});
    case RouterKind::llm_d:
      return std::make_unique<ScoredRouter>(trace, options,
                                            ScorerWeights{.queue = 2, .kv = 2, .prefix = 3});
  }
  LORATORY_ASSERT(false, "every router has a name");
  return nullptr;
}

}  // namespace loratory::sim
