#include "scheduler_sim/fleet/scored_router.hpp"

#include <algorithm>

namespace loratory::sim {

using AdapterUse = FleetView::AdapterUse;

ScoredRouter::ScoredRouter(const Trace& trace, const RouterOptions& options,
                           const ScorerWeights& weights)
    : trace_(trace),
      weights_(weights),
      max_loras_(options.max_loras),
      ties_(options.seed, Purpose::routing),
      blocks_(trace, options.block_size),
      index_(options.num_replicas, options.kv_blocks),
      load_(size_t(options.num_replicas), 0) {}

int32_t ScoredRouter::route(size_t request, FleetView& fleet) {
  const TraceRequest& r = trace_.requests[request];
  const std::vector<EndpointMetrics> none;
  const std::vector<EndpointMetrics>& metrics = looks_at_replicas() ? fleet.scraped() : none;
  score_load(metrics, fleet.num_scraped_changes());
  scores_ = load_;
  const auto keys = weights_.prefix > 0 ? blocks_.of(r) : std::span<const BlockKey>{};
  if (!keys.empty()) score_prefix(keys);
  if (weights_.lora > 0) score_lora(r.adapter, metrics, fleet);
  const int32_t replica = pick(request);
  index_.add(keys, replica);
  return replica;
}

void ScoredRouter::score_load(const std::vector<EndpointMetrics>& metrics, uint64_t num_changes) {
  if (metrics.empty() || load_at_change_ == num_changes) return;
  load_at_change_ = num_changes;
  const auto [shortest, longest] = std::ranges::minmax(metrics, {}, &EndpointMetrics::num_waiting);
  const int64_t range = longest.num_waiting - shortest.num_waiting;
  for (size_t i = 0; i < metrics.size(); ++i) {
    const double queue =
        range == 0 ? 1 : double(longest.num_waiting - metrics[i].num_waiting) / double(range);
    load_[i] = queue * weights_.queue + (1 - metrics[i].kv_usage) * weights_.kv;
  }
}

void ScoredRouter::score_prefix(std::span<const BlockKey> keys) {
  index_.match(keys, matches_);
  for (size_t i = 0; i < scores_.size(); ++i) {
    scores_[i] += double(matches_[i]) / double(keys.size()) * weights_.prefix;
  }
}

// A request to the base model asks for a name that no replica lists among its
// adapters.
void ScoredRouter::score_lora(AdapterIndex adapter, const std::vector<EndpointMetrics>& metrics,
                              const FleetView& fleet) {
  for (size_t i = 0; i < scores_.size(); ++i) {
    const AdapterUse use =
        adapter == kBaseModel ? AdapterUse::none : fleet.scraped_use(adapter, int32_t(i));
    const bool has_room =
        metrics[i].num_running_adapters + metrics[i].num_waiting_adapters < max_loras_;
    const bool runs = use == AdapterUse::running || use == AdapterUse::both;
    const double score = runs ? 1 : has_room ? 0.8 : use == AdapterUse::waiting ? 0.6 : 0;
    scores_[i] += score * weights_.lora;
  }
}

int32_t ScoredRouter::pick(size_t request) const {
  const double best = *std::ranges::max_element(scores_);
  const auto num_best = uint64_t(std::ranges::count(scores_, best));
  uint64_t skip = num_best > 1 ? ties_.below(num_best, request) : 0;
  for (size_t i = 0;; ++i) {
    if (scores_[i] == best && skip-- == 0) return int32_t(i);
  }
}

}  // namespace loratory::sim
