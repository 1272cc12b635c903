// How fast a fleet of 100 replicas is, beside one engine with a hundredth of the traffic. One core.
//
//   fleet_bench --benchmark_filter=fleet_of_100
#include <benchmark/benchmark.h>

#include <string>

#include "scheduler_sim/cost/roofline.hpp"
#include "scheduler_sim/fleet/fleet.hpp"
#include "scheduler_sim/simulator/simulator.hpp"
#include "scheduler_sim/workload/generate.hpp"

namespace {

using namespace loratory::sim;

constexpr int32_t kNumReplicas = 100;
constexpr int32_t kNumAdapters = 256;

// 15 requests/s for each of so many engines, for 6 minutes: as the hour of simulator_bench, prompts
// of 220 and outputs of 196 tokens on average, Zipf popularity.
Trace traffic_for(int32_t num_engines) {
  GenerateOptions options;
  options.seed = 1;
  options.arrivals = {.rate_rps = 15.0 * num_engines, .cv = 1};
  options.limit.num_requests = 5400 * uint64_t(num_engines);
  options.popularity = parse_popularity("zipf:1");
  options.num_adapters = kNumAdapters;
  options.ranks = {8, 16};
  options.prompt_tokens = LengthLaw::lognormal(220, 140, 4096);
  options.output_tokens = LengthLaw::lognormal(196, 130, 2048);
  return generate(options);
}

SimulationConfig engine(const Trace& trace) {
  SimulationConfig config;
  config.scheduler.prefix_cache = false;
  config.scheduler.max_num_seqs = config.scheduler.max_num_batched_tokens = 2048;
  config.scheduler.residency = {.max_loras = 64, .max_cpu_loras = kNumAdapters};
  config.scheduler.num_blocks = 28'000;
  for (const TraceAdapter& adapter : trace.adapters) {
    config.adapter_ranks.push_back(adapter.rank);
    config.adapter_bytes.push_back(int64_t{adapter.rank} * 5'242'880);  // of Llama-3.1-8B
  }
  return config;
}

void count_requests(benchmark::State& state, const Trace& trace) {
  state.counters["requests/s"] = benchmark::Counter(double(trace.requests.size()),
                                                    benchmark::Counter::kIsIterationInvariantRate);
}

// Argument: RouterKind.
void fleet_of_100(benchmark::State& state) {
  const Trace trace = traffic_for(kNumReplicas);
  const RooflineModel times(load_model_spec("Llama-3.1-8B"), parse_gpu_spec("H100-80"), {});
  const FleetOptions options{.num_replicas = kNumReplicas, .router = RouterKind(state.range(0))};
  for (auto _ : state) {
    Fleet fleet(trace, engine(trace), times, options);
    fleet.run();
    benchmark::DoNotOptimize(fleet.replicas().front().engine().log().size());
  }
  count_requests(state, trace);
  state.SetLabel(std::string(name_of(options.router)));
}
BENCHMARK(fleet_of_100)->ArgName("router")->DenseRange(0, 5)->Unit(benchmark::kMillisecond);

void one_engine(benchmark::State& state) {
  const Trace trace = traffic_for(1);
  const RooflineModel times(load_model_spec("Llama-3.1-8B"), parse_gpu_spec("H100-80"), {});
  for (auto _ : state) {
    Simulator simulator(trace, engine(trace), times);
    simulator.run();
    benchmark::DoNotOptimize(simulator.log().size());
  }
  count_requests(state, trace);
}
BENCHMARK(one_engine)->Unit(benchmark::kMillisecond);

}  // namespace
