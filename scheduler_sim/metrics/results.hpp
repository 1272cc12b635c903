#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler_sim/cost/memory_split.hpp"
#include "scheduler_sim/metrics/cause.hpp"

namespace loratory::sim {

/// Milliseconds. Percentiles by linear interpolation between order statistics.
struct LatencySummary {
  double mean_ms = 0, p50_ms = 0, p90_ms = 0, p95_ms = 0, p99_ms = 0;
  double pslo_ms = 0;  ///< at the percentile that the SLO is judged on
  double std_ms = 0;   ///< of the population (numpy's default, ddof 0)
};

/// So many durations of about `ns`.
struct DurationCount {
  double ns = 0;
  int64_t count = 0;
};

/// Where a request's adapter was when the request arrived. Names in requests.csv: report/csv.cpp.
enum class ArrivalTier : uint8_t { base_model, gpu, cpu, disk };

/// How a request ended: `rejected` was never accepted, `failed` lost its adapter.
enum class RequestOutcome : uint8_t { unfinished, completed, cancelled, failed, rejected };

/// How one request went. Times are virtual nanoseconds since the start of the trace; -1 = never.
struct RequestRecord {
  int64_t arrival_ns = 0;
  int64_t first_scheduled_ns = -1;  ///< its admission: the plan of its first step
  int64_t first_token_ns = -1;
  int64_t finish_ns = -1;  ///< last token (or abort / error)
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;     ///< generated so far
  uint32_t cached_tokens = 0;     ///< prompt tokens served by the prefix cache at first admission
  uint32_t adapter = UINT32_MAX;  ///< AdapterIndex of the trace, UINT32_MAX = base model
  uint16_t num_preemptions = 0;
  ArrivalTier tier_at_arrival = ArrivalTier::base_model;
  RequestOutcome outcome = RequestOutcome::unfinished;
  /// Parts of the time from arrival to admission: the adapter was not in host memory; it was there
  /// and had no slot; it was being copied. The rest it waited for blocks, budget or a seat. Zero in
  /// blocking load mode, which admits first.
  int64_t wait_load_ns = 0, wait_slot_ns = 0, wait_copy_ns = 0;
};

/// What requests waited for before their admission.
struct WaitShare {
  double requests = 0;      ///< share of all requests that waited 1 ms or more for it
  double of_late_time = 0;  ///< its share of the waiting of those that miss the TTFT limit
};
struct Waits {
  WaitShare load, slot, copy;  ///< as in RequestRecord
  WaitShare batch;             ///< the rest
};

/// One point of the sampled timeline (for charts).
struct TimelineSample {
  int64_t time_ns = 0;
  int32_t num_running = 0;
  int32_t num_waiting = 0;
  int32_t num_adapters_gpu = 0;
  int64_t kv_blocks_used = 0;
};

/// Adapter `adapter` was resident in `slot` during [begin_ns, end_ns).
struct SlotSpan {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  uint32_t adapter = 0;  ///< AdapterIndex
  uint16_t slot = 0;
};

/// One engine of a fleet: its share of the requests, and how they went there.
struct ReplicaResult {
  int64_t num_requests = 0;
  int64_t num_adapters = 0;  ///< distinct, that its requests asked for
  double slo_attainment = 0;
  double p50_ttft_ms = 0, slo_ttft_ms = 0, slo_tpot_ms = 0;
  double adapter_gpu_hit_ratio = 0;
  int64_t adapter_copies = 0;
  double prefix_hit_ratio_tokens = 0;
  int64_t num_preemptions = 0;
  int64_t max_waiting = 0;
  double gpu_busy_s = 0;  ///< time in steps
  std::string event_log_hash;
};

/// Engines of one configuration behind a router; the default is one engine and no router.
struct FleetSummary {
  int32_t num_replicas = 1;
  int32_t num_gpus = 1;                     ///< replicas x tp
  std::string router;                       ///< empty: one engine alone
  double gpu_hours_per_million_tokens = 0;  ///< prompt and output tokens of completed requests
  double usd_per_million_tokens = 0;        ///< 0 = no price was given
  std::vector<ReplicaResult> replicas;
};

/// One configuration, replayed. The names are those of results.json.
struct ConfigResult {
  int32_t max_loras = 0;
  int32_t max_cpu_loras = 0;
  uint64_t seed = 0;

  bool feasible = true;  ///< false: it does not fit; `problem` says why, metrics are zero
  bool meets_slo = false;
  std::string problem;        ///< of one that does not fit: what is short, by how much
  Cause cause;                ///< `miss` always; the rest where sizing has looked for it
  int32_t num_seeds = 1;      ///< of a sweep: replays behind this row; meets_slo is all of them
  int32_t num_seeds_met = 0;  ///< those that meet the SLO
  /// Largest factor of the rate at which the SLO is met with every seed; 0 = none of those tried,
  /// -1 = not known.
  double headroom = -1;

  int64_t num_requests = 0;
  int64_t completed = 0;
  int64_t cancelled = 0;
  int64_t failed = 0;
  double duration_s = 0;
  int64_t total_input_tokens = 0;       ///< prompt tokens of completed requests
  int64_t total_output_tokens = 0;      ///< output tokens of completed requests
  int64_t max_concurrent_requests = 0;  ///< most completed requests between arrival and last token
  double request_throughput = 0;        ///< completed requests / s
  double total_token_throughput = 0;    ///< prompt + output tokens of completed requests / s
  double output_throughput = 0;         ///< output tokens / s
  double request_goodput = 0;           ///< completed requests that meet every SLO / s
  double slo_attainment = 0;            ///< fraction of all requests that meet every SLO

  LatencySummary ttft, tpot, itl, e2el, queue;

  /// What the SLO is judged on, at its percentile: ttft.pslo_ms, or with the requests that were
  /// cancelled before their first token, each with the time that it had waited, if that is more;
  /// and tpot.pslo_ms.
  double slo_ttft_ms = 0, slo_tpot_ms = 0;

  double adapter_gpu_hit_ratio = 0;  ///< of requests with an adapter: on the GPU at their arrival
  double adapter_cpu_hit_ratio = 0;  ///< of those not on the GPU: on the CPU
  int64_t adapter_loads = 0;         ///< disk -> CPU
  int64_t adapter_load_bytes = 0;
  int64_t adapter_copies = 0;  ///< CPU -> GPU
  int64_t adapter_copy_bytes = 0;
  double prefix_hit_ratio_tokens = 0;
  double prefix_hit_ratio_blocks = 0;
  int64_t num_preemptions = 0;
  int64_t num_drains = 0;
  int64_t num_steps = 0;
  double mean_batch_seqs = 0;
  double gpu_busy_fraction = 0;  ///< step time / duration
  int64_t max_waiting = 0;       ///< most that waited at one time; of a fleet, for one replica
  int64_t max_running = 0;       ///< most requests in a step
  int64_t max_kv_blocks = 0;     ///< most blocks in use at one time
  Waits waits;

  FleetSummary fleet;  ///< everything above is of the whole fleet, `memory` of one replica
  MemorySplit memory;
  std::string event_log_hash;  ///< 16 hex digits

  /// Kept only for the configurations the report draws; empty otherwise.
  std::vector<double> ttft_cdf_ms;  ///< 101 quantiles, 0 % .. 100 %
  std::vector<double> tpot_cdf_ms;
  std::vector<DurationCount> itl_counts;  ///< ascending; each ns is within 0.05 % of the exact one
  std::vector<TimelineSample> timeline;
  std::vector<SlotSpan> slot_spans;
  std::vector<RequestRecord> requests;
};

/// Service-level objectives; a limit <= 0 is not set. Judged on the stated percentile.
struct Slo {
  double ttft_ms = 0;
  double tpot_ms = 0;
  double percentile = 99;
};

}  // namespace loratory::sim
