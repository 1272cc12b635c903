// How fast a replay is, against the goals of docs/performance.md. Workloads come from the
// generator, so the numbers need no file.
//
//   simulator_bench --benchmark_filter=one_hour     256 adapters, 15 requests/s, 54,000 requests
//   simulator_bench --benchmark_filter=sweep        two cores against one
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "bench/cpu/counted_heap.hpp"
#include "scheduler_sim/cost/roofline.hpp"
#include "scheduler_sim/sizing/sweep.hpp"
#include "scheduler_sim/trace/reader.hpp"
#include "scheduler_sim/workload/generate.hpp"

namespace {

using namespace loratory::sim;

// 256 adapters, Zipf popularity, prompts of 220 and outputs of 196 tokens on average.
Trace one_hour() {
  GenerateOptions options;
  options.seed = 1;
  options.arrivals = {.rate_rps = 15, .cv = 1};
  options.limit.num_requests = 54'000;
  options.popularity = parse_popularity("zipf:1");
  options.num_adapters = 256;
  options.ranks = {8, 16};
  options.prompt_tokens = LengthLaw::lognormal(220, 140, 4096);
  options.output_tokens = LengthLaw::lognormal(196, 130, 2048);
  return generate(options);
}

EngineSpec engine_without_prefix_cache() {
  EngineSpec engine;
  engine.model = load_model_spec("Llama-3.1-8B");
  engine.gpu = parse_gpu_spec("H100-80");
  engine.scheduler.prefix_cache = false;
  engine.scheduler.max_num_seqs = engine.scheduler.max_num_batched_tokens = 2048;
  engine.memory.max_num_seqs = 2048;
  engine.make_step_time = [model = engine.model, gpu = engine.gpu](EnginePoint) {
    return std::make_unique<RooflineModel>(model, gpu, RooflineOptions{});
  };
  return engine;
}

// Arguments: max_loras, fast (0 = every step on its own).
void one_hour(benchmark::State& state) {
  const Trace trace = one_hour();
  EngineSpec engine = engine_without_prefix_cache();
  engine.fast = state.range(1) != 0;
  const auto max_loras = int32_t(state.range(0));
  ConfigResult result;
  for (auto _ : state) {
    result = replay(trace, engine, {max_loras, 256}, Slo{}).result;
  }
  const auto requests = double(trace.requests.size());
  state.counters["requests/s"] =
      benchmark::Counter(requests, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["steps"] = double(result.num_steps);
  state.counters["mean_batch"] = result.mean_batch_seqs;
  state.SetLabel(result.event_log_hash);
}
BENCHMARK(one_hour)
    ->ArgNames({"max_loras", "fast"})
    ->ArgsProduct({{8, 32, 64, 256}, {1, 0}})
    ->Unit(benchmark::kMillisecond);

// Most bytes that a replay holds at once, per request and beside the trace.
void memory_per_request(benchmark::State& state) {
  const Trace trace = one_hour();
  const EngineSpec engine = engine_without_prefix_cache();
  int64_t bytes = 0;
  for (auto _ : state) {
    const int64_t before = loratory::heap.now;
    loratory::heap.peak = before;
    benchmark::DoNotOptimize(replay(trace, engine, {64, 256}, Slo{}, ReplayDetail::details));
    bytes = loratory::heap.peak - before;
  }
  state.counters["bytes/request"] = double(bytes) / double(trace.requests.size());
}
BENCHMARK(memory_per_request)->Unit(benchmark::kMillisecond);

// A public trace of 12,031 long prompts with prefix blocks; its path comes from the environment.
void mooncake_conversation(benchmark::State& state) {
  const char* const path = std::getenv("LORATORY_MOONCAKE_CONVERSATION");
  if (path == nullptr) {
    state.SkipWithError("LORATORY_MOONCAKE_CONVERSATION does not name the trace");
    return;
  }
  const Trace trace = read_trace(path, {});
  EngineSpec engine = engine_without_prefix_cache();
  engine.scheduler.prefix_cache = true;
  engine.scheduler.block_size = trace.block_tokens;
  engine.memory.block_size = trace.block_tokens;
  engine.forced_kv_blocks = uint32_t(state.range(0));
  ConfigResult result;
  for (auto _ : state) result = replay(trace, engine, {8, 32}, Slo{}).result;
  state.counters["hit_ratio_tokens"] = result.prefix_hit_ratio_tokens;
  state.counters["steps"] = double(result.num_steps);
  state.SetLabel(result.event_log_hash);
}
BENCHMARK(mooncake_conversation)
    ->ArgName("kv_blocks")
    ->Arg(400'000)
    ->Arg(5'859)
    ->Unit(benchmark::kMillisecond);

// The same sweep on one thread and on two.
void sweep_threads(benchmark::State& state) {
  const std::vector<Trace> traces = {one_hour()};
  const EngineSpec engine = engine_without_prefix_cache();
  SweepOptions options;
  options.max_loras = {24, 32, 40, 48, 56, 64, 96, 128, 192, 256};
  options.num_threads = int(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(sweep(traces, engine, options));
}
BENCHMARK(sweep_threads)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
