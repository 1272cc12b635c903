#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "scheduler_sim/metrics/results.hpp"
#include "scheduler_sim/report/advice.hpp"

/// The one list of what a configuration shows: results.json and results.csv have these names in
/// this order. `visit(name, value)` is called with bool, integers, double and std::string.
namespace loratory::sim::report {

template <class Visit>
void visit_outcome(const ConfigResult& c, Visit& visit) {
  visit("max_loras", c.max_loras);
  visit("max_cpu_loras", c.max_cpu_loras);
  visit("seed", c.seed);
  visit("feasible", c.feasible);
  visit("meets_slo", c.meets_slo);
  visit("verdict", verdict_text(c));
  visit("cause", std::string(name_of(c.cause.kind)));
  visit("slo_miss", c.cause.miss);
  visit("headroom", c.headroom < 0 ? std::nan("") : c.headroom);
  visit("num_requests", c.num_requests);
  visit("completed", c.completed);
  visit("cancelled", c.cancelled);
  visit("failed", c.failed);
  visit("duration_s", c.duration_s);
  visit("total_input_tokens", c.total_input_tokens);
  visit("total_output_tokens", c.total_output_tokens);
  visit("max_concurrent_requests", c.max_concurrent_requests);
  visit("request_throughput", c.request_throughput);
  visit("total_token_throughput", c.total_token_throughput);
  visit("output_throughput", c.output_throughput);
  visit("request_goodput", c.request_goodput);
  visit("slo_attainment", c.slo_attainment);
}

template <class Visit>
void visit_latency(const std::string& name, const LatencySummary& latency, Visit& visit) {
  visit(fmt::format("mean_{}_ms", name), latency.mean_ms);
  visit(fmt::format("std_{}_ms", name), latency.std_ms);
  visit(fmt::format("p50_{}_ms", name), latency.p50_ms);
  visit(fmt::format("p90_{}_ms", name), latency.p90_ms);
  visit(fmt::format("p95_{}_ms", name), latency.p95_ms);
  visit(fmt::format("p99_{}_ms", name), latency.p99_ms);
  visit(fmt::format("pslo_{}_ms", name), latency.pslo_ms);
}

template <class Visit>
void visit_caches(const ConfigResult& c, Visit& visit) {
  visit("adapter_gpu_hit_ratio", c.adapter_gpu_hit_ratio);
  visit("adapter_cpu_hit_ratio", c.adapter_cpu_hit_ratio);
  visit("adapter_loads", c.adapter_loads);
  visit("adapter_load_bytes", c.adapter_load_bytes);
  visit("adapter_copies", c.adapter_copies);
  visit("adapter_copy_bytes", c.adapter_copy_bytes);
  visit("prefix_hit_ratio_tokens", c.prefix_hit_ratio_tokens);
  visit("prefix_hit_ratio_blocks", c.prefix_hit_ratio_blocks);
}

template <class Visit>
void visit_wait(const std::string& name, const WaitShare& wait, Visit& visit) {
  visit(fmt::format("wait_{}_requests", name), wait.requests);
  visit(fmt::format("wait_{}_of_late_time", name), wait.of_late_time);
}

template <class Visit>
void visit_engine(const ConfigResult& c, Visit& visit) {
  visit("num_preemptions", c.num_preemptions);
  visit("num_drains", c.num_drains);
  visit("num_steps", c.num_steps);
  visit("mean_batch_seqs", c.mean_batch_seqs);
  visit("gpu_busy_fraction", c.gpu_busy_fraction);
  visit("max_waiting", c.max_waiting);
  visit("max_running", c.max_running);
  visit("max_kv_blocks", c.max_kv_blocks);
  visit_wait("load", c.waits.load, visit);
  visit_wait("slot", c.waits.slot, visit);
  visit_wait("copy", c.waits.copy, visit);
  visit_wait("batch", c.waits.batch, visit);
}

template <class Visit>
void visit_fleet(const FleetSummary& fleet, Visit& visit) {
  visit("num_replicas", fleet.num_replicas);
  visit("num_gpus", fleet.num_gpus);
  visit("router", fleet.router);
  visit("gpu_hours_per_million_tokens", fleet.gpu_hours_per_million_tokens);
  visit("usd_per_million_tokens", fleet.usd_per_million_tokens);
}

template <class Visit>
void visit_memory(const MemorySplit& memory, Visit& visit) {
  visit("hbm_bytes", memory.hbm_bytes);
  visit("weights_bytes", memory.weights_bytes);
  visit("slot_bytes", memory.slot_bytes);
  visit("kv_bytes", memory.kv_bytes);
  visit("reserve_bytes", memory.reserve_bytes);
  visit("kv_blocks", memory.kv_blocks);
  visit("block_bytes", memory.block_bytes);
  visit("host_bytes", memory.host_bytes);
}

template <class Visit>
void visit_fields(const ConfigResult& c, Visit visit) {
  visit_outcome(c, visit);
  visit_latency("ttft", c.ttft, visit);
  visit_latency("tpot", c.tpot, visit);
  visit_latency("itl", c.itl, visit);
  visit_latency("e2el", c.e2el, visit);
  visit_latency("queue", c.queue, visit);
  visit_caches(c, visit);
  visit_engine(c, visit);
  visit_fleet(c.fleet, visit);
  visit_memory(c.memory, visit);
  visit("event_log_hash", c.event_log_hash);
}

}  // namespace loratory::sim::report
