#include "scheduler_sim/report/prometheus.hpp"

#include <fmt/format.h>

#include <cmath>
#include <ostream>
#include <string>
#include <string_view>

#include "reference/base/escape.hpp"

namespace loratory::sim {
namespace {

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

// Writes metrics that all carry the same model_name.
class Snapshot {
 public:
  Snapshot(std::ostream& out, std::string_view model)
      : out_(out), model_(fmt::format("model_name=\"{}\"", prometheus_label(model))) {}

  void head(std::string_view name, std::string_view type, std::string_view help) {
    out_ << fmt::format("# HELP loratory:{0} {1}\n# TYPE loratory:{0} {2}\n", name, help, type);
  }
  void sample(std::string_view name, const std::string& value, std::string_view labels = "") {
    out_ << fmt::format("loratory:{}{{{}{}{}}} {}\n", name, model_, labels.empty() ? "" : ",",
                        labels, value);
  }
  void gauge(std::string_view name, double value, std::string_view help) {
    head(name, "gauge", help);
    sample(name, number(value));
  }
  void counter(std::string_view name, int64_t value, std::string_view help) {
    head(name, "counter", help);
    sample(name, fmt::format("{}", value));
  }
  // The mean is a gauge beside the summary: the number of observations is not kept for all.
  void latency(std::string_view name, const LatencySummary& latency, std::string_view help) {
    head(name, "summary", help);
    sample(name, number(latency.p50_ms / 1e3), "quantile=\"0.5\"");
    sample(name, number(latency.p90_ms / 1e3), "quantile=\"0.9\"");
    sample(name, number(latency.p99_ms / 1e3), "quantile=\"0.99\"");
    const std::string mean = fmt::format("{}_mean", name);
    gauge(mean, latency.mean_ms / 1e3, fmt::format("Mean of {}.", name));
  }

 private:
  std::ostream& out_;
  std::string model_;
};

void add_config(Snapshot& s, const ConfigResult& c, const WorkloadSummary& workload) {
  s.head("config_info", "gauge", "The configuration replayed; the value is always 1.");
  s.sample("config_info", "1",
           fmt::format("max_lora=\"{}\",max_cpu_lora=\"{}\",seed=\"{}\",gpu=\"{}\","
                       "feasible=\"{}\",event_log_hash=\"{}\"",
                       c.max_loras, c.max_cpu_loras, c.seed, prometheus_label(workload.gpu),
                       c.feasible, prometheus_label(c.event_log_hash)));
}

void add_requests(Snapshot& s, const ConfigResult& c) {
  s.head("request_success_total", "counter", "Requests by the way they ended.");
  s.sample("request_success_total", fmt::format("{}", c.completed), "finished_reason=\"length\"");
  s.sample("request_success_total", fmt::format("{}", c.cancelled), "finished_reason=\"abort\"");
  s.sample("request_success_total", fmt::format("{}", c.failed), "finished_reason=\"error\"");
  s.counter("num_preemptions_total", c.num_preemptions, "Preemptions by recompute.");
  s.counter("num_drains_total", c.num_drains, "Drains that freed a slot for a starving adapter.");
  s.counter("steps_total", c.num_steps, "Forward passes.");
  s.gauge("duration_seconds", c.duration_s, "Virtual time from the first arrival to the end.");
  s.gauge("request_throughput", c.request_throughput, "Completed requests per second.");
  s.gauge("output_throughput", c.output_throughput, "Output tokens per second.");
  s.gauge("request_goodput", c.request_goodput, "Requests per second that meet every SLO.");
  s.gauge("slo_attainment_ratio", c.slo_attainment, "Share of requests that meet every SLO.");
  s.gauge("num_requests_waiting_max", double(c.max_waiting), "Longest queue.");
  s.gauge("gpu_busy_ratio", c.gpu_busy_fraction, "Step time over duration.");
}

void add_latencies(Snapshot& s, const ConfigResult& c) {
  s.latency("time_to_first_token_seconds", c.ttft, "Arrival to first token.");
  s.latency("request_time_per_output_token_seconds", c.tpot,
            "(E2EL - TTFT) / (output tokens - 1) of a request.");
  s.latency("inter_token_latency_seconds", c.itl, "Gap between neighbouring tokens.");
  s.latency("e2e_request_latency_seconds", c.e2el, "Arrival to last token.");
  s.latency("request_queue_time_seconds", c.queue, "Arrival to first scheduling.");
}

void add_adapters(Snapshot& s, const ConfigResult& c) {
  s.gauge("adapter_gpu_hit_ratio", c.adapter_gpu_hit_ratio,
          "Of arrivals with an adapter: it was on the GPU.");
  s.gauge("adapter_cpu_hit_ratio", c.adapter_cpu_hit_ratio,
          "Of those not on the GPU: it was on the CPU.");
  s.counter("adapter_loads_total", c.adapter_loads, "Adapter loads, disk to CPU.");
  s.counter("adapter_load_bytes_total", c.adapter_load_bytes, "Bytes loaded, disk to CPU.");
  s.counter("adapter_copies_total", c.adapter_copies, "Adapter copies, CPU to GPU.");
  s.counter("adapter_copy_bytes_total", c.adapter_copy_bytes, "Bytes copied, CPU to GPU.");
}

void add_memory(Snapshot& s, const ConfigResult& c) {
  s.gauge("prefix_cache_hit_ratio", c.prefix_hit_ratio_tokens, "Prompt tokens from the cache.");
  s.gauge("kv_blocks", double(c.memory.kv_blocks), "Usable KV blocks.");
  s.head("hbm_bytes", "gauge", "GPU memory by use.");
  const auto part = [&](std::string_view use, int64_t bytes) {
    s.sample("hbm_bytes", fmt::format("{}", bytes), fmt::format("use=\"{}\"", use));
  };
  part("weights", c.memory.weights_bytes);
  part("slots", c.memory.slot_bytes);
  part("kv", c.memory.kv_bytes);
  part("reserve", c.memory.reserve_bytes);
}

}  // namespace

void write_prometheus(std::ostream& out, const ConfigResult& config,
                      const WorkloadSummary& workload) {
  Snapshot snapshot(out, workload.model);
  add_config(snapshot, config, workload);
  add_requests(snapshot, config);
  add_latencies(snapshot, config);
  add_adapters(snapshot, config);
  add_memory(snapshot, config);
}

}  // namespace loratory::sim
