#include "scheduler_sim/report/prometheus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/base/escape.hpp"

namespace loratory::sim {
namespace {

// Upper bounds in seconds, as vllm/v1/metrics/loggers.py has them (vLLM at commit 005a810bc40f).
constexpr double kTtftBounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                  1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
constexpr double kTokenBounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                   0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
constexpr double kRequestBounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                     30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

// Observations by upper bound, which belongs to its bucket.
class BucketCounts {
 public:
  explicit BucketCounts(std::span<const double> bounds)
      : bounds_(bounds), counts_(bounds.size() + 1, 0) {}
  void add(double seconds, int64_t count = 1) {
    const auto bound = std::ranges::lower_bound(bounds_, seconds);
    counts_[size_t(bound - bounds_.begin())] += count;
    sum_s_ += seconds * double(count);
  }
  // visit(bound, observations up to it), as the format wants them.
  template <class Visit>
  void visit(Visit visit) const {
    int64_t below = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      below += counts_[i];
      visit(i < bounds_.size() ? number(bounds_[i]) : "+Inf", below);
    }
  }
  double sum_s() const { return sum_s_; }

 private:
  std::span<const double> bounds_;
  std::vector<int64_t> counts_;
  double sum_s_ = 0;
};

// Writes metrics that all carry the same labels.
class Snapshot {
 public:
  Snapshot(std::ostream& out, std::string_view model)
      : out_(out),
        labels_(fmt::format("model_name=\"{}\",engine=\"0\"", prometheus_label(model))) {}

  void head(std::string_view name, std::string_view type, std::string_view help) {
    out_ << fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
  }
  void sample(std::string_view name, const std::string& value, std::string_view labels = "") {
    out_ << fmt::format("{}{{{}{}{}}} {}\n", name, labels_, labels.empty() ? "" : ",", labels,
                        value);
  }
  void gauge(std::string_view name, double value, std::string_view help) {
    head(name, "gauge", help);
    sample(name, number(value));
  }
  void counter(std::string_view name, int64_t value, std::string_view help) {
    head(name, "counter", help);
    sample(name, fmt::format("{}", value));
  }
  void histogram(std::string_view name, const BucketCounts& buckets, std::string_view help) {
    head(name, "histogram", help);
    int64_t count = 0;
    buckets.visit([&](const std::string& bound, int64_t below) {
      sample(fmt::format("{}_bucket", name), fmt::format("{}", below),
             fmt::format("le=\"{}\"", bound));
      count = below;
    });
    sample(fmt::format("{}_sum", name), number(buckets.sum_s()));
    sample(fmt::format("{}_count", name), fmt::format("{}", count));
  }

 private:
  std::ostream& out_;
  std::string labels_;
};

void add_info(Snapshot& s, const ConfigResult& c, const WorkloadSummary& workload,
              const Provenance& provenance) {
  s.head("loratory_config_info", "gauge", "The configuration replayed; the value is always 1.");
  s.sample("loratory_config_info", "1",
           fmt::format("max_lora=\"{}\",max_cpu_lora=\"{}\",seed=\"{}\",gpu=\"{}\","
                       "engine_name=\"{}\",feasible=\"{}\",event_log_hash=\"{}\"",
                       c.max_loras, c.max_cpu_loras, c.seed, prometheus_label(workload.gpu),
                       prometheus_label(workload.engine), c.feasible,
                       prometheus_label(c.event_log_hash)));
  s.head("vllm:lora_requests_info", "gauge", "Running stats on lora requests.");
  s.sample("vllm:lora_requests_info", number(c.duration_s),
           fmt::format("max_lora=\"{}\",waiting_lora_adapters=\"\",running_lora_adapters=\"\"",
                       c.max_loras));
  if (provenance.settings.empty()) return;
  s.head("loratory_setting_info", "gauge", "A flag of the run; the value is always 1.");
  for (const Setting& setting : provenance.settings) {
    s.sample("loratory_setting_info", "1",
             fmt::format("name=\"{}\",value=\"{}\",given=\"{}\"", prometheus_label(setting.name),
                         prometheus_label(setting.value), setting.is_given));
  }
}

void add_requests(Snapshot& s, const ConfigResult& c) {
  s.head("vllm:request_success_total", "counter", "Requests by the way they ended.");
  const auto ended = [&](std::string_view how, int64_t count) {
    s.sample("vllm:request_success_total", fmt::format("{}", count),
             fmt::format("finished_reason=\"{}\"", how));
  };
  ended("length", c.completed);
  ended("abort", c.cancelled);
  ended("error", c.failed);
  s.counter("vllm:num_preemptions_total", c.num_preemptions, "Preemptions by recompute.");
  s.counter("vllm:prompt_tokens_total", c.total_input_tokens,
            "Prompt tokens of completed requests.");
  s.counter("vllm:generation_tokens_total", c.total_output_tokens,
            "Output tokens of completed requests.");
  s.counter("loratory_drains_total", c.num_drains, "Drains that freed a slot.");
  s.counter("loratory_steps_total", c.num_steps, "Forward passes.");
}

// What is left when the replay ends.
void add_end(Snapshot& s, const ConfigResult& c) {
  int64_t running = 0, waiting = 0, prompt_tokens = 0, cached_tokens = 0;
  for (const RequestRecord& r : c.requests) {
    const bool is_open = r.outcome == RequestOutcome::unfinished;
    running += is_open && r.first_scheduled_ns >= 0;
    waiting += is_open && r.first_scheduled_ns < 0;
    if (r.first_scheduled_ns < 0) continue;
    prompt_tokens += r.prompt_tokens;
    cached_tokens += r.cached_tokens;
  }
  s.gauge("vllm:num_requests_running", double(running), "Requests running at the end.");
  s.gauge("vllm:num_requests_waiting", double(waiting), "Requests waiting at the end.");
  const bool has_usage = !c.timeline.empty() && c.memory.kv_blocks > 0;
  s.gauge("vllm:kv_cache_usage_perc",
          has_usage ? double(c.timeline.back().kv_blocks_used) / double(c.memory.kv_blocks) : 0,
          "Share of the KV blocks in use at the end; 1 is all.");
  s.counter("vllm:prefix_cache_queries_total", prompt_tokens,
            "Prompt tokens of admitted requests.");
  s.counter("vllm:prefix_cache_hits_total", cached_tokens, "Of them, found in the prefix cache.");
}

void add_rates(Snapshot& s, const ConfigResult& c) {
  s.gauge("loratory_duration_seconds", c.duration_s, "Virtual time from the start to the end.");
  s.gauge("loratory_request_throughput", c.request_throughput, "Completed requests per second.");
  s.gauge("loratory_output_throughput", c.output_throughput, "Output tokens per second.");
  s.gauge("loratory_request_goodput", c.request_goodput,
          "Requests per second that meet every SLO.");
  s.gauge("loratory_slo_attainment_ratio", c.slo_attainment,
          "Share of requests that meet every SLO.");
  s.gauge("loratory_requests_waiting_max", double(c.max_waiting), "Longest queue.");
  s.gauge("loratory_gpu_busy_ratio", c.gpu_busy_fraction, "Step time over duration.");
}

// Of completed requests, like every other latency of the results.
void add_latencies(Snapshot& s, const ConfigResult& c) {
  constexpr double kSecond = 1e-9;
  BucketCounts ttft(kTtftBounds), tpot(kTokenBounds), gaps(kTokenBounds), e2el(kRequestBounds),
      queue(kRequestBounds);
  for (const RequestRecord& r : c.requests) {
    if (r.outcome != RequestOutcome::completed) continue;
    const auto since = [&](int64_t begin_ns, int64_t end_ns) {
      return double(end_ns - begin_ns) * kSecond;
    };
    if (r.first_token_ns >= 0) ttft.add(since(r.arrival_ns, r.first_token_ns));
    if (r.output_tokens >= 2) {
      tpot.add(since(r.first_token_ns, r.finish_ns) / (double(r.output_tokens) - 1));
    }
    e2el.add(since(r.arrival_ns, r.finish_ns));
    queue.add(since(r.arrival_ns, r.first_scheduled_ns));
  }
  for (const DurationCount& gap : c.itl_counts) gaps.add(gap.ns * kSecond, gap.count);
  s.histogram("vllm:time_to_first_token_seconds", ttft, "Arrival to first token.");
  s.histogram("vllm:inter_token_latency_seconds", gaps, "Gap between neighbouring tokens.");
  s.histogram("vllm:time_per_output_token_seconds", gaps,
              "The same under the name that vLLM had until 0.10.");
  s.histogram("vllm:request_time_per_output_token_seconds", tpot,
              "(E2EL - TTFT) / (output tokens - 1) of a request.");
  s.histogram("vllm:e2e_request_latency_seconds", e2el, "Arrival to last token.");
  s.histogram("vllm:request_queue_time_seconds", queue, "Arrival to first scheduling.");
}

// What no histogram has: vLLM's bounds lie up to a factor of 4 apart.
void add_percentiles(Snapshot& s, const ConfigResult& c) {
  constexpr const char* kName = "loratory_latency_seconds";
  s.head(kName, "gauge", "Mean, deviation and exact percentiles; pslo is at the SLO's percentile.");
  const auto add = [&](std::string_view latency, const LatencySummary& l) {
    const auto sample = [&](std::string_view statistic, double value_ms) {
      s.sample(kName, number(value_ms / 1e3),
               fmt::format("latency=\"{}\",statistic=\"{}\"", latency, statistic));
    };
    sample("mean", l.mean_ms);
    sample("std", l.std_ms);
    sample("p50", l.p50_ms);
    sample("p90", l.p90_ms);
    sample("p95", l.p95_ms);
    sample("p99", l.p99_ms);
    sample("pslo", l.pslo_ms);
  };
  add("ttft", c.ttft);
  add("tpot", c.tpot);
  add("itl", c.itl);
  add("e2el", c.e2el);
  add("queue", c.queue);
}

void add_adapters(Snapshot& s, const ConfigResult& c) {
  s.gauge("loratory_adapter_gpu_hit_ratio", c.adapter_gpu_hit_ratio,
          "Of arrivals with an adapter: it was on the GPU.");
  s.gauge("loratory_adapter_cpu_hit_ratio", c.adapter_cpu_hit_ratio,
          "Of those not on the GPU: it was on the CPU.");
  s.counter("loratory_adapter_loads_total", c.adapter_loads, "Adapter loads, disk to CPU.");
  s.counter("loratory_adapter_load_bytes_total", c.adapter_load_bytes,
            "Bytes loaded, disk to CPU.");
  s.counter("loratory_adapter_copies_total", c.adapter_copies, "Adapter copies, CPU to GPU.");
  s.counter("loratory_adapter_copy_bytes_total", c.adapter_copy_bytes, "Bytes copied, CPU to GPU.");
}

void add_memory(Snapshot& s, const ConfigResult& c) {
  s.gauge("loratory_prefix_cache_hit_ratio", c.prefix_hit_ratio_tokens,
          "Prompt tokens from the cache.");
  s.gauge("loratory_kv_blocks", double(c.memory.kv_blocks), "Usable KV blocks.");
  s.head("loratory_hbm_bytes", "gauge", "GPU memory by use.");
  const auto part = [&](std::string_view use, int64_t bytes) {
    s.sample("loratory_hbm_bytes", fmt::format("{}", bytes), fmt::format("use=\"{}\"", use));
  };
  part("weights", c.memory.weights_bytes);
  part("slots", c.memory.slot_bytes);
  part("kv", c.memory.kv_bytes);
  part("reserve", c.memory.reserve_bytes);
}

}  // namespace

void write_prometheus(std::ostream& out, const ConfigResult& config,
                      const WorkloadSummary& workload, const Provenance& provenance) {
  Snapshot snapshot(out, workload.model);
  add_info(snapshot, config, workload, provenance);
  add_requests(snapshot, config);
  add_end(snapshot, config);
  add_rates(snapshot, config);
  add_latencies(snapshot, config);
  add_percentiles(snapshot, config);
  add_adapters(snapshot, config);
  add_memory(snapshot, config);
}

}  // namespace loratory::sim
