// The naive oracle on the golden models: tokens per second with everything computed anew for each.
#include <benchmark/benchmark.h>

#include "reference/model/oracle.hpp"

namespace loratory::reference {
namespace {

const std::string kFixtures = std::string(LORATORY_SOURCE_DIR) + "/tests/golden/fixtures/";

std::vector<int32_t> some_tokens(const ModelConfig& config, int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(int32_t((i * 37 + 11) % config.vocab));
  return tokens;
}

// 32 new tokens after a prompt of 32.
void generate_tokens(benchmark::State& state, const std::string& name, const std::string& adapter) {
  const std::string directory = kFixtures + name;
  const Model model = load_model(directory);
  const Adapter lora =
      load_adapter(directory + "/adapters/" + adapter, base_model_shapes(model.config));
  const std::vector<int32_t> prompt = some_tokens(model.config, 32);
  int64_t num_tokens = 0;
  for (auto _ : state) {
    const Generation out = generate(model, &lora, prompt, {.max_new_tokens = 32});
    num_tokens += int64_t(out.tokens.size());
  }
  state.counters["tokens"] = benchmark::Counter(double(num_tokens), benchmark::Counter::kIsRate);
}
BENCHMARK_CAPTURE(generate_tokens, llama_gqa, "llama_gqa", "everything_r7")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(generate_tokens, llama3_tied_bias, "llama3_tied_bias", "all_r8")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(generate_tokens, qwen3_yarn, "qwen3_yarn", "attention_rslora_r16")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(generate_tokens, qwen2_linear, "qwen2_linear", "mlp_layer_0")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(generate_tokens, mixtral, "mixtral", "parameters_r3")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(generate_tokens, qwen3_moe, "qwen3_moe", "attention_and_parameters")
    ->Unit(benchmark::kMillisecond);

// Float64 logits of 16 tokens with the bound of each.
void bounded_logits_of_16_tokens(benchmark::State& state) {
  const Model model = load_model(kFixtures + "llama_gqa");
  const std::vector<int32_t> tokens = some_tokens(model.config, 16);
  for (auto _ : state) benchmark::DoNotOptimize(bounded_logits(model, nullptr, tokens));
}
BENCHMARK(bounded_logits_of_16_tokens)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace loratory::reference
