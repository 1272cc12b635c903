// How long the LoRA delta of one layer takes: lora_linear on 4096 -> 4096, 256 tokens of 8
// adapters of rank 16 in turns. bench/peers/cpu_lora_delta.py times PyTorch on the same;
// bench/compare_lora_delta.sh runs both.
#include <benchmark/benchmark.h>

#include <random>
#include <string>

#include "reference/lora/linear.hpp"

extern "C" void omp_set_num_threads(int);

namespace {

using namespace loratory::reference;

constexpr int64_t kTokens = 256, kIn = 4096, kOut = 4096, kRank = 16;
constexpr int32_t kAdapters = 8;

Tensor random_tensor(Dtype dtype, Extents shape, double scale, std::mt19937_64& engine) {
  Tensor t(dtype, std::move(shape));
  const size_t size = size_bytes(dtype);
  for (size_t i = 0; i < t.bytes().size(); i += size) {
    store(dtype, t.bytes().data() + i, scale * (double(engine() >> 12) * 0x1p-52 - 0.5));
  }
  return t;
}

// Arguments: dtype of everything that is stored, NumericMode, OpenMP threads.
void lora_delta(benchmark::State& state) {
  const auto dtype = Dtype(state.range(0));
  const NumericMode mode = state.range(1) == 0 ? kDefaultMode : kSglangMode;
  omp_set_num_threads(int(state.range(2)));
  std::mt19937_64 engine(1);
  const Tensor x = random_tensor(dtype, {kTokens, kIn}, 1, engine);
  const Tensor a = random_tensor(dtype, {kAdapters, kRank, kIn}, 1.0 / 64, engine);
  const Tensor b = random_tensor(dtype, {kAdapters, kOut, kRank}, 1.0 / 64, engine);
  Tensor y = random_tensor(dtype, {kTokens, kOut}, 1, engine);
  std::vector<int32_t> slots;
  for (int32_t t = 0; t < kTokens; ++t) slots.push_back(t % kAdapters);
  const std::vector<int32_t> ranks(kAdapters, kRank);
  const std::vector<float> scalings(kAdapters, 0.5F);
  const LinearArgs args{.x = x.view(),
                        .slots = slots,
                        .slices = {{a.view(), b.view(), ranks, scalings, std::nullopt}},
                        .mode = mode,
                        .y = y.view()};
  for (auto _ : state) {
    lora_linear(args);
    benchmark::ClobberMemory();
  }
  state.SetLabel(std::string(name(dtype)) + (state.range(1) == 0 ? "" : " as SGLang"));
  const double products = double(kTokens) * kRank * (kIn + kOut);
  state.counters["products/s"] =
      benchmark::Counter(products, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(lora_delta)
    ->ArgNames({"dtype", "mode", "threads"})
    ->Args({int(Dtype::f32), 0, 2})
    ->Args({int(Dtype::bf16), 0, 2})
    ->Args({int(Dtype::f16), 0, 2})
    ->Args({int(Dtype::bf16), 1, 2})
    ->Args({int(Dtype::f32), 0, 1})
    ->Args({int(Dtype::bf16), 0, 1})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
