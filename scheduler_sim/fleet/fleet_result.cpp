#include "scheduler_sim/fleet/fleet_result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace loratory::sim {
namespace {

int64_t num_adapters_of(const Replica& replica, const Trace& trace) {
  std::unordered_set<AdapterIndex> adapters;
  for (const size_t request : replica.requests()) {
    adapters.insert(trace.requests[request].adapter);
  }
  adapters.erase(kBaseModel);
  return std::ssize(adapters);
}

ReplicaResult replica_result(const ConfigResult& r, const Replica& replica, const Trace& trace) {
  return {.num_requests = r.num_requests,
          .num_adapters = num_adapters_of(replica, trace),
          .slo_attainment = r.slo_attainment,
          .p50_ttft_ms = r.ttft.p50_ms,
          .slo_ttft_ms = r.slo_ttft_ms,
          .slo_tpot_ms = r.slo_tpot_ms,
          .adapter_gpu_hit_ratio = r.adapter_gpu_hit_ratio,
          .adapter_copies = r.adapter_copies,
          .prefix_hit_ratio_tokens = r.prefix_hit_ratio_tokens,
          .num_preemptions = r.num_preemptions,
          .max_waiting = r.max_waiting,
          .gpu_busy_s = r.gpu_busy_fraction * r.duration_s,
          .event_log_hash = replica.engine().log().hash()};
}

// Sums of the replicas' last samples, taken where one of them has a new one, so far apart as those
// of one replica are.
std::vector<TimelineSample> sum_of(const std::vector<std::vector<TimelineSample>>& timelines,
                                   int64_t every_ns) {
  std::vector<std::pair<TimelineSample, size_t>> samples;
  for (size_t i = 0; i < timelines.size(); ++i) {
    for (const TimelineSample& sample : timelines[i]) samples.emplace_back(sample, i);
  }
  std::ranges::stable_sort(samples, {}, [](const auto& entry) { return entry.first.time_ns; });
  std::vector<TimelineSample> last(timelines.size()), sums;
  TimelineSample sum;
  int64_t next_ns = 0;
  for (const auto& [sample, i] : samples) {
    sum.num_running += sample.num_running - last[i].num_running;
    sum.num_waiting += sample.num_waiting - last[i].num_waiting;
    sum.num_adapters_gpu += sample.num_adapters_gpu - last[i].num_adapters_gpu;
    sum.kv_blocks_used += sample.kv_blocks_used - last[i].kv_blocks_used;
    last[i] = sample;
    if (sample.time_ns < next_ns) continue;
    sum.time_ns = sample.time_ns;
    next_ns = sample.time_ns + every_ns;
    sums.push_back(sum);
  }
  return sums;
}

std::string hash_of(const std::vector<ReplicaResult>& replicas) {
  if (replicas.size() == 1) return replicas.front().event_log_hash;
  std::string hashes;
  for (const ReplicaResult& replica : replicas) hashes += replica.event_log_hash;
  return fmt::format("{:016x}", XXH3_64bits(hashes.data(), hashes.size()));
}

}  // namespace

void fill_fleet(ConfigResult& result, Fleet& fleet, const Trace& trace, const Slo& slo,
                uint32_t block_size, bool keep_details) {
  MetricsCollector total(trace);
  for (const Replica& replica : fleet.replicas()) {
    total.absorb(replica.metrics(), replica.requests());
  }
  total.fill(result, slo, block_size, keep_details);
  std::vector<std::vector<TimelineSample>> timelines;
  for (Replica& replica : fleet.replicas()) {
    ConfigResult own;
    replica.metrics().fill(own, slo, block_size, keep_details);
    result.fleet.replicas.push_back(replica_result(own, replica, trace));
    timelines.push_back(std::move(own.timeline));
  }
  const auto num_replicas = int64_t(fleet.replicas().size());
  result.gpu_busy_fraction /= double(num_replicas);
  result.timeline = sum_of(timelines, total.sample_every_ns());
  result.event_log_hash = hash_of(result.fleet.replicas);
}

double gpu_hours_per_million_tokens(const ConfigResult& result, int64_t num_gpus) {
  const double tokens_per_hour = result.total_token_throughput * 3600;
  return tokens_per_hour > 0 ? double(num_gpus) / tokens_per_hour * 1e6 : 0;
}

}  // namespace loratory::sim
