// Mixtures of experts on several tp_ranks, by hand.
#include "reference/parallel/moe.hpp"

#include <gtest/gtest.h>

#include "reference/base/input_error.hpp"
#include "tests/reference/moe/moe_case.hpp"

namespace loratory::reference {
namespace {

// One expert, H = I = 2, R = 4, not gated, W1 = W2 = I. LoRA of rank 3 on both layers:
// A = [[1,0],[0,1],[1,1]], B = [[1,2,3],[0,1,-1]].
struct OneExpert {
  MoeArgs args() const {
    MoeArgs args;
    args.x = x.view();
    args.rows = {1, experts, {}};
    args.router_weights = weights;
    args.w13 = identity.view();
    args.w2 = identity.view();
    args.gated = false;
    args.activation = Activation::identity;
    return args;
  }
  MoeLora lora() const {
    const ExpertLoraSlice slice{a.view(), b.view(), ranks, scalings};
    return {{slots, enabled}, {slice}, slice, {}};
  }
  std::vector<double> run(const MoeParallel& how) const {
    const MoeLora with = lora();
    const std::vector<Tensor> y = parallel_moe(args(), &with, how);
    for (const Tensor& of_rank : y) EXPECT_EQ(values(of_rank), values(y[0]));
    return values(y[0]);
  }

  Tensor x = tensor(Dtype::f32, {1, 2}, {1, 2});
  Tensor identity = tensor(Dtype::f32, {1, 2, 2}, {1, 0, 0, 1});
  Tensor a = tensor(Dtype::f32, {1, 1, 4, 2}, {1, 0, 0, 1, 1, 1, 9, 9});
  Tensor b = tensor(Dtype::f32, {1, 1, 2, 4}, {1, 2, 3, 9, 0, 1, -1, 9});
  std::vector<int32_t> experts{0}, slots{0}, enabled{1, 0}, ranks{3};
  std::vector<float> weights{0.5F}, scalings{1};
};

// h = [1,2,3], u = [1,2] + [14,-1] = [15,1]; h = [15,1,16], z = [15,1] + [65,-15] = [80,-14].
const std::vector<double> kExpected{40, -7};

// [3.16] [3.17] r = 3 of R = 4: with Rs = r/P the third number of h would be gathered elsewhere.
TEST(ParallelMoe, WorkedExample) {
  const OneExpert example;
  EXPECT_EQ(example.run({.tp_size = 1}), kExpected);
  EXPECT_EQ(example.run({.tp_size = 2}), kExpected);
  EXPECT_EQ(example.run({.tp_size = 1, .fully_sharded = true}), kExpected);
  EXPECT_EQ(example.run({.tp_size = 2, .fully_sharded = true}), kExpected);
}

// [3.17] tp_rank 1 has no row of an adapter of rank 1 or 2, and the sum is right nevertheless.
TEST(ParallelMoe, TpRanksWithoutRows) {
  OneExpert example;
  for (const int32_t rank : {0, 1, 2}) {
    example.ranks = {rank};
    EXPECT_EQ(example.run({.tp_size = 2, .fully_sharded = true}), example.run({})) << rank;
  }
}

// Without LoRA, fully sharded or not.
TEST(ParallelMoe, BaseLayer) {
  const OneExpert example;
  for (const bool fully_sharded : {false, true}) {
    const auto y = parallel_moe(example.args(), nullptr, {2, fully_sharded, false});
    EXPECT_EQ(values(y[1]), (std::vector<double>{0.5, 1}));
  }
}

// [1.41] [3.18] Experts on tp_ranks of their own; adapters go with them.
TEST(ParallelMoe, ExpertParallel) {
  const TwoExperts example;
  const MoeLora lora = example.lora();
  const auto y = parallel_moe(example.args(), &lora, {.tp_size = 2, .expert_parallel = true});
  EXPECT_EQ(y[0].get(0, 0), 45);
  EXPECT_EQ(y[1].get(0, 0), 45);
}

// [1.41] [3.17] [3.18] What cannot be cut is refused; r need not be a multiple of P.
TEST(ParallelMoe, Errors) {
  const OneExpert example;
  const MoeLora lora = example.lora();
  const auto refuses = [&](const MoeArgs& args, const MoeLora& with, const MoeParallel& how) {
    try {
      parallel_moe(args, &with, how);
    } catch (const InputError&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refuses(example.args(), lora, {2, true, false}));
  EXPECT_TRUE(refuses(example.args(), lora, {0, false, false}));
  EXPECT_TRUE(refuses(example.args(), lora, {4, false, false}));  // I = 2
  EXPECT_TRUE(refuses(example.args(), lora, {2, false, true}));   // E = 1
  EXPECT_TRUE(refuses(example.args(), lora, {1, true, true}));    // both

  OneExpert odd_rank = example;
  odd_rank.a = Tensor(Dtype::f32, {1, 1, 3, 2}), odd_rank.b = Tensor(Dtype::f32, {1, 1, 2, 3});
  EXPECT_FALSE(refuses(odd_rank.args(), odd_rank.lora(), {2, false, false}));
  EXPECT_TRUE(refuses(odd_rank.args(), odd_rank.lora(), {2, true, false}));

  // H = 1: default cuts I alone.
  const Tensor x(Dtype::f32, {1, 1}), w13(Dtype::f32, {1, 2, 1}), w2(Dtype::f32, {1, 1, 2});
  const Tensor a13(Dtype::f32, {1, 1, 4, 1}), b2(Dtype::f32, {1, 1, 1, 4});
  MoeArgs args = example.args();
  args.x = x.view(), args.w13 = w13.view(), args.w2 = w2.view();
  MoeLora narrow = lora;
  narrow.w13[0].a = a13.view(), narrow.w2.b = b2.view();
  EXPECT_FALSE(refuses(args, narrow, {2, false, false}));
  EXPECT_TRUE(refuses(args, narrow, {2, true, false}));

  const TwoExperts two;
  EXPECT_FALSE(refuses(two.args(), two.lora(), {2, false, true}));
  const std::vector<int32_t> map{0, 1};
  MoeArgs mapped = two.args();
  mapped.rows.expert_map = map;
  EXPECT_TRUE(refuses(mapped, two.lora(), {2, false, true}));
}

}  // namespace
}  // namespace loratory::reference
