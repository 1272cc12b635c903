#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "reference/base/units.hpp"
#include "scheduler_sim/sizing/size_result.hpp"
#include "scheduler_sim/trace/trace.hpp"

/// Results made by hand: small_result() for the golden files, big_result() for the page. Nothing in
/// them was simulated; the shapes are those of a real sweep.
namespace loratory::sim::test {

inline constexpr int64_t kMs = 1'000'000;
inline constexpr int64_t kMiB = int64_t{1} << 20;

/// Judged at the 99th percentile.
inline LatencySummary latency(double mean, double p50, double p90, double p99) {
  return {mean, p50, p90, (p90 + p99) / 2, p99, p99, (p99 - p50) / 2};
}

/// 80 GiB card, 8B model: the law "slots + KV = constant".
inline MemorySplit memory_with(int32_t max_loras, int64_t slot_mib) {
  MemorySplit m;
  m.hbm_bytes = 72 * kGiB;
  m.weights_bytes = 15 * kGiB;
  m.reserve_bytes = 3 * kGiB;
  m.slot_bytes = max_loras * slot_mib * kMiB;
  m.block_bytes = 2 * kMiB;
  const int64_t left = m.hbm_bytes - m.weights_bytes - m.reserve_bytes - m.slot_bytes;
  m.kv_bytes = left > 0 ? left : 0;
  m.kv_blocks = m.kv_bytes / m.block_bytes;
  m.host_bytes = 256 * slot_mib * kMiB;
  return m;
}

/// Names that would break a careless writer.
inline std::vector<TraceAdapter> small_adapters() {
  return {{"sql-expert", 8}, {"<script>alert(1)</script>", 16}, {"legal, \"v2\"", 64}};
}

// Of small_requests(), for what their records do not repeat.
inline Trace small_trace() {
  Trace trace;
  trace.adapters = small_adapters();
  trace.requests.resize(4);
  trace.requests[0].session = 7;
  trace.requests[2].priority = -1;
  trace.ids = {"chat-9", "", "-5", ""};
  return trace;
}

inline std::vector<RequestRecord> small_requests() {
  RequestRecord served{0,
                       2 * kMs,
                       40 * kMs,
                       400 * kMs,
                       128,
                       20,
                       64,
                       0,
                       1,
                       ArrivalTier::cpu,
                       RequestOutcome::completed};
  RequestRecord base{5 * kMs + 250,
                     6 * kMs,
                     90 * kMs,
                     90 * kMs,
                     7,
                     1,
                     0,
                     kBaseModel,
                     0,
                     ArrivalTier::base_model,
                     RequestOutcome::completed};
  RequestRecord cancelled{
      9 * kMs, -1, -1, 700 * kMs, 300, 0, 0, 1, 0, ArrivalTier::disk, RequestOutcome::cancelled};
  RequestRecord unfinished{
      11 * kMs, 20 * kMs, -1, -1, 4096, 0, 0, 2, 0, ArrivalTier::disk, RequestOutcome::unfinished};
  return {served, base, cancelled, unfinished};
}

inline ConfigResult small_config(int32_t max_loras) {
  ConfigResult c;
  c.max_loras = max_loras;
  c.max_cpu_loras = 64;
  c.seed = 42;
  c.meets_slo = true;
  c.num_seeds = c.num_seeds_met = 3;
  c.headroom = 1.45;
  c.slo_ttft_ms = 412.75, c.slo_tpot_ms = 33.125;
  c.cause.miss = 0.8255;
  c.max_running = 64;
  c.max_kv_blocks = 9000;
  c.waits = {{.05, .2}, {.1, .5}, {.2, .05}, {.3, .25}};
  c.num_requests = 1000;
  c.completed = 998;
  c.cancelled = 1;
  c.failed = 1;
  c.duration_s = 125.5;
  c.total_input_tokens = 217'321;
  c.total_output_tokens = 195'604;
  c.max_concurrent_requests = 61;
  c.request_throughput = 7.952;
  c.total_token_throughput = 3290.25;
  c.output_throughput = 1558.6;
  c.request_goodput = 7.9;
  c.slo_attainment = 0.991;
  c.ttft = latency(98.25, 71.5, 180, 412.75);
  c.tpot = latency(21.5, 20.25, 27, 33.125);
  c.itl = latency(21.25, 19, 28.5, 61);
  c.e2el = latency(4312, 3900.5, 8100, 15250);
  c.queue = latency(31.5, 4.25, 90, 260);
  c.adapter_gpu_hit_ratio = 0.875;
  c.adapter_cpu_hit_ratio = 0.95;
  c.adapter_loads = 61;
  c.adapter_load_bytes = 61 * 94 * kMiB;
  c.adapter_copies = 125;
  c.adapter_copy_bytes = 125 * 94 * kMiB;
  c.prefix_hit_ratio_tokens = 0.3333333333333333;
  c.prefix_hit_ratio_blocks = 0.3125;
  c.num_preemptions = 3;
  c.num_drains = 1;
  c.num_steps = 5321;
  c.mean_batch_seqs = 34.2;
  c.gpu_busy_fraction = 0.93;
  c.max_waiting = 17;
  c.memory = memory_with(max_loras, 94);
  c.event_log_hash = "0123456789abcdef";
  return c;
}

inline ConfigResult thrashing_config() {
  ConfigResult c = small_config(4);
  c.meets_slo = false;
  c.failed = 0;
  c.num_seeds_met = 0;
  c.headroom = 0.41;
  c.cause = {CauseKind::slots, true, 122.469, 0.9, 0.25, 0.62};
  c.request_goodput = 2.125;
  c.slo_attainment = 0.27;
  c.ttft = latency(20050, 12500, 48000, 61234.5);
  c.queue = latency(19950, 12400, 47900, 61100);
  c.adapter_gpu_hit_ratio = 0.41;
  c.adapter_copies = 590;
  c.event_log_hash = "fedcba9876543210";
  return c;
}

inline ConfigResult infeasible_config() {
  ConfigResult c;
  c.max_loras = 1024;
  c.max_cpu_loras = 64;
  c.seed = 42;
  c.feasible = false;
  c.problem = "does not fit: slots need 94.0 GiB, 54.0 GiB are left";
  c.memory = memory_with(1024, 94);
  return c;
}

inline ConfigResult kept_config() {
  ConfigResult c = small_config(16);
  c.ttft_cdf_ms = {1.5, 71.5, 900.25};
  c.tpot_cdf_ms = {12, 20.25, 44};
  c.timeline = {{0, 0, 1, 0, 0}, {100 * kMs, 2, 1, 1, 12}, {500 * kMs, 1, 0, 2, 9}};
  c.slot_spans = {
      {2 * kMs, 600 * kMs, 0, 0}, {20 * kMs + 1, 300 * kMs, 1, 1}, {300 * kMs, 700 * kMs, 2, 1}};
  c.requests = small_requests();
  return c;
}

inline SizeResult small_result() {
  SizeResult r;
  r.provenance = {"loratory size --trace prod.jsonl --max-loras 4,16,1024",
                  "1a2b3c4",
                  "0.1.0",
                  42,
                  {{"prod.jsonl", "xxh3:00112233aabbccdd", "native"}},
                  {{"tp", "1", false}, {"max-num-seqs", "64", true}, {"pin", "a,<b>", true}}};
  r.workload.num_requests = 1000;
  r.workload.duration_s = 120;
  r.workload.request_rate = 8.333333333333334;
  r.workload.mean_prompt_tokens = 220.5;
  r.workload.mean_output_tokens = 196;
  r.workload.num_adapters = 3;
  r.workload.adapters = "3 adapters from the trace, ranks 8,16,64";
  r.workload.model = "Llama-3.1-8B";
  r.workload.gpu = "H100-80";
  r.workload.cost_model = "roofline";
  r.workload.kv_block_tokens = 16;
  r.workload.num_rows_skipped = 2;
  r.workload.popularity = {0.5, 0.3, 0.2};
  r.workload.reuse_distance = {{0, 0.4}, {1, 0.75}, {2, 1}};
  r.slo = {500, 50, 99};
  r.configs = {thrashing_config(), kept_config(), infeasible_config()};
  r.goodput_min = {2, 7.75, 0};
  r.goodput_max = {2.25, 8, 0};
  r.ttft_min_ms = {59000, 401, 0};
  r.ttft_max_ms = {64000, 431.5, 0};
  r.num_seeds = 3;
  r.recommended = 1;
  r.smallest = 1;
  r.bounds = Bounds{.base = small_config(0),
                    .resident = small_config(3),
                    .limit = {CauseKind::loads, true, 1.1, 0.6, 0.5, 0.41},
                    .limit_factor = 1.486};
  r.miss_ratio_curves = {{"lru", {1, 2, 3}, {0.6, 0.25, 0.003}},
                         {"opt", {1, 2, 3}, {0.5, 0.2, 0.003}}};
  return r;
}

/// A sequence that looks random and is the same everywhere.
class Wobble {
 public:
  double next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return double(state_ >> 40) / double(1 << 24);
  }

 private:
  uint64_t state_ = 88172645463325252ULL;
};

inline constexpr int kBigAdapters = 256;
inline constexpr int64_t kBigEnd = 3600 * 1000 * kMs;

inline std::vector<TraceAdapter> big_adapters() {
  std::vector<TraceAdapter> adapters;
  for (int i = 0; i < kBigAdapters; ++i) adapters.push_back({"tenant-" + std::to_string(i), 16});
  adapters[1].name = "<script>alert(1)</script>";
  return adapters;
}

/// Zipf shares of n adapters.
inline std::vector<double> zipf_shares(int n) {
  std::vector<double> shares;
  double total = 0;
  for (int i = 1; i <= n; ++i) total += 1.0 / i;
  for (int i = 1; i <= n; ++i) shares.push_back(1.0 / i / total);
  return shares;
}

inline uint32_t pick(const std::vector<double>& shares, double u) {
  for (uint32_t i = 0; i < shares.size(); ++i) {
    if ((u -= shares[i]) < 0) return i;
  }
  return 0;
}

inline std::vector<SlotSpan> big_spans(int32_t max_loras, Wobble& wobble) {
  const auto shares = zipf_shares(kBigAdapters);
  std::vector<SlotSpan> spans;
  for (int32_t slot = 0; slot < max_loras; ++slot) {
    int64_t now = int64_t(wobble.next() * 20e9);
    while (now < kBigEnd) {
      const uint32_t adapter = pick(shares, wobble.next());
      const auto held = int64_t(wobble.next() * 3e12 / (adapter + 3.0)) + 2000 * kMs;
      spans.push_back({now, std::min(now + held, kBigEnd), adapter, uint16_t(slot)});
      now += held + int64_t(wobble.next() * 500) * kMs;
    }
  }
  return spans;
}

inline std::vector<TimelineSample> big_timeline(const ConfigResult& c, Wobble& wobble) {
  std::vector<TimelineSample> samples;
  for (int i = 0; i < 3600; ++i) {
    const double wave = 0.5 + 0.4 * std::sin(i / 400.0);
    TimelineSample s;
    s.time_ns = int64_t{i} * 1000 * kMs;
    s.num_running = int32_t(180 * wave + 20 * wobble.next());
    s.num_waiting = int32_t(wave > 0.8 ? 60 * wobble.next() : 3 * wobble.next());
    s.num_adapters_gpu = c.max_loras;
    s.kv_blocks_used = int64_t(double(c.memory.kv_blocks) * 0.95 * wave);
    samples.push_back(s);
  }
  return samples;
}

inline std::vector<double> long_tail(double p50, double p99) {
  std::vector<double> quantiles;
  const double power = std::log(p99 / p50) / std::log(50.0);
  for (int i = 0; i <= 100; ++i)
    quantiles.push_back(p50 * std::pow(0.5 / (1.003 - i / 100.0), power));
  return quantiles;
}

/// One configuration of the sweep: few slots thrash, many starve the KV cache.
inline ConfigResult big_config(int32_t max_loras) {
  ConfigResult c = small_config(max_loras);
  c.max_cpu_loras = 256;
  c.memory = memory_with(max_loras, 354);
  const double n = max_loras;
  const double miss = std::pow(0.93, n * 0.55) * 0.75 + 0.02;
  const double starve = n > 48 ? (n - 48) * (n - 48) / 60 : 0;
  const double p99 = 210 + 22'000 * miss * miss * miss + 14 * starve;
  c.adapter_gpu_hit_ratio = 1 - miss;
  c.adapter_cpu_hit_ratio = 0.97;
  c.adapter_copies = int64_t(54'000 * miss);
  c.ttft = latency(p99 / 3.5, p99 / 7, p99 / 2.2, p99);
  c.queue = latency(p99 / 6, p99 / 30, p99 / 3, p99 * 0.8);
  c.tpot = latency(22 + n / 20 + starve / 18, 21 + n / 22 + starve / 25, 27 + n / 16,
                   33 + n / 8 + starve / 7);
  c.slo_attainment = std::min(0.997, 1 / (1 + miss * miss + starve / 190));
  c.num_requests = c.completed = 54'000;
  c.request_throughput = 14.9 - 2 * miss;
  c.request_goodput = c.request_throughput * c.slo_attainment;
  c.prefix_hit_ratio_tokens = 0.34 - starve / 700;
  c.num_preemptions = int64_t(starve * 9);
  c.duration_s = 3612;
  c.meets_slo = p99 <= 500 && c.tpot.p99_ms <= 50;
  c.num_seeds_met = c.meets_slo ? 3 : 0;
  c.headroom = std::min(2.0, 400 / p99);
  c.cause = {.is_ttft = p99 / 500 > c.tpot.p99_ms / 50,
             .miss = std::max(p99 / 500, c.tpot.p99_ms / 50)};
  if (!c.meets_slo) c.cause.kind = p99 > 500 ? CauseKind::slots : CauseKind::kv_cache;
  c.ttft_cdf_ms = long_tail(c.ttft.p50_ms, p99);
  c.tpot_cdf_ms = long_tail(c.tpot.p50_ms, c.tpot.p99_ms);
  return c;
}

inline std::vector<MissRatioCurve> big_curves() {
  std::vector<MissRatioCurve> curves = {{"lru", {}, {}}, {"opt", {}, {}}, {"top-k", {}, {}}};
  const auto shares = zipf_shares(kBigAdapters);
  double popular = 0;
  for (int k = 1; k <= kBigAdapters; ++k) {
    popular = std::min(popular + shares[size_t(k - 1)], 1.0);
    for (MissRatioCurve& curve : curves) curve.sizes.push_back(k);
    curves[0].miss_ratios.push_back(std::pow(1 - popular, 0.72));
    curves[1].miss_ratios.push_back(std::pow(1 - popular, 1.25));
    curves[2].miss_ratios.push_back(1 - popular);
  }
  return curves;
}

inline SizeResult big_result() {
  SizeResult r = small_result();
  r.workload.num_requests = 54'000;
  r.workload.duration_s = 3600;
  r.workload.request_rate = 15;
  r.workload.num_adapters = kBigAdapters;
  r.workload.adapters = "256 adapters, zipf:1, rank 64";
  r.workload.num_rows_skipped = 0;
  r.workload.popularity = zipf_shares(kBigAdapters);
  r.workload.reuse_distance.clear();
  for (int d = 0; d < kBigAdapters; ++d) {
    r.workload.reuse_distance.push_back({d, 1 - std::pow(0.972, d + 1.0)});
  }
  r.configs.clear();
  for (const int32_t n : {4, 8, 16, 24, 32, 48, 64, 96, 128}) r.configs.push_back(big_config(n));
  r.configs.push_back(infeasible_config());
  r.configs.back().max_loras = 192;
  r.configs.back().max_cpu_loras = 256;
  r.configs.back().memory = memory_with(192, 354);
  r.recommended = 4;
  Wobble wobble;
  r.configs[4].slot_spans = big_spans(32, wobble);
  r.configs[4].timeline = big_timeline(r.configs[4], wobble);
  r.goodput_min.clear();
  r.goodput_max.clear();
  r.ttft_min_ms.clear();
  r.ttft_max_ms.clear();
  for (const ConfigResult& c : r.configs) {
    r.goodput_min.push_back(c.request_goodput * 0.95);
    r.goodput_max.push_back(c.request_goodput * 1.03);
    r.ttft_min_ms.push_back(c.ttft.p99_ms * 0.85);
    r.ttft_max_ms.push_back(c.ttft.p99_ms * 1.2);
  }
  r.provenance.command =
      "loratory size --trace azure_conv.csv --adapters 256 --popularity zipf:1 --max-loras auto";
  r.smallest = 3;
  r.miss_ratio_curves = big_curves();
  return r;
}

}  // namespace loratory::sim::test
