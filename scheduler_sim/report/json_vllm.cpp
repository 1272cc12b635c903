#include <fmt/format.h>

#include <cmath>
#include <string>

#include "scheduler_sim/report/json_object.hpp"

// The names are those of vllm/benchmarks/serve.py (main_async and process_one_metric), vLLM at
// commit 009e6d4a1cd6; they are the same in the releases since 0.10. max_loras to
// data_parallel_size are not from there: a sweep (vllm/benchmarks/sweep/serve.py) adds what it
// varies, and sweep/plot_pareto.py at commit 085717670c66 multiplies the two sizes to count GPUs.
namespace loratory::sim::report {
namespace {

using Object = nlohmann::ordered_json;

// "p99", "p97.5".
std::string percentile_key(double percentile, std::string_view name) {
  return percentile == std::floor(percentile) ? fmt::format("p{:.0f}_{}_ms", percentile, name)
                                              : fmt::format("p{}_{}_ms", percentile, name);
}

void add_latency(Object& object, std::string_view name, const LatencySummary& latency,
                 double slo_percentile) {
  object[fmt::format("mean_{}_ms", name)] = latency.mean_ms;
  object[fmt::format("median_{}_ms", name)] = latency.p50_ms;
  object[fmt::format("std_{}_ms", name)] = latency.std_ms;
  object[percentile_key(50, name)] = latency.p50_ms;
  object[percentile_key(90, name)] = latency.p90_ms;
  object[percentile_key(95, name)] = latency.p95_ms;
  object[percentile_key(99, name)] = latency.p99_ms;
  object[percentile_key(slo_percentile, name)] = latency.pslo_ms;
}

}  // namespace

// An open loop has no limit of concurrency. vLLM writes no goodput when it is given no SLO.
nlohmann::ordered_json vllm_object(const ConfigResult& config, const WorkloadSummary& workload,
                                   const Slo& slo) {
  const bool has_slo = slo.ttft_ms > 0 || slo.tpot_ms > 0;
  Object object = {{"endpoint_type", "loratory"},
                   {"backend", "loratory"},
                   {"label", nullptr},
                   {"model_id", workload.model},
                   {"tokenizer_id", workload.model},
                   {"num_prompts", config.num_requests},
                   {"request_rate", workload.request_rate},
                   {"max_concurrency", nullptr},
                   {"max_loras", config.max_loras},
                   {"max_cpu_loras", config.max_cpu_loras},
                   {"tensor_parallel_size", config.fleet.num_gpus / config.fleet.num_replicas},
                   {"data_parallel_size", config.fleet.num_replicas},
                   {"duration", config.duration_s},
                   {"completed", config.completed},
                   {"failed", config.num_requests - config.completed},
                   {"total_input_tokens", config.total_input_tokens},
                   {"total_output_tokens", config.total_output_tokens},
                   {"request_throughput", config.request_throughput},
                   {"request_goodput", has_slo ? Object(config.request_goodput) : Object(nullptr)},
                   {"output_throughput", config.output_throughput},
                   {"total_token_throughput", config.total_token_throughput},
                   {"max_concurrent_requests", config.max_concurrent_requests}};
  add_latency(object, "ttft", config.ttft, slo.percentile);
  add_latency(object, "tpot", config.tpot, slo.percentile);
  add_latency(object, "itl", config.itl, slo.percentile);
  add_latency(object, "e2el", config.e2el, slo.percentile);
  return object;
}

}  // namespace loratory::sim::report
