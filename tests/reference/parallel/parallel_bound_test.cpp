// The bound's terms for tp_ranks [1.18]: each holds an error that the bound without it would not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "reference/numerics/error_bound.hpp"
#include "reference/parallel/linear_layers.hpp"
#include "tests/reference/parallel/test_tensors.hpp"

namespace loratory::reference {
namespace {

// [1.18] Eight exact partial results in bf16, 256 and seven times 1: every sum is a tie that
// rounds back to 256. Base and delta alone allow no error at all here.
TEST(ParallelBound, SumsOverTpRanks) {
  std::vector<Tensor> parts(8, tensor(Dtype::bf16, {1}, {1}));
  parts[0].set(256, 0);
  const double got = all_reduce(parts, ReduceRounding::each_sum)[0].get(0);
  EXPECT_EQ(got, 256);
  const std::vector<double> partials{256, 1, 1, 1, 1, 1, 1, 1}, exact(8, 0.0);
  const double bound = all_reduce_error_bound(partials, exact, Dtype::bf16);
  EXPECT_LE(263 - got, bound);
  EXPECT_NEAR(bound, 263 * (8.0 / 256) / (1 - 8.0 / 256), 1e-4);
}

// [1.18] The partial results' own errors add up, and are summed with rounding as well.
TEST(ParallelBound, ErrorsOfThePartsAddUp) {
  const double bound = all_reduce_error_bound(std::vector<double>{4, -4},
                                              std::vector<double>{0.5, 0.25}, Dtype::f16);
  const double u = 2 * 0x1p-11 / (1 - 2 * 0x1p-11);
  EXPECT_NEAR(bound, 0.75 + u * 8.75, 1e-5);
  EXPECT_EQ(all_reduce_error_bound(std::vector<double>{4}, std::vector<double>{0.5}, Dtype::f16),
            0.5);
}

// [1.18] [3.10] h kept in bf16 on two tp_ranks: 1 + 2^-8 is a tie that becomes 1, and
// -(1 + 3·2^-8) one that becomes -(1 + 2^-6). h* = -2^-7, but their sum is -2^-6. The bound for
// one part, relative to |h*|, does not hold it; that for two does.
TEST(ParallelBound, PartsOfHAreRoundedOneByOne) {
  const RowLayer layer{
      .shards = row_shards({.tp_size = 2, .fully_sharded = true, .max_lora_rank = 2}, 4, 2)};
  const Tensor x = tensor(Dtype::bf16, {1, 4}, {1, 0x1p-8, -1, -3 * 0x1p-8});
  const Tensor a = tensor(Dtype::bf16, {1, 4}, {1, 1, 1, 1}),
               b = tensor(Dtype::bf16, {2, 1}, {1, 0});
  const Tensor weight(Dtype::bf16, {2, 4});
  const auto buffers = buffers_of(layer.shards, {{LoraPair{a.view(), b.view(), 1}}}, Dtype::bf16);
  const std::vector<int32_t> slots{0};
  const LayerInput in{.x = split(x, 2, 1),
                      .slots = slots,
                      .weight = weight.view(),
                      .bias = std::nullopt,
                      .buffers = buffers,
                      .mode = {.h = IntermediateMode::store_as_x},
                      .out = Dtype::f32};
  const double got = layer.run(in)[0].get(0, 0);
  EXPECT_EQ(got, -0x1p-6);
  const double sum_xa = 2 + 4 * 0x1p-8;
  const DeltaFacts facts{.delta = -0x1p-7,
                         .scaling = 1,
                         .num_in = 4,
                         .rank = 1,
                         .sum_b_h = 0x1p-7,
                         .sum_b_xa = sum_xa,
                         .sum_b = 1,
                         .sum_h = 0x1p-7,
                         .sum_xa = sum_xa};
  Arithmetic arithmetic{.mode = in.mode, .h = Dtype::bf16, .weight = Dtype::bf16};
  EXPECT_GT(std::fabs(got - facts.result()), error_bound(facts, arithmetic));
  arithmetic.num_h_parts = 2;
  EXPECT_GE(delta_error_bound(facts, arithmetic), gamma(3, 0x1p-8) * sum_xa);
  EXPECT_LE(std::fabs(got - facts.result()), error_bound(facts, arithmetic));
}

// [1.18] fp32 h: n grows by P - 1. Rounding parts that are fp32 anyway adds nothing more.
TEST(ParallelBound, Fp32PartsAddOneSumEach) {
  const DeltaFacts facts{.scaling = 1, .num_in = 8, .rank = 4, .sum_b_xa = 1};
  Arithmetic parts{.num_h_parts = 5};
  const double of_gamma = delta_error_bound(facts, parts) - delta_error_bound({}, {});
  EXPECT_NEAR(of_gamma, gamma(8 + 4 + 2 + 4, 0x1p-24), 1e-12);
  parts.mode.h = IntermediateMode::store_as_x;
  EXPECT_EQ(delta_error_bound(facts, parts), delta_error_bound(facts, {.num_h_parts = 5}));
}

}  // namespace
}  // namespace loratory::reference
