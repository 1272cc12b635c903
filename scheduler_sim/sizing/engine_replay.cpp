#include "scheduler_sim/sizing/engine_replay.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/base/check.hpp"
#include "reference/base/integers.hpp"
#include "reference/base/units.hpp"
#include "scheduler_sim/simulator/simulator.hpp"
#include "scheduler_sim/sizing/fleet_replay.hpp"
#include "scheduler_sim/sizing/miss_ratio_curve.hpp"

namespace loratory::sim {
namespace {

constexpr int32_t kMostSlots = 4096;

void spare(SimulationConfig& config, const Trace& trace, const Spared& spared) {
  ResidencyConfig& residency = config.scheduler.residency;
  if (spared.slots) {
    const auto all = int32_t(std::min<size_t>(trace.adapters.size() + 1, kMostSlots));
    residency.max_loras = std::max(residency.max_loras, all);
    residency.max_cpu_loras = std::max(residency.max_cpu_loras, residency.max_loras);
  }
  if (spared.load_time) {
    config.loads.disk_latency_ns = config.loads.h2d_latency_ns = 0;
    std::ranges::fill(config.adapter_bytes, 1);
  }
  if (spared.seats) config.scheduler.max_num_seqs = config.scheduler.max_num_batched_tokens;
  if (spared.kv_limit) {
    const int64_t blocks =
        std::max(int64_t{config.scheduler.num_blocks}, 1 + blocks_for_all(trace, config.scheduler));
    config.scheduler.num_blocks = uint32_t(std::min<int64_t>(blocks, UINT32_MAX));
  }
}

// Why it can not run, empty if it can.
std::string problem_of(const EngineSpec& engine, EnginePoint point, const MemoryPlan& memory) {
  if (!engine.pins.empty() && std::ssize(engine.pins) >= point.max_loras) {
    return fmt::format("{} {} every slot", count_text(std::ssize(engine.pins), "pinned adapter"),
                       engine.pins.size() == 1 ? "fills" : "fill");
  }
  return engine.forced_kv_blocks == 0 && !memory.fits() ? memory.problem : "";
}

// No more adapters in host memory than there are.
EnginePoint occupied(EnginePoint point, const Trace& trace) {
  const auto adapters = std::min<size_t>(trace.adapters.size(), INT32_MAX);
  point.max_cpu_loras = std::min(point.max_cpu_loras, int32_t(adapters));
  return point;
}

// Every step in half the time.
class HalfTime final : public StepTimeModel {
 public:
  explicit HalfTime(const StepTimeModel& model) : model_(model) {}
  int64_t step_ns(const BatchShape& shape) const override {
    return std::max<int64_t>(1, model_.step_ns(shape) / 2);
  }
  bool asks_waiting_seen() const override { return model_.asks_waiting_seen(); }

 private:
  const StepTimeModel& model_;
};

void pin_and_run(Simulator& simulator, const std::vector<AdapterIndex>& pins) {
  for (const AdapterIndex adapter : pins) {
    simulator.schedule({0, ScheduledOp::Kind::pin, adapter});
  }
  simulator.run();
}

void run_alone(ReplayOutput& out, const Trace& trace, const SimulationConfig& config,
               const StepTimeModel& step_time, const EngineSpec& engine, const Slo& slo,
               bool keep_details, const OnArrivals& on_arrivals) {
  Simulator simulator(trace, config, step_time);
  simulator.watch(on_arrivals);
  pin_and_run(simulator, pins_in(trace, engine));
  simulator.metrics().fill(out.result, slo, config.scheduler.block_size, keep_details);
  out.result.event_log_hash = simulator.log().hash();
  out.decisions = simulator.log().decisions();
}

}  // namespace

bool waits_are_known(const EngineSpec& engine) {
  return engine.scheduler.load_mode == LoadMode::overlap && !engine.fleet;
}

std::vector<AdapterIndex> pins_in(const Trace& trace, const EngineSpec& engine) {
  std::vector<AdapterIndex> pins;
  for (const std::string& name : engine.pins) {
    const auto found = std::ranges::find(trace.adapters, name, &TraceAdapter::name);
    LORATORY_ASSERT(found != trace.adapters.end(), "a pinned adapter is one of the trace");
    pins.push_back(AdapterIndex(found - trace.adapters.begin()));
  }
  return pins;
}

int64_t longest_request(const Trace& trace) {
  int64_t longest = 0;
  for (const TraceRequest& r : trace.requests) {
    longest = std::max(longest, int64_t{r.prompt_tokens} + r.output_tokens);
  }
  return longest;
}

int64_t blocks_for_all(const Trace& trace, const SchedulerConfig& scheduler) {
  int64_t longest = 0, total = 0;
  for (const TraceRequest& r : trace.requests) {
    const int64_t blocks =
        ceil_div(int64_t{r.prompt_tokens} + r.output_tokens, int64_t{scheduler.block_size});
    longest = std::max(longest, blocks);
    total += blocks;
  }
  return std::max<int64_t>(1, std::min(longest * scheduler.max_num_seqs, total));
}

MemoryPlan memory_of(const EngineSpec& engine, EnginePoint point) {
  MemoryPlan plan =
      plan_memory(engine.model, engine.gpu, engine.memory, point.max_loras, point.max_cpu_loras);
  if (engine.forced_kv_blocks > 0) {
    plan.split.kv_blocks = engine.forced_kv_blocks;
    plan.split.kv_bytes = plan.split.kv_blocks * plan.split.block_bytes;
  }
  return plan;
}

SimulationConfig simulation_config(const Trace& trace, const EngineSpec& engine, EnginePoint point,
                                   int64_t kv_blocks) {
  SimulationConfig config;
  config.scheduler = engine.scheduler;
  config.scheduler.residency.max_loras = std::max(1, point.max_loras);
  config.scheduler.residency.max_cpu_loras = std::max(1, point.max_cpu_loras);
  config.scheduler.residency.num_load_workers = engine.loads.num_workers;
  config.scheduler.num_blocks = 1 + uint32_t(std::min<int64_t>(kv_blocks, UINT32_MAX - 1));
  config.loads = engine.loads;
  config.fast = engine.fast;
  config.steps_ahead = engine.steps_ahead;
  for (const TraceAdapter& adapter : trace.adapters) {
    const uint32_t rank = adapter.rank > 0 ? adapter.rank : engine.default_rank;
    config.adapter_ranks.push_back(rank);
    config.adapter_bytes.push_back(
        adapter_bytes(engine.model, engine.memory.targets, rank, engine.memory.lora_dtype));
  }
  return config;
}

bool meets_slo(const ConfigResult& result, const Slo& slo) {
  const bool ttft_ok = slo.ttft_ms <= 0 || result.slo_ttft_ms <= slo.ttft_ms;
  const bool tpot_ok = slo.tpot_ms <= 0 || result.slo_tpot_ms <= slo.tpot_ms;
  const bool all_served = result.failed == 0 && result.completed > 0;
  return result.feasible && all_served && ttft_ok && tpot_ok;
}

Cause miss_of(const ConfigResult& result, const Slo& slo) {
  const double ttft = slo.ttft_ms > 0 ? result.slo_ttft_ms / slo.ttft_ms : 0;
  const double tpot = slo.tpot_ms > 0 ? result.slo_tpot_ms / slo.tpot_ms : 0;
  return {.is_ttft = ttft >= tpot, .miss = std::max(ttft, tpot)};
}

ReplayOutput replay(const Trace& trace, const EngineSpec& engine, EnginePoint point, const Slo& slo,
                    ReplayDetail detail, const Spared& spared, const OnArrivals& on_arrivals) {
  ReplayOutput out;
  ConfigResult& result = out.result;
  result.max_loras = point.max_loras;
  result.max_cpu_loras = point.max_cpu_loras;
  const MemoryPlan memory = memory_of(engine, point);
  result.memory = memory.split;
  result.problem = problem_of(engine, point, memory);
  if (!result.problem.empty()) {
    result.feasible = false;
    result.num_requests = int64_t(trace.requests.size());
    return out;
  }
  SimulationConfig config = simulation_config(trace, engine, point, result.memory.kv_blocks);
  spare(config, trace, spared);
  config.keep_log = detail == ReplayDetail::decisions;
  const auto step_time = engine.make_step_time(occupied(point, trace));
  const HalfTime half_time(*step_time);
  const StepTimeModel* times = step_time.get();
  if (spared.half_time) times = &half_time;
  const bool keep_details = detail != ReplayDetail::metrics;
  if (engine.fleet) {
    run_fleet(out, trace, config, *times, engine, slo, keep_details, on_arrivals);
  } else {
    run_alone(out, trace, config, *times, engine, slo, keep_details, on_arrivals);
  }
  if (!waits_are_known(engine)) result.waits = {};
  fill_cost(result, engine);
  result.meets_slo = meets_slo(result, slo);
  result.cause = miss_of(result, slo);
  return out;
}

bool would_meet(const Trace& trace, const EngineSpec& engine, EnginePoint point, const Slo& slo) {
  if (engine.fleet) return replay(trace, engine, point, slo).result.meets_slo;
  const MemoryPlan memory = memory_of(engine, point);
  if (!problem_of(engine, point, memory).empty()) return false;
  SimulationConfig config = simulation_config(trace, engine, point, memory.split.kv_blocks);
  config.stop_when_missed = slo;
  const auto step_time = engine.make_step_time(occupied(point, trace));
  Simulator simulator(trace, config, *step_time);
  pin_and_run(simulator, pins_in(trace, engine));
  if (simulator.metrics().slo_is_missed()) return false;
  ConfigResult result;
  simulator.metrics().fill(result, slo, config.scheduler.block_size, /*keep_details=*/false);
  return meets_slo(result, slo);
}

WorkloadSummary summarize_workload(const Trace& trace, const EngineSpec& engine) {
  WorkloadSummary w;
  w.num_requests = int64_t(trace.requests.size());
  w.num_rows_skipped = trace.num_rows_skipped;
  w.model = engine.model.name;
  w.gpu = engine.gpu.name;
  w.engine = engine.name;
  w.notes = trace.notes;
  w.notes.insert(w.notes.end(), engine.model.notes.begin(), engine.model.notes.end());
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
