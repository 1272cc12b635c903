// The naive oracle on a tiny model: tokens per second with everything computed anew for each.
#include <benchmark/benchmark.h>

#include "fuzz/support/random_model.hpp"
#include "reference/model/oracle.hpp"

namespace loratory::reference {
namespace {

ModelConfig config_of(int64_t num_experts) {
  const ModelConfig dense = tiny_model_config();
  return num_experts == 0 ? dense : with_experts(dense, num_experts, 2);
}

// 2 layers, hidden 64, a vocabulary of 256; 32 new tokens after a prompt of 32.
void generate_tokens(benchmark::State& state) {
  const ModelConfig config = config_of(state.range(0));
  const Model model = random_model(config, 1);
  const RandomAdapter adapter = random_adapter(config, 2);
  const std::vector<int32_t> prompt = random_tokens(config, 32, 3);
  int64_t num_tokens = 0;
  for (auto _ : state) {
    const Generation out = generate(model, &adapter.adapter, prompt, {.max_new_tokens = 32});
    num_tokens += int64_t(out.tokens.size());
  }
  state.counters["tokens"] = benchmark::Counter(double(num_tokens), benchmark::Counter::kIsRate);
}
BENCHMARK(generate_tokens)->ArgName("experts")->Arg(0)->Arg(4)->Unit(benchmark::kMillisecond);

// Float64 logits of 16 tokens with the bound of each.
void bounded_logits_of_16_tokens(benchmark::State& state) {
  const ModelConfig config = config_of(0);
  const Model model = random_model(config, 1);
  const RandomAdapter adapter = random_adapter(config, 2);
  const std::vector<int32_t> tokens = random_tokens(config, 16, 3);
  for (auto _ : state) benchmark::DoNotOptimize(bounded_logits(model, &adapter.adapter, tokens));
}
BENCHMARK(bounded_logits_of_16_tokens)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace loratory::reference
