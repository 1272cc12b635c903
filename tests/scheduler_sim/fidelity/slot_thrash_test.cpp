// More adapters than slots: three published measurements, reproduced in shape. The sources leave
// lengths, ranks or the client open, so these tests hold ratios and orders of magnitude. The
// figures of docs/fidelity.md are the ones printed here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "scheduler_sim/cost/engine_preset.hpp"
#include "scheduler_sim/cost/roofline.hpp"
#include "scheduler_sim/metrics/quantiles.hpp"
#include "scheduler_sim/workload/generate.hpp"
#include "tests/scheduler_sim/simulator/tiny_replay.hpp"

namespace loratory::sim {
namespace {

struct Engine {
  std::string preset, gpu, model, targets = "all-linear";
  int tp = 1;
  int64_t rank = 16, max_num_seqs = 0;  // 0: the preset's
  int32_t max_loras = 8;
};

MemoryOptions memory_of(const Engine& engine, const EnginePreset& preset) {
  MemoryOptions o;
  o.law = preset.law;
  o.tp = engine.tp;
  o.gpu_memory_utilization = preset.gpu_memory_utilization;
  o.max_num_seqs = engine.max_num_seqs > 0 ? engine.max_num_seqs : preset.max_num_seqs;
  o.max_num_batched_tokens = preset.max_num_batched_tokens;
  o.max_lora_rank = engine.rank;
  o.targets = LoraTargets(engine.targets);
  return o;
}

RooflineOptions roofline_of(const Engine& engine, const EnginePreset& preset) {
  RooflineOptions o;
  o.tp = engine.tp;
  o.targets = LoraTargets(engine.targets);
  if (preset.one_graph) o.lora_graphs = LoraGraphs::with_lora_only;
  if (preset.padded_ranks) o.lora_padded_rank = engine.rank;
  if (preset.max_grid) o.lora_grid_max_loras = engine.max_loras;
  return o;
}

void follow(const EnginePreset& preset, SchedulerConfig& scheduler) {
  if (preset.blocking_loads) scheduler.load_mode = LoadMode::blocking;
  scheduler.residency.prefetch = preset.prefetch;
  if (preset.lru_host) scheduler.residency.cpu_eviction = CpuEviction::lru;
  if (!preset.reserves_slots) scheduler.n_starve = scheduler.t_starve_ns = kNever;
}

// Every adapter of the trace has a place on the host.
ConfigResult replayed(const Trace& trace, const Engine& engine) {
  const ModelSpec model = load_model_spec(engine.model);
  const GpuSpec gpu = parse_gpu_spec(engine.gpu);
  const EnginePreset preset = engine_preset(engine.preset, gpu, engine.tp);
  const MemoryOptions memory = memory_of(engine, preset);
  const auto num_adapters = int32_t(trace.adapters.size());
  const int32_t on_host = std::max(num_adapters, engine.max_loras);
  SimulationConfig config;
  config.scheduler.num_blocks =
      1 + uint32_t(plan_memory(model, gpu, memory, engine.max_loras, on_host).split.kv_blocks);
  config.scheduler.max_num_seqs = uint32_t(memory.max_num_seqs);
  config.scheduler.max_num_batched_tokens = uint32_t(memory.max_num_batched_tokens);
  config.scheduler.residency.max_loras = engine.max_loras;
  config.scheduler.residency.max_cpu_loras = on_host;
  follow(preset, config.scheduler);
  config.adapter_ranks.assign(size_t(num_adapters), uint32_t(engine.rank));
  config.adapter_bytes.assign(size_t(num_adapters),
                              adapter_bytes(model, memory.targets, engine.rank));
  const RooflineModel step_time(model, gpu, roofline_of(engine, preset));
  Simulator simulator(trace, config, step_time);
  simulator.run();
  return result_of(simulator);
}

// sglang pull request 13349: Llama-3.1-8B on two H100, 8 slots, 100 requests at 4/s; random lengths
// up to 4,096 and 2,048 tokens, adapters drawn evenly. bench_serving draws lengths evenly from 1 up
// unless told otherwise. The rank is not given.
Trace sglang_requests(uint32_t num_adapters, uint64_t seed) {
  GenerateOptions o;
  o.seed = seed;
  o.arrivals.rate_rps = 4;
  o.limit.num_requests = 100;
  o.num_adapters = num_adapters;
  o.ranks = {16};
  o.prompt_tokens = LengthLaw::histogram({{4096, 1}});
  o.output_tokens = LengthLaw::histogram({{2048, 1}});
  return generate(o);
}

// That SGLang broke its walk off at the first request without a slot (schedule_policy's loop in
// srt/managers/scheduler.py: batch_is_full, break); ours and today's SGLang skip it. A request
// behind the head is as one that has not arrived: it arrives when those before it are admitted,
// which depends on nothing behind them.
double median_ttft_ms_behind_heads(const Trace& trace, const Engine& engine) {
  Trace so_far = trace;
  so_far.requests.clear();
  std::vector<double> ttft_ms;
  int64_t head_admitted_ns = 0;
  for (const TraceRequest& r : trace.requests) {
    so_far.requests.push_back(r);
    so_far.requests.back().arrival_ns = std::max(r.arrival_ns, head_admitted_ns);
    head_admitted_ns = replayed(so_far, engine).requests.back().first_scheduled_ns;
  }
  const ConfigResult result = replayed(so_far, engine);
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const int64_t ttft_ns = result.requests[i].first_token_ns - trace.requests[i].arrival_ns;
    ttft_ms.push_back(1e-6 * double(ttft_ns));
  }
  return quantile(ttft_ms, 0.5);
}

// Measured: median TTFT 39.65 ms with 8 adapters, 6,278 ms with 16. Five arrival streams, since one
// of 100 requests is a draw. In shape: with a slot for each adapter it is a prefill, within a
// factor of 1.5; with two adapters a slot it is the residence of other requests, which lengths and
// step time decide together, so it is held to the order of magnitude: sqrt(10) either way.
TEST(SlotThrash, SglangWithTwiceAsManyAdaptersAsSlots) {
  const Engine engine{.preset = "sglang", .gpu = "H100-80", .model = "Llama-3.1-8B", .tp = 2};
  std::vector<double> enough, thrash, skipping;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    enough.push_back(median_ttft_ms_behind_heads(sglang_requests(8, seed), engine));
    thrash.push_back(median_ttft_ms_behind_heads(sglang_requests(16, seed), engine));
    skipping.push_back(replayed(sglang_requests(16, seed), engine).ttft.p50_ms);
  }
  fmt::print(
      "SGLang, 8 slots, median TTFT of five runs: 8 adapters {:.0f} ms (measured 39.65), 16 "
      "{:.0f} ms (6278), {:.0f} to {:.0f}; with a walk that skips {:.0f} ms\n",
      quantile(enough, 0.5), quantile(thrash, 0.5), quantile(thrash, 0), quantile(thrash, 1),
      quantile(skipping, 0.5));
  EXPECT_GT(quantile(enough, 0.5), 39.65 / 1.5);
  EXPECT_LT(quantile(enough, 0.5), 39.65 * 1.5);
  EXPECT_GT(quantile(thrash, 0.5), 6278.0 / 3.162);
  EXPECT_LT(quantile(thrash, 0.5), 6278.0 * 3.162);
}

// Agullo et al. (arXiv 2508.08343), vLLM 0.8.5: 64 adapters of rank 16 at .1, .05 and .025 req/s.
// Means of 222 and 197 tokens are measured; medians and limits of ShareGPT are assumed.
Trace agullo_requests() {
  GenerateOptions o;
  o.source = ArrivalSource::adapter_rates;
  o.adapter_rates = parse_adapter_rates("0.1:22,0.05:21,0.025:21");
  o.limit.duration_ns = 3'600'000'000'000;
  o.ranks = {16};
  o.num_adapters = 64;
  o.prompt_tokens = LengthLaw::lognormal(222, 120, 2048);
  o.output_tokens = LengthLaw::lognormal(197, 150, 1024);
  return generate(o);
}

// Measured mean TTFT: 16,085 ms with 8 slots, 490 with 16, 67 with 32, 71 with 64. At 8 slots the
// places are as busy as they can be, where a step some per cent longer is a wait many times longer;
// the roofline's steps are 30 % short there. So the shape is: the knee lies between 8 and 16 slots,
// and below it TTFT is more than ten times what it is above.
TEST(SlotThrash, Vllm08BelowTheKnee) {
  const Trace trace = agullo_requests();
  std::map<int32_t, double> mean_ttft_ms;
  for (const int32_t slots : {8, 16, 32, 64}) {
    const Engine engine{.preset = "vllm-0.8",
                        .gpu = "H100-80,mem=63.4GiB,bw=1.63TB/s",
                        .model = "Llama-3.1-8B",
                        .max_num_seqs = 2048,
                        .max_loras = slots};
    const ConfigResult r = replayed(trace, engine);
    mean_ttft_ms[slots] = r.ttft.mean_ms;
    fmt::print("vLLM 0.8.5, 64 adapters, {} slots: mean TTFT {:.0f} ms, TPOT {:.1f} ms\n", slots,
               r.ttft.mean_ms, r.tpot.mean_ms);
  }
  EXPECT_GT(mean_ttft_ms[8], 10 * mean_ttft_ms[64]);
  EXPECT_LT(mean_ttft_ms[16], 10 * mean_ttft_ms[64]);
  EXPECT_LT(mean_ttft_ms[32], 2 * mean_ttft_ms[64]);
}

// TokenSpeed, Qwen3-8B: 43 ms to the first token with the adapter on the GPU, 43 in host memory, 72
// on disk, of which the read is "about 30" and the copy under 1. The prompt is not given, so the
// differences count. The two bounds are 1 ms of rounding in 72 - 43 and 1 ms in "about 30".
// LoadCosts was chosen from these very figures (docs/cost_model.md): this keeps it so.
TEST(SlotThrash, TokenSpeedsTiers) {
  Trace trace;
  for (const char* name : {"a", "b", "c"}) trace.adapters.push_back({name, 16});
  const auto request = [](int64_t second, AdapterIndex adapter) {
    return at(second * 1'000'000'000, adapter, 512, 2);
  };
  trace.requests = {request(0, 1), request(5, 0), request(10, 0), request(15, 1), request(20, 2)};
  const Engine engine{.preset = "ideal",
                      .gpu = "H100-80",
                      .model = "Qwen3-8B",
                      .targets = "q,k,v,o",
                      .max_loras = 1};
  const ConfigResult result = replayed(trace, engine);
  std::map<ArrivalTier, double> ttft_ms;
  for (const RequestRecord& r : result.requests) {
    ttft_ms[r.tier_at_arrival] = 1e-6 * double(r.first_token_ns - r.arrival_ns);
  }
  const double gpu_ms = ttft_ms.at(ArrivalTier::gpu), cpu_ms = ttft_ms.at(ArrivalTier::cpu);
  const double disk_ms = ttft_ms.at(ArrivalTier::disk);
  fmt::print("TTFT, adapter on GPU {:.1f} ms, CPU {:+.1f}, disk {:+.1f}\n", gpu_ms, cpu_ms - gpu_ms,
             disk_ms - gpu_ms);
  EXPECT_GT(cpu_ms, gpu_ms);
  EXPECT_LT(cpu_ms, gpu_ms + 1);
  EXPECT_NEAR(disk_ms - gpu_ms, 29, 2);
}

}  // namespace
}  // namespace loratory::sim
