#include "scheduler_sim/sizing/engine_replay.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "scheduler_sim/simulator/simulator.hpp"
#include "scheduler_sim/sizing/fleet_replay.hpp"
#include "scheduler_sim/sizing/miss_ratio_curve.hpp"

namespace loratory::sim {
namespace {

SimulationConfig simulation_config(const Trace& trace, const EngineSpec& engine, EnginePoint point,
                                   int64_t kv_blocks) {
  SimulationConfig config;
  config.scheduler = engine.scheduler;
  config.scheduler.residency.max_loras = point.max_loras;
  config.scheduler.residency.max_cpu_loras = point.max_cpu_loras;
  config.scheduler.residency.num_load_workers = engine.loads.num_workers;
  config.scheduler.num_blocks = 1 + uint32_t(std::min<int64_t>(kv_blocks, UINT32_MAX - 1));
  config.loads = engine.loads;
  config.fast = engine.fast;
  for (const TraceAdapter& adapter : trace.adapters) {
    const uint32_t rank = adapter.rank > 0 ? adapter.rank : engine.default_rank;
    config.adapter_ranks.push_back(rank);
    config.adapter_bytes.push_back(
        adapter_bytes(engine.model, engine.memory.targets, rank, engine.memory.lora_dtype));
  }
  return config;
}

// Why it can not run, empty if it can.
std::string problem_of(const EngineSpec& engine, EnginePoint point, const MemoryPlan& memory) {
  if (std::ssize(engine.pins) >= point.max_loras) {
    return fmt::format("{} pinned adapters fill every slot", engine.pins.size());
  }
  return engine.forced_kv_blocks == 0 && !memory.fits() ? memory.problem : "";
}

// "1.6x", "230x".
std::string factor_text(double factor) {
  return factor < 10 ? fmt::format("{:.1f}x", factor) : fmt::format("{:.0f}x", factor);
}

// The first cause that explains a missed TTFT (or TPOT), in a few words.
std::string_view cause_of(const ConfigResult& r, const Slo& slo, bool ttft_missed) {
  const double completed = double(std::max<int64_t>(1, r.completed));
  if (double(r.num_preemptions) > 0.02 * completed) return "KV runs short";
  if (r.num_drains > 0) return "slots thrash";
  if (!ttft_missed) return "steps take too long";
  if (r.queue.p50_ms > 0.5 * slo.ttft_ms) return "GPU saturated";
  return double(r.adapter_copies) > 0.2 * completed ? "adapter loads" : "load peaks";
}

std::string verdict_of(const ConfigResult& r, const Slo& slo) {
  if (r.meets_slo) return "meets the SLO";
  if (r.failed > 0) return fmt::format("{} requests failed", r.failed);
  const bool ttft_missed = slo.ttft_ms > 0 && r.slo_ttft_ms > slo.ttft_ms;
  const double over = ttft_missed ? r.slo_ttft_ms / slo.ttft_ms : r.slo_tpot_ms / slo.tpot_ms;
  return fmt::format("{} {}: {}", ttft_missed ? "TTFT" : "TPOT", factor_text(over),
                     cause_of(r, slo, ttft_missed));
}

void run_alone(ReplayOutput& out, const Trace& trace, const SimulationConfig& config,
               const StepTimeModel& step_time, const EngineSpec& engine, const Slo& slo,
               bool keep_details) {
  Simulator simulator(trace, config, step_time);
  for (const AdapterIndex adapter : engine.pins) {
    simulator.schedule({0, ScheduledOp::Kind::pin, adapter});
  }
  simulator.run();
  simulator.metrics().fill(out.result, slo, config.scheduler.block_size, keep_details);
  out.result.event_log_hash = simulator.log().hash();
  out.decisions = simulator.log().decisions();
}

}  // namespace

bool meets_slo(const ConfigResult& result, const Slo& slo) {
  const bool ttft_ok = slo.ttft_ms <= 0 || result.slo_ttft_ms <= slo.ttft_ms;
  const bool tpot_ok = slo.tpot_ms <= 0 || result.slo_tpot_ms <= slo.tpot_ms;
  return result.feasible && result.failed == 0 && ttft_ok && tpot_ok;
}

ReplayOutput replay(const Trace& trace, const EngineSpec& engine, EnginePoint point, const Slo& slo,
                    ReplayDetail detail) {
  ReplayOutput out;
  ConfigResult& result = out.result;
  result.max_loras = point.max_loras;
  result.max_cpu_loras = point.max_cpu_loras;
  const MemoryPlan memory =
      plan_memory(engine.model, engine.gpu, engine.memory, point.max_loras, point.max_cpu_loras);
  result.memory = memory.split;
  if (engine.forced_kv_blocks > 0) result.memory.kv_blocks = engine.forced_kv_blocks;
  if (const std::string problem = problem_of(engine, point, memory); !problem.empty()) {
    result.feasible = false;
    result.num_requests = int64_t(trace.requests.size());
    result.verdict = problem;
    return out;
  }
  SimulationConfig config = simulation_config(trace, engine, point, result.memory.kv_blocks);
  config.keep_log = detail == ReplayDetail::decisions;
  const auto step_time = engine.make_step_time(point.max_loras);
  const bool keep_details = detail != ReplayDetail::metrics;
  if (engine.fleet) {
    run_fleet(out, trace, config, *step_time, engine, slo, keep_details);
  } else {
    run_alone(out, trace, config, *step_time, engine, slo, keep_details);
  }
  fill_cost(result, engine);
  result.meets_slo = meets_slo(result, slo);
  result.verdict = verdict_of(result, slo);
  return out;
}

WorkloadSummary summarize_workload(const Trace& trace, const EngineSpec& engine) {
  WorkloadSummary w;
  w.num_requests = int64_t(trace.requests.size());
  w.num_rows_skipped = trace.num_rows_skipped;
  w.model = engine.model.name;
  w.gpu = engine.gpu.name;
  w.kv_block_tokens = engine.scheduler.block_size;
  if (trace.requests.empty()) return w;
  std::vector<int64_t> uses(trace.adapters.size(), 0);
  double prompt = 0, output = 0;
  for (const TraceRequest& r : trace.requests) {
    prompt += r.prompt_tokens;
    output += r.output_tokens;
    if (r.adapter != kBaseModel) ++uses[r.adapter];
  }
  const double n = double(w.num_requests);
  w.duration_s = double(trace.requests.back().arrival_ns) * 1e-9;
  w.request_rate = w.duration_s > 0 ? n / w.duration_s : 0;
  w.mean_prompt_tokens = prompt / n;
  w.mean_output_tokens = output / n;
  std::erase(uses, 0);
  std::ranges::sort(uses, std::greater<>{});
  w.num_adapters = int64_t(uses.size());
  for (const int64_t count : uses) w.popularity.push_back(double(count) / n);
  w.reuse_distance = reuse_distance_cdf(adapter_references(trace));
  return w;
}

}  // namespace loratory::sim
