// The kernel of gpu/kernels/ against the reference, on a GPU; skipped without one. Every size comes
// with every variant, so that each of them is asked about each corner.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "gpu_case.hpp"
#include "reference/lora/oracle.hpp"

namespace loratory::gpu {
namespace {

using reference::Dtype;
using reference::Fill;
using reference::LoraCase;
using reference::LoraData;
using reference::NumericMode;
using reference::Tensor;

int64_t num_cases() {
  const char* const text = std::getenv("LORATORY_GPU_CASES");
  return text == nullptr ? 60 : std::atoll(text);
}

/// Modes that the kernel has: h split or stored as x, one or two roundings.
NumericMode mode_of(uint64_t i) {
  return {i % 2 == 0 ? reference::IntermediateMode::fp32 : reference::IntermediateMode::store_as_x,
          i / 2 % 2 == 0 ? reference::SumMode::one_round : reference::SumMode::two_round,
          reference::ScaleMode::accumulator};
}

/// Case i of a fixed set: awkward sizes, all of them soon.
LoraCase case_of(uint64_t i) {
  const auto draw = [i](uint64_t stream) { return reference::random_bits(i, 77, stream); };
  constexpr int kIns[] = {1, 8, 17, 64, 96, 100, 512, 896, 2368, 4096, 4097};
  constexpr int kRanks[] = {1, 2, 3, 5, 8, 12, 16, 24, 32, 40, 48, 64, 96, 100, 128};
  return {.seed = i,
          .num_tokens = int(draw(0) % 4 == 0 ? draw(1) % 300 : draw(1) % 40),
          .num_in = kIns[draw(2) % std::size(kIns)],
          .num_slices = int(1 + draw(3) % 3),
          .max_loras = int(1 + draw(4) % 9),
          .max_rank = kRanks[draw(5) % std::size(kRanks)],
          .dtype = int(1 + draw(6) % 2),
          .mode = 0};
}

struct Worst {
  double error_over_bound = 0;
  int64_t num_results = 0;
};

void judge(const LoraData& data, const Tensor& y, Worst& worst) {
  LoraData args_of = data;
  const reference::LinearArgs args = args_of.args();
  const reference::Oracle oracle = reference::linear_oracle(args);
  reference::Arithmetic arithmetic = reference::arithmetic_of(args);
  arithmetic.unit = 0x1p-22;
  if (arithmetic.mode.h == reference::IntermediateMode::fp32) {
    arithmetic.mode.h = reference::IntermediateMode::split2;
  }
  for (int64_t t = 0; t < y.shape()[0]; ++t) {
    for (int64_t n = 0; n < y.shape()[1]; ++n) {
      const auto& facts = oracle.at(t, n);
      const double got = y.get(t, n), before = data.y.get(t, n);
      if (!facts) {
        ASSERT_TRUE(got == before || (got != got && before != before)) << "row " << t << " " << n;
        continue;
      }
      const double ratio = reference::error_over_bound(got, *facts, arithmetic);
      ASSERT_LE(ratio, 1) << "row " << t << " column " << n << ": " << got << " for "
                          << facts->result();
      worst.error_over_bound = std::max(worst.error_over_bound, ratio);
      ++worst.num_results;
    }
  }
}

class LoraLinearOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
  }
};

void print_line(const char* test, int64_t cases, const Worst& worst) {
  cudaDeviceProp device{};
  int driver = 0;
  cudaGetDeviceProperties(&device, 0);
  cudaDriverGetVersion(&driver);
  fmt::print(
      "{{\"test\": \"{}\", \"gpu\": \"{}\", \"driver\": {}, \"cases\": {}, \"results\": {}, "
      "\"worst_error_over_bound\": {:.4f}}}\n",
      test, device.name, driver, cases, worst.num_results, worst.error_over_bound);
}

// P5, P13, P16 with the poison of LoraData: NaN beyond every rank and in every empty slot.
TEST_F(LoraLinearOnGpu, LiesWithinTheBound) {
  Worst worst;
  for (int64_t i = 0; i < num_cases(); ++i) {
    LoraCase c = case_of(uint64_t(i));
    LoraData data(c, i % 5 == 4 ? Fill::cancellation : Fill::reals);
    data.mode = mode_of(uint64_t(i));
    SCOPED_TRACE(testing::Message() << c);
    const GpuCase on_gpu(data);
    for (const LoraVariant& v : variants(on_gpu.can_be_aligned())) {
      SCOPED_TRACE(
          fmt::format("variant {} {} {} {}", v.rank_tiles, v.token_tiles, v.cluster, v.aligned));
      judge(data, on_gpu.run(v), worst);
      if (HasFatalFailure()) return;
    }
  }
  print_line("within_bound", num_cases(), worst);
}

// P4: what is exact in every order is exact here.
TEST_F(LoraLinearOnGpu, IsExactOnIntegers) {
  for (int64_t i = 0; i < num_cases(); ++i) {
    LoraCase c = case_of(uint64_t(i) + 1000);
    c.num_in = std::min(c.num_in, 100);
    c.max_rank = std::min(c.max_rank, 16);
    const LoraData data(c, Fill::small_integers);
    SCOPED_TRACE(testing::Message() << c);
    const Tensor expected = data.run({});
    const GpuCase on_gpu(data);
    for (const LoraVariant& v : variants(on_gpu.can_be_aligned())) {
      ASSERT_TRUE(reference::same_bits(on_gpu.run(v), expected)) << v.rank_tiles << v.token_tiles;
    }
  }
}

// P7, P12: every variant gives the same bits, a row alone those of the row in its batch, and a
// second run those of the first.
TEST_F(LoraLinearOnGpu, BitsDependOnTheRowAlone) {
  for (int64_t i = 0; i < num_cases(); ++i) {
    const LoraCase c = case_of(uint64_t(i) + 2000);
    const LoraData data(c, Fill::reals);
    SCOPED_TRACE(testing::Message() << c);
    const GpuCase on_gpu(data);
    const std::vector<LoraVariant> all = variants(on_gpu.can_be_aligned());
    const Tensor expected = on_gpu.run(all[0]);
    for (const LoraVariant& v : all) {
      ASSERT_TRUE(reference::same_bits(on_gpu.run(v), expected)) << v.rank_tiles << v.token_tiles;
    }
    for (int64_t t = 0; t < c.num_tokens; t += 1 + c.num_tokens / 3) {
      const LoraData alone = reference::with_tokens(data, {t});
      const Tensor y = GpuCase(alone).run(all[size_t(t) % all.size()]);
      for (int64_t n = 0; n < y.shape()[1]; ++n) {
        const double got = y.get(0, n), want = expected.get(t, n);
        ASSERT_TRUE(got == want || (got != got && want != want)) << "row " << t << " column " << n;
      }
    }
  }
}

}  // namespace
}  // namespace loratory::gpu
