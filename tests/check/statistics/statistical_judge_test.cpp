// The statistical lane from both sides: right implementations pass, faults do not.
#include "check/statistics/statistical_judge.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <string>

#include "check/kernels/reference_call.hpp"
#include "fuzz/support/judged_emulation.hpp"
#include "fuzz/support/layer_case.hpp"
#include "fuzz/support/moe_case.hpp"
#include "reference/lora/oracle.hpp"
#include "reference/moe/oracle.hpp"
#include "reference/quantized/oracle.hpp"
#include "reference/quantized/stage_model.hpp"

namespace loratory::check {
namespace {

using namespace reference;

Arithmetic arithmetic(IntermediateMode h, SumMode sum, Dtype weight, Dtype out, double unit) {
  return {.mode = {.h = h, .sum = sum}, .h = weight, .weight = weight, .out = out, .unit = unit};
}

// ---- the errors behind a rounded y ----

// |excess| <= |error|, with its sign, and enough of it gives the same y.
TEST(ResultRounding, ExcessIsTheLeastErrorThatGivesY) {
  std::mt19937_64 engine(1);
  std::normal_distribution<double> normal;
  int num_seen = 0;
  for (const Dtype out : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (const SumMode sum : {SumMode::one_round, SumMode::two_round}) {
      const ResultRounding rounding(
          arithmetic(IntermediateMode::fp32, sum, Dtype::bf16, out, 0x1p-24));
      for (int i = 0; i < 2000; ++i) {
        const DeltaModel model{.base = round_to(out, normal(engine)), .delta = normal(engine) / 4};
        const double error = normal(engine) * std::exp2(-double(engine() % 30));
        const double got = rounding(model.base, model.delta + error);
        const double step = std::fabs(error) / 1024, excess = rounding.excess(model, got, step);
        EXPECT_LE(std::fabs(excess), std::fabs(error));
        EXPECT_GE(excess * error, 0);
        if (excess == 0) continue;
        ++num_seen;
        const double enough = excess + std::copysign(2 * step, excess);
        EXPECT_GE((rounding(model.base, model.delta + enough) - got) * error, 0);
      }
    }
  }
  EXPECT_GT(num_seen, 4000);
}

TEST(ResultRounding, NotANumberIsInfinitelyFar) {
  const ResultRounding rounding(Arithmetic{.out = Dtype::bf16});
  EXPECT_EQ(rounding.excess({.base = 1}, NAN, 0x1p-30), INFINITY);
  EXPECT_EQ(rounding.excess({.base = 1}, -INFINITY, 0x1p-30), INFINITY);
  EXPECT_EQ(rounding.excess({.base = 1}, 1, 0x1p-30), 0);
}

// ---- the thresholds ----

// Errors drawn from the model itself: normal, of one row all the same or all independent.
struct Drawn {
  int64_t num_rows, num_columns;
  bool same_in_a_row;
};

double share_flagged(const Drawn& drawn, double level, double deviations, double shift) {
  std::mt19937_64 engine(7);
  std::normal_distribution<double> normal;
  const int num_cases = 4000;
  int num_flagged = 0;
  for (int i = 0; i < num_cases; ++i) {
    StatisticalJudge judge({}, level);
    for (int64_t t = 0; t < drawn.num_rows; ++t) {
      double error = normal(engine);
      for (int64_t n = 0; n < drawn.num_columns; ++n) {
        if (!drawn.same_in_a_row) error = normal(engine);
        const DeltaModel model{.delta = 1 + 0.25 * normal(engine), .deviation = 0x1p-12};
        judge.add(t, model, float(model.delta + (shift + deviations * error) * 0x1p-12));
      }
    }
    if (!judge.verdict().ok) ++num_flagged;
  }
  return double(num_flagged) / num_cases;
}

// As many as the level says at most, whatever depends on what; twice the deviation, or as much
// shift, is noticed at the same level.
TEST(StatisticalJudge, LevelAndPowerOnNormalErrors) {
  const double level = 0.05, noise = 3 * std::sqrt(0.05 / 4000);
  for (const bool same : {false, true}) {
    EXPECT_LE(share_flagged({1, 16, same}, level, 1, 0), level + noise) << same;
    EXPECT_LE(share_flagged({12, 8, same}, level, 1, 0), level + noise) << same;
    EXPECT_GT(share_flagged({12, 8, same}, level, 2.5, 0), 0.9) << same;
    EXPECT_GT(share_flagged({12, 8, same}, level, 1, 3), 0.9) << same;
  }
}

TEST(StatisticalJudge, OneWrongElementOfManyIsTheTail) {
  StatisticalJudge judge({}, 1e-9);
  for (int64_t n = 0; n < 10000; ++n) {
    const DeltaModel model{.delta = 1, .deviation = 0x1p-12};
    judge.add(n / 100, model, n == 4321 ? 1 + 9 * 0x1p-12 : 1, n / 100, n % 100);
  }
  const StatisticalVerdict verdict = judge.verdict();
  EXPECT_FALSE(verdict.ok);
  EXPECT_EQ(verdict.worst.name, "tail");
  EXPECT_EQ(verdict.row, 43);
  EXPECT_EQ(verdict.column, 21);
  EXPECT_EQ(
      verdict.in_words(),
      "tail 8.99 deviations, beyond 7.97; 10000 elements, 10000 informative, 100 rows, largest "
      "error in row 43 column 21");
}

TEST(StatisticalJudge, NothingToJudgePasses) {
  const StatisticalVerdict verdict = StatisticalJudge(Arithmetic{}).verdict();
  EXPECT_TRUE(verdict.ok);
  EXPECT_EQ(verdict.num_elements, 0);
}

TEST(StatisticalJudge, NotANumberFailsAndOverflowIsLeftToTheBound) {
  StatisticalJudge judge({.out = Dtype::f16});
  judge.add(0, {.base = 65000, .delta = 600, .deviation = 1}, INFINITY);
  EXPECT_TRUE(judge.verdict().ok);
  EXPECT_EQ(judge.verdict().num_elements, 0);
  judge.add(0, {.base = 1, .delta = 1, .deviation = 1}, NAN);
  EXPECT_FALSE(judge.verdict().ok);
}

// ---- models of whole layers ----

// In exact arithmetic the model's delta is the oracle's; y of the reference passes in every mode.
TEST(DeltaModels, OfLayersAndOfTheReference) {
  int64_t num_elements = 0;
  for (uint64_t seed = 0; seed < 16; ++seed) {
    LayerCase c = layer_case(seed, {.num_products = 1 << 20, .weight_bytes = 1 << 20});
    c.mode = {IntermediateMode(seed % 4), SumMode(seed / 4 % 2), ScaleMode(seed / 8 % 2)};
    const LayerData data(c);
    LayerBatch batch = data.batch;
    const LinearArgs args = data.args(batch);
    const Oracle oracle = linear_oracle(args);
    const DeltaModels plain = delta_models(args, {.unit = 0x1p-24});
    ASSERT_EQ(plain.elements.size(), oracle.elements.size());
    for (size_t i = 0; i < plain.elements.size(); ++i) {
      ASSERT_EQ(plain.elements[i].has_value(), oracle.elements[i].has_value());
      if (!oracle.elements[i]) continue;
      EXPECT_NEAR(plain.elements[i]->delta, oracle.elements[i]->delta,
                  0x1p-40 * oracle.elements[i]->sum_b_xa * std::fabs(oracle.elements[i]->scaling));
      EXPECT_EQ(plain.elements[i]->base, oracle.elements[i]->base);
    }
    const Arithmetic a = arithmetic_of(args);
    const DeltaModels models = delta_models(args, a);
    const StatisticalVerdict verdict = judge_statistics(models, a, data.run(batch).view());
    EXPECT_TRUE(verdict.ok) << describe(c) << "\n" << verdict.in_words();
    num_elements += verdict.num_elements;
  }
  EXPECT_GT(num_elements, 10000);
}

check::CaseData without_last_column(const check::CaseData& data) {
  check::CaseData out = data;
  for (int64_t t = 0; t < out.step.num_tokens(); ++t) {
    if (out.step.slots[size_t(t)] >= 0) out.step.x->set(0, t, out.shape.num_in - 1);
  }
  return out;
}

// h of these is a random number, and between 8-bit stages one of few. The reference passes; K short
// of one column, where h keeps its rank and its factor, does not.
TEST(DeltaModels, OfLinearLayersOf8BitWeights) {
  for (const char* const label :
       {"linear.K2048.N64+8.r16,8/0.n12.zipf.f8_e4m3fn.wchannel.seed1",
        "linear.K2048.N64+8.r16,8/0.n12.zipf.f8_e5m2.xf32.yf32.wblock.seed2",
        "linear.K2048.N64+8.r16,8/0.n12.zipf.f8_e4m3fn.xf8_e5m2.yf32.wtensor.atoken.seed3",
        "linear.K2048.N64+8.r16,8/0.n12.zipf.i8.xi8.wchannel.atensor.seed4",
        "linear.K2048.N64+8.r16,8/0.n12.zipf.f8_e4m3fn.xf8_e4m3fn.wblock.ablock.noadd.seed5"}) {
    const check::CaseData data(check::case_named(label));
    const Arithmetic arithmetic{.out = data.shape.y};
    const check::InHostMemory placed(data, data.step);
    const QuantizedLinearArgs args = check::quantized_linear_args(placed.layer(), placed.call());
    const DeltaModels models = stage_models(args, arithmetic);
    const StageOracle oracle = linear_oracle(args, arithmetic);
    for (size_t i = 0; i < models.elements.size(); ++i) {
      ASSERT_EQ(models.elements[i].has_value(), oracle.elements[i].has_value()) << label;
      if (!oracle.elements[i]) continue;
      EXPECT_NEAR(models.elements[i]->delta, oracle.elements[i]->delta,
                  0x1p-40 * oracle.elements[i]->magnitude);
    }
    const auto judged = [&](const check::CaseData& of) {
      return judge_statistics(models, arithmetic, check::reference_output(of, of.step).view());
    };
    EXPECT_TRUE(judged(data).ok) << label << "\n" << judged(data).in_words();
    EXPECT_GT(judged(data).num_elements, 400) << label;
    EXPECT_FALSE(judged(without_last_column(data)).ok) << label;
  }
}

// Rows of the same numbers err alike: they are one group, and prove no more than one of them.
TEST(DeltaModels, EqualRowsOfOneSlotAreOneGroup) {
  const LayerData data({.seed = 3,
                        .num_tokens = 4,
                        .num_in = 24,
                        .num_out = {8},
                        .max_loras = 2,
                        .max_rank = 4,
                        .min_rank = 4,
                        .fill_all_slots = true});
  LayerBatch batch = data.make_batch({0, 1, 0, -1}, 5);
  for (int64_t k = 0; k < data.shape.num_in; ++k) {
    for (int64_t t = 0; t < 3; ++t) batch.x.set(0.5, t, k);
  }
  const DeltaModels models = delta_models(data.args(batch), {});
  EXPECT_EQ(models.groups, (std::vector<int64_t>{0, 1, 0, 3}));
}

// Shrink and expand on their own: the reference passes, sums that leave out the last term do not.
TEST(DeltaModels, OfShrinkAndExpandAlone) {
  const LayerData data({.seed = 8,
                        .num_tokens = 12,
                        .num_in = 4097,
                        .num_out = {40, 24},
                        .max_loras = 2,
                        .max_rank = 16,
                        .min_rank = 2,
                        .aligned = false});
  LayerBatch batch = data.batch;
  const LinearArgs args = data.args(batch);
  Tensor h(Dtype::f32, {2, 12, 16});
  ShrinkArgs shrinks{args.x, args.slots, {}, h.view()};
  ExpandArgs expands{.h = h.view(), .slots = args.slots, .slices = {}, .y = args.y};
  expands.mode = {.h = IntermediateMode::cast_to_weight, .sum = SumMode::two_round};
  for (const LoraSlice& slice : args.slices) {
    shrinks.slices.push_back({slice.a, slice.ranks});
    expands.slices.push_back({slice.b, slice.ranks, slice.scalings});
  }
  const Arithmetic of_h{.out = Dtype::f32};
  const DeltaModels models = delta_models(shrinks, of_h);
  ASSERT_EQ(models.groups.size(), 24);
  shrink(shrinks);
  const auto judge_h = [&] {
    StatisticalJudge judge(of_h);
    for (int64_t row = 0; row < 24; ++row) {
      for (int64_t j = 0; j < 16; ++j) {
        const auto& model = models.at(row, j);
        if (model) judge.add(models.groups[size_t(row)], *model, h.get(row / 12, row % 12, j));
      }
    }
    return judge.verdict();
  };
  EXPECT_TRUE(judge_h().ok) << judge_h().in_words();
  EXPECT_GT(judge_h().num_elements, 100);
  ShrinkArgs shorter = shrinks;
  shorter.x = shorter.x.part(1, 0, 4096);
  for (ShrinkSlice& slice : shorter.slices) slice.a = slice.a.part(2, 0, 4096);

  const Arithmetic of_y{.mode = expands.mode, .weight = args.x.dtype, .out = args.y.dtype};
  const DeltaModels y_models = delta_models(expands, of_y);
  expand(expands);
  const StatisticalVerdict verdict = judge_statistics(y_models, of_y, expands.y);
  EXPECT_TRUE(verdict.ok) << verdict.in_words();
  EXPECT_GT(verdict.num_elements, 200);

  shrink(shorter);
  EXPECT_FALSE(judge_h().ok);
}

TEST(DeltaModels, OfExperts) {
  int64_t num_elements = 0;
  for (int seed = 0; seed < 32; ++seed) {
    const MoeData data({.seed = uint64_t(seed),
                        .num_tokens = 9,
                        .hidden = 136,
                        .inner = 24,
                        .num_experts = 4,
                        .k = 2,
                        .max_loras = 3,
                        .max_rank = 8,
                        .dtype = seed / 16,
                        .mode = seed % 16},
                       MoeFill::reals);
    const MoeLora lora = data.lora();
    Tensor y(data.x.dtype(), {18, int64_t(lora.w13.size()) * 24});
    ExpertLoraArgs args = data.lora_args(lora.w13, data.x, y);
    if (seed % 3 == 0) args.router_weights = data.router_weights;
    const Arithmetic a = arithmetic_of(args);
    const DeltaModels models = expert_delta_models(args, a);
    expert_lora(args, single_row_tiles(args.rows, args.adapters));
    const StatisticalVerdict verdict = judge_statistics(models, a, y.view());
    EXPECT_TRUE(verdict.ok) << "mode " << seed % 16 << ": " << verdict.in_words();
    num_elements += verdict.num_elements;
  }
  EXPECT_GT(num_elements, 2000);
}

// ---- both sides, on emulated implementations ----

// Any order, tiling, split, dtype, mode and distribution: bench/results has the same of a million.
TEST(StatisticalJudge, RightImplementationsPass) {
  std::map<std::string, double> closest;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const EmulatedCase c = emulated_case(seed, 1 << 15);
    const SliceNumbers drawn = c.draw();
    const StatisticalVerdict verdict = judged(c, drawn, models_of(c, drawn), Fault::none);
    EXPECT_TRUE(verdict.ok) << describe(c) << "\n" << verdict.in_words();
    for (const StatisticalTest& t : verdict.tests) {
      closest[t.name] = std::max(closest[t.name], t.statistic / t.threshold);
    }
  }
  for (const auto& [test, share] : closest) {
    std::printf("%-17s %.3f of its threshold\n", test.c_str(), share);
    EXPECT_GT(share, 0.05) << test;
  }
}

// The first case that notices each fault, at the largest K that models have.
void expect_noticed(const Arithmetic& a, int64_t terms_per_step, std::vector<Fault> faults) {
  for (uint64_t seed = 0; seed < 20 && !faults.empty(); ++seed) {
    const EmulatedCase c{.seed = seed,
                         .num_tokens = 32,
                         .num_in = 28672,
                         .rank = 8,
                         .num_out = 64,
                         .arithmetic = a,
                         .recipe = {.terms_per_step = terms_per_step}};
    const SliceNumbers drawn = c.draw();
    const std::vector<DeltaModel> models = models_of(c, drawn);
    EXPECT_TRUE(judged(c, drawn, models, Fault::none).ok) << describe(c);
    std::erase_if(faults, [&](Fault fault) {
      const StatisticalVerdict verdict = judged(c, drawn, models, fault);
      if (!verdict.ok) {
        std::printf("%-24s case %d: %s\n", name(fault).data(), int(seed) + 1,
                    verdict.in_words().c_str());
      }
      return !verdict.ok;
    });
  }
  for (const Fault fault : faults) ADD_FAILURE() << name(fault) << " is not noticed in 20 cases";
}

TEST(StatisticalJudge, FaultsOfF32AreNoticedInTwentyCases) {
  expect_noticed(
      arithmetic(IntermediateMode::fp32, SumMode::one_round, Dtype::f32, Dtype::f32, 0x1p-24), 0,
      {Fault::tf32_operands, Fault::bf16_operands, Fault::h_in_bf16, Fault::dropped_64_columns,
       Fault::dropped_last_column, Fault::dropped_rank, Fault::scaling_in_bf16,
       Fault::fp16_accumulation, Fault::bf16_accumulation, Fault::split_summed_in_bf16,
       Fault::e4m3_operands});
}

TEST(StatisticalJudge, FaultsOfTensorCoresInBf16AreNoticedInTwentyCases) {
  expect_noticed(
      arithmetic(IntermediateMode::split2, SumMode::one_round, Dtype::bf16, Dtype::bf16, 0x1p-22),
      16,
      {Fault::delta_rounded_twice, Fault::h_in_bf16, Fault::dropped_64_columns,
       Fault::dropped_last_column, Fault::dropped_rank, Fault::scaling_in_bf16,
       Fault::fp16_accumulation, Fault::bf16_accumulation, Fault::split_summed_in_bf16,
       Fault::y_cut, Fault::e4m3_operands});
}

}  // namespace
}  // namespace loratory::check
