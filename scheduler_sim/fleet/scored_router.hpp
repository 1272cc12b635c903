#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler_sim/fleet/prefix_index.hpp"
#include "scheduler_sim/fleet/router.hpp"
#include "scheduler_sim/workload/random.hpp"

namespace loratory::sim {

/// A weight of 0 leaves the scorer out.
struct ScorerWeights {
  double queue = 0;
  double kv = 0;
  double prefix = 0;
  double lora = 0;
};

/// The endpoint picker of the Gateway API inference extension: every scorer
/// gives each replica a number from 0 to 1, the weighted sum decides, and a tie
/// is drawn (max-score-picker).
///
///   queue   (longest - waiting) / (longest - shortest), 1 if all wait alike
///   kv      1 - KV usage
///   prefix  blocks of the prompt that PrefixIndex has for the replica / blocks
///   of the prompt lora    1 the adapter runs there; .8 fewer than max_loras
///   run and wait; .6 it waits; else 0
///
/// Source: v1.4.0,
/// pkg/epp/framework/plugins/scheduling/scorer/{queue,kvcache_utilization,
/// lora_affinity}.go, scorer/prefix/, picker/max_score_picker.go.
class ScoredRouter final : public Router {
 public:
  /// `trace` outlives the router.
  ScoredRouter(const Trace& trace, const RouterOptions& options, const ScorerWeights& weights);

  int32_t route(size_t request, FleetView& fleet) override;
  bool looks_at_replicas() const override {
    return weights_.queue > 0 || weights_.kv > 0 || weights_.lora > 0;
  }

  /// Of the last request, by replica.
  const std::vector<double>& scores() const { return scores_; }

 private:
  void score_load(const std::vector<EndpointMetrics>& metrics, uint64_t num_changes);
  void score_prefix(std::span<const BlockKey> keys);
  void score_lora(AdapterIndex adapter, const std::vector<EndpointMetrics>& metrics,
                  const FleetView& fleet);
  int32_t pick(size_t request) const;

  const Trace& trace_;
  ScorerWeights weights_;
  int32_t max_loras_;
  RandomStream ties_;
  PromptBlocks blocks_;
  PrefixIndex index_;
  std::vector<double> load_;  // queue and kv, weighted, by replica
  std::optional<uint64_t> load_at_change_;
  std::vector<double> scores_;
  std::vector<int32_t> matches_;  // scratch
};

}  // namespace loratory::sim
