// A mixture-of-experts layer with LoRA by hand: A.4, router weights, quantised base inputs, errors.
#include "reference/moe/moe_layer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/base/input_error.hpp"
#include "reference/moe/oracle.hpp"
#include "tests/reference/moe/moe_case.hpp"

namespace loratory::reference {
namespace {

using testing::ElementsAre;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// [1.33] [1.34] A.4. Router weight missing on the delta of down: 54; delta of gate after the
// activation: 43.5.
TEST(MoeLayer, WorkedExample) {
  const TwoExperts example;
  EXPECT_EQ(example.y(), 45);
  EXPECT_EQ(example.base(), 0.25 * 9 + 0.75 * 18);
}

// [1.34] k = 1: x' = g x for base and LoRA alike, and no weight on the way out.
TEST(MoeLayer, RouterWeightOnInputCountsOnce) {
  TwoExperts example;
  example.experts_per_token = 1;
  example.weights = {0.5F};
  example.experts = {0};
  MoeArgs args = example.args();
  args.router_weight_on_input = true;
  const MoeLora lora = example.lora();
  // u = 1.5 + 1.5, v = 1.5.
  EXPECT_EQ(moe_layer(args, &lora).y.get(0, 0), 4.5);
  example.experts = {1};
  args.rows.experts = example.experts;
  // u = 3, v = 1.5, z = 4.5 + 9.
  EXPECT_EQ(moe_layer(args, &lora).y.get(0, 0), 13.5);
  args.router_weight_on_input = false;
  EXPECT_EQ(moe_layer(args, &lora).y.get(0, 0), 0.5 * 54);
}

TEST(MoeLayer, RouterWeightOnInputNeedsOneExpert) {
  const TwoExperts example;
  MoeArgs args = example.args();
  args.router_weight_on_input = true;
  EXPECT_THROW(moe_layer(args, nullptr), InputError);
}

// [1.36] 17 of a row with largest number 448 is 16 in e4m3 (scale 1): the base multiplies 16, LoRA
// 17.
TEST(MoeLayer, LoraTakesNumbersThatAreNotQuantised) {
  const Tensor x = tensor(Dtype::f32, {1, 2}, {17, 448});
  const Tensor w13 = tensor(Dtype::f32, {1, 1, 2}, {1, 0});
  const Tensor w2 = tensor(Dtype::f32, {1, 2, 1}, {1, 0});
  const Tensor a = tensor(Dtype::f32, {1, 1, 1, 2}, {1, 0}), a2(Dtype::f32, {1, 1, 1, 1});
  const Tensor b = tensor(Dtype::f32, {1, 1, 1, 1}, {100}), b2(Dtype::f32, {1, 1, 2, 1});
  const std::vector<int32_t> experts{0}, slots{0}, enabled{1, 0}, ranks{1}, none{0};
  const std::vector<float> weights{1}, scalings{1};
  MoeArgs args;
  args.x = x.view(), args.w13 = w13.view(), args.w2 = w2.view();
  args.rows = {1, experts, {}};
  args.router_weights = weights;
  args.gated = false;
  args.activation = Activation::identity;
  args.quantised_base_input = Dtype::f8_e4m3fn;
  const MoeLora lora{{slots, enabled},
                     {{a.view(), b.view(), ranks, scalings}},
                     {a2.view(), b2.view(), none, scalings},
                     {}};
  const MoeStages stages = moe_layer(args, &lora);
  EXPECT_EQ(stages.gate_up_base.get(0, 0), 16);
  EXPECT_EQ(stages.gate_up.get(0, 0), 16 + 1700);
  EXPECT_LE(judge_stages(args, &lora, stages).worst(), 1.0);
}

TEST(MoeLayer, QuantisedRowsSaturateNowhereAndKeepZero) {
  const Tensor x = tensor(Dtype::f32, {3, 2}, {1000, -2, 0, -0.0, kNan, 1});
  const BaseInput base = base_input(x.view(), Dtype::f8_e4m3fn);
  EXPECT_EQ(base.scales[0], 1000.0F / 448);
  EXPECT_EQ(base.numbers.get(0, 0), 448);
  EXPECT_EQ(base.scales[1], 1);
  EXPECT_EQ(base.numbers.get(1, 0), 0);
  EXPECT_TRUE(std::isnan(base.numbers.get(2, 0)));
}

// [1.50] The scale of numbers so small that it would round to 0 is the smallest that is normal.
TEST(MoeLayer, QuantisedRowsOfTinyNumbersAreNumbers) {
  const Tensor x = tensor(Dtype::f32, {2, 2}, {1e-43, 0, 0x1p-126, -0x1p-126});
  for (const Dtype dtype : {Dtype::f8_e4m3fn, Dtype::f8_e5m2}) {
    const BaseInput base = base_input(x.view(), dtype);
    EXPECT_EQ(base.scales, (std::vector<float>{0x1p-126F, 0x1p-126F}));
    EXPECT_EQ(base.numbers.get(0, 0), round_to(dtype, double(1e-43F) * 0x1p126));
    EXPECT_EQ(base.numbers.get(0, 1), 0);
    EXPECT_EQ(base.numbers.get(1, 0), 1);
    EXPECT_EQ(base.numbers.get(1, 1), -1);
  }
}

// [1.37] The element of slot -1 says 1 here, and base tokens have no delta nevertheless.
TEST(MoeLayer, SlotsThatAreOffAndBaseTokensGiveTheBase) {
  TwoExperts example;
  example.enabled = {0, 1};
  EXPECT_EQ(example.y(), example.base());
  example.enabled = {1, 1};
  example.slots = {-1};
  EXPECT_EQ(example.y(), example.base());
}

// [1.2] [1.37] -0.0 stays -0.0 in the rows of base tokens.
TEST(MoeLayer, BaseRowsAreNotWritten) {
  TwoExperts example;
  const MoeLora lora = example.lora();
  Tensor y = tensor(Dtype::f32, {2, 2}, {-0.0, -0.0, -0.0, -0.0});
  const ExpertLoraArgs args{.x = example.x.view(),
                            .rows = example.args().rows,
                            .adapters = lora.adapters,
                            .slices = lora.w13,
                            .router_weights = {},
                            .y = y.view()};
  expert_lora(args, single_row_tiles(args.rows, args.adapters));
  EXPECT_EQ(y.get(0, 0), 3);
  EXPECT_TRUE(std::signbit(y.get(0, 1)));
  EXPECT_TRUE(std::signbit(y.get(1, 0)));
}

// A tile of a slot that is off, from arrays of an earlier step, changes nothing [1.37].
TEST(MoeLayer, StaleTilesOfDisabledSlotsAreSkipped) {
  TwoExperts example;
  const AlignedRows aligned = align_rows(example.args().rows, example.lora().adapters, 2, 4);
  example.enabled = {0, 0};
  const MoeLora lora = example.lora();
  EXPECT_EQ(moe_layer(example.args(), &lora, &aligned).y.get(0, 0), example.base());
}

// [1.34] vLLM's kernel multiplies the router weight into the delta of down: once, after scaling.
TEST(MoeLayer, RouterWeightInTheExpand) {
  const TwoExperts example;
  const MoeLora lora = example.lora();
  const Tensor a = tensor(Dtype::f32, {2, 1}, {18, 18});
  Tensor y = tensor(Dtype::f32, {2, 1}, {1, 1});
  const ExpertLoraArgs args{.x = a.view(),
                            .rows = example.args().rows,
                            .adapters = lora.adapters,
                            .slices = {lora.w2},
                            .router_weights = example.weights,
                            .y = y.view()};
  expert_lora(args, single_row_tiles(args.rows, args.adapters));
  EXPECT_THAT(values(y), ElementsAre(1, 1 + 0.75 * 36));
  // The bound knows of the weight: a factor like the scaling, and one product more.
  const auto facts = expert_lora_oracle(args).at(1, 0);
  ASSERT_TRUE(facts.has_value());
  EXPECT_EQ(facts->delta, 0.75 * 36);
  EXPECT_EQ(facts->scaling, 0.75 * double(lora.w2.scalings[1]));
  EXPECT_EQ(facts->num_in, 2);
}

// One row, one expert, bf16 x and weights, K = 1.
double one_element(const NumericMode& mode, Dtype out, double x, std::vector<double> a,
                   std::vector<double> b, float scaling, float router_weight) {
  const auto rank = int64_t(a.size());
  const Tensor x_tensor = tensor(Dtype::bf16, {1, 1}, {x});
  const Tensor a_tensor = tensor(Dtype::bf16, {1, 1, rank, 1}, a);
  const Tensor b_tensor = tensor(Dtype::bf16, {1, 1, 1, rank}, b);
  Tensor y = tensor(out, {1, 1}, {1});
  const std::vector<int32_t> experts{0}, slots{0}, enabled{1, 0}, ranks{int32_t(rank)};
  const std::vector<float> scalings{scaling}, weights{router_weight};
  const ExpertLoraArgs args{.x = x_tensor.view(),
                            .rows = {1, experts, {}},
                            .adapters = {slots, enabled},
                            .slices = {{a_tensor.view(), b_tensor.view(), ranks, scalings}},
                            .router_weights = weights,
                            .mode = mode,
                            .y = y.view()};
  expert_lora(args, single_row_tiles(args.rows, args.adapters));
  return y.get(0, 0);
}

// [1.17] The example of the two sums: d = 2^-8·(1 + 2^-10), times the router weight.
TEST(ExpertLora, OneAndTwoRoundings) {
  const NumericMode one{}, two{.sum = SumMode::two_round};
  const NumericMode as_weight{IntermediateMode::cast_to_weight, SumMode::two_round};
  const auto run = [](const NumericMode& mode, Dtype out, float router_weight) {
    return one_element(mode, out, 1, {1, 1}, {0x1p-8, 0x1p-18}, 1, router_weight);
  };
  EXPECT_EQ(run(one, Dtype::bf16, 1), 1.0078125);
  EXPECT_EQ(run(two, Dtype::bf16, 1), 1.0);
  EXPECT_EQ(run(two, Dtype::f32, 1), 1 + 0x1p-8 + 0x1p-18);
  EXPECT_EQ(run(as_weight, Dtype::f32, 1), 1 + 0x1p-8);
  // The weight meets d before it is rounded: 2^-8·(1 + 2^-10)·(1 + 2^-8) lies above the middle of
  // 2^-8 and 2^-8·(1 + 2^-7). Rounded first, d would be 2^-8 and the product stay unrounded.
  EXPECT_EQ(run(as_weight, Dtype::f32, 1 + 0x1p-8F), 1 + 0x1p-8 + 0x1p-15);
}

// [1.13] [1.17] Where h and scaling·B are rounded to bf16: (1 + 2^-7)² loses its 2^-14.
TEST(ExpertLora, ModesOfHAndScaling) {
  const double v = 1 + 0x1p-7, square = v * v, rounded = 1 + 0x1p-6;
  const auto run = [&](const NumericMode& mode, double a, double b, double scaling) {
    return one_element(mode, Dtype::f32, v, {a}, {b}, float(scaling), 1) - 1;
  };
  EXPECT_EQ(run({}, v, 1, 1), square);
  EXPECT_EQ(run({.h = IntermediateMode::split2}, v, 1, 1), square);
  EXPECT_EQ(run({.h = IntermediateMode::cast_to_weight}, v, 1, 1), rounded);
  EXPECT_EQ(run({.h = IntermediateMode::store_as_x}, v, 1, 1), rounded);
  EXPECT_EQ(run({}, 1, 1, v), square);
  EXPECT_EQ(run({.scale = ScaleMode::folded_b}, 1, v, v), v * rounded);
  EXPECT_EQ(run({}, 1, v, v), v * square);
}

// [1.41] Experts elsewhere add nothing here; the parts add up to the layer.
TEST(MoeLayer, ExpertsElsewhereAreLeftOut) {
  TwoExperts example;
  example.expert_map = {0, -1};
  EXPECT_EQ(example.y(), 0.25 * 18);
  example.expert_map = {-1, 1};
  EXPECT_EQ(example.y(), 0.75 * 54);
}

// [1.41] Whatever a kernel leaves in the rows of experts elsewhere.
TEST(MoeLayer, RowsOfExpertsElsewhereAreNotRead) {
  TwoExperts example;
  example.expert_map = {0, -1};
  const Tensor z = tensor(Dtype::f32, {2, 1}, {8, kNan});
  EXPECT_EQ(combine_experts(z.view(), example.args()).get(0, 0), 2);
}

// Expert 1 of the model is expert 0 here: weights go by the local number.
TEST(MoeLayer, ExpertMapRenumbers) {
  TwoExperts example;
  example.expert_map = {1, 0};
  // Weight 1/4 now goes to local expert 1 (z = 54), 3/4 to local expert 0 (z = 18).
  EXPECT_EQ(example.y(), 0.25 * 54 + 0.75 * 18);
}

// [1.21] NaN in an adapter's expert reaches the tokens of that expert and slot alone.
TEST(MoeLayer, NanStaysAtItsExpert) {
  TwoExperts example;
  example.b[2].set(kNan, 0, 1, 0, 0);
  EXPECT_TRUE(std::isnan(example.y()));
  example.experts_per_token = 1, example.experts = {0}, example.weights = {1};
  EXPECT_EQ(example.y(), 18);
}

TEST(Activation, KnownValues) {
  EXPECT_FLOAT_EQ(activate(Activation::silu, 1.0F), 0.7310586F);
  EXPECT_EQ(activate(Activation::silu, 0.0F), 0);
  EXPECT_EQ(activate(Activation::silu, -200.0F), 0);
  EXPECT_EQ(activate(Activation::relu, -2.0F), 0);
  EXPECT_EQ(activate(Activation::relu, 2.0F, 3.0F), 6);
  EXPECT_TRUE(std::isnan(activate(Activation::relu, float(kNan))));
  EXPECT_EQ(activate(Activation::identity, -2.0F, 3.0F), -6);
}

// gpt-oss: gate is clamped from above alone, up on both sides, 1 is added to up.
TEST(Activation, GptOssClamps) {
  const auto glu = [](double gate, double up) {
    return (up + 1) * gate / (1 + std::exp(-double(kGptOssAlpha) * gate));
  };
  EXPECT_DOUBLE_EQ(activate(Activation::gpt_oss, 1.0, 0.5), glu(1, 0.5));
  EXPECT_DOUBLE_EQ(activate(Activation::gpt_oss, 100.0, 0.5), glu(7, 0.5));
  EXPECT_DOUBLE_EQ(activate(Activation::gpt_oss, -20.0, 0.5), glu(-20, 0.5));
  EXPECT_DOUBLE_EQ(activate(Activation::gpt_oss, 1.0, 100.0), glu(1, 7));
  EXPECT_DOUBLE_EQ(activate(Activation::gpt_oss, 1.0, -100.0), glu(1, -7));
  const TwoExperts example;
  MoeArgs args = example.args();
  args.activation = Activation::gpt_oss, args.gated = false;
  EXPECT_THROW(check_moe(args), InputError);
}

// Over the whole range, where exp overflows and results are subnormal too.
TEST(Activation, LiesWithinItsBound) {
  double worst = 0;
  for (const Activation activation : {Activation::silu, Activation::gpt_oss, Activation::relu}) {
    for (float gate = -130; gate < 130; gate += 0.137F) {
      for (const float up : {1.0F, -0.3F, 1e3F, 1e-30F}) {
        const double exact = activate(activation, double(gate), double(up));
        const double bound = activation_error_bound(activation, true, gate, up, Dtype::f32);
        worst = std::max(worst, std::fabs(activate(activation, gate, up) - exact) / bound);
      }
    }
  }
  EXPECT_LE(worst, 1.0);
  EXPECT_GT(worst, 0.3);
}

TEST(MoeLayer, JudgeFindsOneWrongBitOfAnUncoveredElement) {
  const TwoExperts example;
  const MoeLora lora = example.lora();
  MoeStages stages = moe_layer(example.args(), &lora);
  EXPECT_EQ(judge_stages(example.args(), &lora, stages).worst(), 0);
  stages.gate_up.set(std::nextafter(3.0F, 4.0F), 0, 1);  // up has no LoRA
  EXPECT_TRUE(std::isinf(judge_stages(example.args(), &lora, stages).gate_up));
}

TEST(MoeLayer, JudgeFindsAWrongNumberInEveryStage) {
  const TwoExperts example;
  const MoeLora lora = example.lora();
  const MoeArgs args = example.args();
  const auto with = [&](Tensor MoeStages::*stage) {
    MoeStages stages = moe_layer(args, &lora);
    (stages.*stage).set((stages.*stage).get(0, 0) + 1, 0, 0);
    return judge_stages(args, &lora, stages);
  };
  EXPECT_GT(with(&MoeStages::input).input, 1);
  EXPECT_GT(with(&MoeStages::gate_up_base).gate_up_base, 1);
  EXPECT_GT(with(&MoeStages::gate_up).gate_up, 1);
  EXPECT_GT(with(&MoeStages::activated).activated, 1);
  EXPECT_GT(with(&MoeStages::down_base).down_base, 1);
  EXPECT_GT(with(&MoeStages::down).down, 1);
  EXPECT_GT(with(&MoeStages::y).y, 1);
}

TEST(MoeLayer, Errors) {
  const TwoExperts good;
  const auto refuses = [](auto change) {
    TwoExperts example;
    change(example);
    const MoeLora lora = example.lora();
    try {
      moe_layer(example.args(), &lora);
    } catch (const InputError&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refuses([](TwoExperts&) {}));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.experts = {1, 1}; }));  // repeated
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.experts = {0, 2}; }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.experts = {0, -1}; }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.expert_map = {0, 2}; }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.experts_per_token = 0; }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.experts = {0}; }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.weights = {1}; }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.slots = {1}; }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.slots = {0, 0}; }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.enabled = {}; }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.ranks[0] = {2, 0}; }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.ranks[2] = {1}; }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.scalings = {1, float(kNan)}; }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.a[0] = Tensor(Dtype::f16, {1, 2, 1, 1}); }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.a[0] = Tensor(Dtype::f32, {1, 2, 1, 2}); }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.b[2] = Tensor(Dtype::f32, {1, 2, 2, 1}); }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.b[1] = Tensor(Dtype::f32, {1, 1, 1, 1}); }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.w2 = Tensor(Dtype::f32, {2, 2, 1}); }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.w13 = Tensor(Dtype::f32, {2, 3, 1}); }));
  EXPECT_TRUE(refuses([](TwoExperts& e) { e.x = Tensor(Dtype::f32, {1, 2}); }));
  const MoeLora lora = good.lora();
  const std::vector<ExpertTile> unknown{{0, 2, {0}}}, no_row{{0, 0, {2}}};
  Tensor y(Dtype::f32, {2, 2});
  const ExpertLoraArgs args{.x = good.x.view(),
                            .rows = good.args().rows,
                            .adapters = lora.adapters,
                            .slices = lora.w13,
                            .router_weights = {},
                            .y = y.view()};
  EXPECT_THROW(expert_lora(args, unknown), InputError);
  EXPECT_THROW(expert_lora(args, no_row), InputError);
}

}  // namespace
}  // namespace loratory::reference
