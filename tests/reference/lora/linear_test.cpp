// Worked examples of LoRA on linear layers: A.1, rounding [1.17], writes [1.6], scale
// [1.10]-[1.14].
#include "reference/lora/linear.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "reference/base/input_error.hpp"
#include "reference/lora/definition.hpp"
#include "reference/lora/oracle.hpp"
#include "reference/lora/scaling.hpp"
#include "tests/reference/tensors.hpp"

extern "C" void omp_set_num_threads(int);

namespace loratory::reference {
namespace {

using testing::ElementsAre;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A.1: what lies beyond the ranks is NaN.
struct WorkedExample {
  explicit WorkedExample(Dtype dtype)
      : x(tensor(dtype, {3, 2}, {1, 2, 3, 4, -1, 1})),
        y(x),
        a(tensor(dtype, {2, 2, 2}, {1, 1, kNan, kNan, 1, 0, 0, 2})),
        b(tensor(dtype, {2, 2, 2}, {1, kNan, 2, kNan, 1, 1, 0, -1})) {}

  LinearArgs args() {
    return {.x = x.view(),
            .slots = slots,
            .slices = {{a.view(), b.view(), ranks, scalings, std::nullopt}},
            .y = y.view()};
  }

  Tensor x, y, a, b;
  std::vector<int32_t> slots{0, -1, 1}, ranks{1, 2};
  std::vector<float> scalings{0.5, 2};
};

// [1.1] A.1 in every preset.
TEST(LoraLinear, WorkedExample) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    for (const NumericMode& mode : {kDefaultMode, kVllmMode, kSglangMode, kTokenSpeedMode}) {
      WorkedExample e(dtype);
      LinearArgs args = e.args();
      args.mode = mode;
      lora_linear(args);
      EXPECT_THAT(values(e.y), ElementsAre(2.5, 5, 3, 4, 1, -3)) << name(dtype);
    }
  }
}

// [1.6] P24
TEST(LoraLinear, WithoutAddInputsTheOldYIsNotReadAndBaseRowsNotWritten) {
  WorkedExample e(Dtype::f32);
  e.y = filled(Dtype::f32, {3, 2}, kNan);
  const Tensor before = e.y;
  LinearArgs args = e.args();
  args.add_inputs = false;
  lora_linear(args);
  EXPECT_EQ(e.y.get(0, 0), 1.5);
  EXPECT_EQ(e.y.get(0, 1), 3);
  EXPECT_EQ(e.y.get(2, 0), 2);
  EXPECT_EQ(e.y.get(2, 1), -4);
  EXPECT_TRUE(
      std::equal(before.bytes().begin() + 8, before.bytes().begin() + 16, e.y.bytes().begin() + 8));
}

// [1.17] base = 1, d = 2^-8·(1 + 2^-10): h = 2^-8 + 2^-18 comes from x·A in two terms.
TEST(LoraLinear, OneAndTwoRoundingsDiffer) {
  for (const SumMode sum : {SumMode::one_round, SumMode::two_round}) {
    Tensor x = tensor(Dtype::bf16, {1, 2}, {0x1p-8, 0x1p-18});
    Tensor a = filled(Dtype::bf16, {1, 1, 2}, 1), b = filled(Dtype::bf16, {1, 1, 1}, 1);
    Tensor y = filled(Dtype::bf16, {1, 1}, 1);
    const std::vector<int32_t> slots{0}, ranks{1};
    const std::vector<float> scalings{1};
    lora_linear({.x = x.view(),
                 .slots = slots,
                 .slices = {{a.view(), b.view(), ranks, scalings, std::nullopt}},
                 .mode = {.sum = sum},
                 .y = y.view()});
    EXPECT_EQ(y.get(0, 0), sum == SumMode::one_round ? 1.0078125 : 1.0);
  }
}

// expand of one number: y = 0 + scaling·h·B, with y of f32.
double one_product(double h, double b, float scaling, NumericMode mode, Dtype weight) {
  Tensor h_buffer = tensor(Dtype::f32, {1, 1, 1}, {h}), b_buffer = tensor(weight, {1, 1, 1}, {b});
  Tensor y(Dtype::f32, {1, 1});
  const std::vector<int32_t> slots{0}, ranks{1};
  const std::vector<float> scalings{scaling};
  expand({.h = h_buffer.view(),
          .slots = slots,
          .slices = {{b_buffer.view(), ranks, scalings}},
          .mode = mode,
          .y = y.view()});
  return y.get(0, 0);
}

// [1.13] [1.17]
TEST(Expand, EveryModeRoundsWhereItSays) {
  const double h = 1 + 0x1p-8 + 0x1p-12;  // needs 13 bits; bf16 keeps 1 + 2^-7
  using H = IntermediateMode;
  EXPECT_EQ(one_product(h, 1, 1, {H::fp32}, Dtype::bf16), h);
  EXPECT_EQ(one_product(h, 1, 1, {H::cast_to_weight}, Dtype::bf16), 1 + 0x1p-7);
  EXPECT_EQ(one_product(h, 1, 1, {H::split2}, Dtype::bf16), h) << "hi + lo hold 17 bits";
  const double h18 = 1 + 0x1p-8 + 0x1p-12 + 0x1p-18;
  EXPECT_EQ(one_product(h18, 1, 1, {H::split2}, Dtype::bf16), 1 + 0x1p-8 + 0x1p-12);
  const double b = 1 + 0x1p-7;
  const NumericMode folded{.scale = ScaleMode::folded_b};
  EXPECT_EQ(one_product(1, b, 1.5F, {}, Dtype::bf16), 1.5 * b);
  EXPECT_EQ(one_product(1, b, 1.5F, folded, Dtype::bf16), 1.5 + 0x1p-6) << "a tie, to even";
  EXPECT_EQ(one_product(1, 0x1p-133, 0.5F, folded, Dtype::bf16), 0) << "[1.13] underflow";
  EXPECT_EQ(one_product(1, 0x1p-133, 0.5F, {}, Dtype::bf16), 0x1p-134);
  const NumericMode vllm_sum{H::cast_to_weight, SumMode::two_round};
  EXPECT_EQ(one_product(b, b, 1, vllm_sum, Dtype::bf16), 1 + 0x1p-6) << "delta in B's dtype";
}

// [1.17] By hand with h = 1 + 2^-9, which bf16 rounds to 1, and B = 1 + 2^-7.
TEST(LoraLinear, PresetsRoundAsTheirEngines) {
  using H = IntermediateMode;
  EXPECT_EQ(kDefaultMode, (NumericMode{H::fp32, SumMode::one_round, ScaleMode::accumulator}));
  EXPECT_EQ(kSglangMode, (NumericMode{H::store_as_x, SumMode::two_round, ScaleMode::accumulator}));
  EXPECT_EQ(kTokenSpeedMode, kSglangMode);
  EXPECT_EQ(kVllmMode, (NumericMode{H::cast_to_weight, SumMode::two_round, ScaleMode::folded_b}));
  const auto delta = [](NumericMode mode) {
    Tensor x = tensor(Dtype::bf16, {1, 2}, {1, 0x1p-9}), a = filled(Dtype::bf16, {1, 1, 2}, 1);
    Tensor b = filled(Dtype::bf16, {1, 1, 1}, 1 + 0x1p-7), y(Dtype::f32, {1, 1});
    const std::vector<int32_t> slots{0}, ranks{1};
    const std::vector<float> scalings{1.5F};
    lora_linear({.x = x.view(),
                 .slots = slots,
                 .slices = {{a.view(), b.view(), ranks, scalings, std::nullopt}},
                 .mode = mode,
                 .y = y.view()});
    return y.get(0, 0);
  };
  EXPECT_EQ(delta(kDefaultMode), 1.5 * (1 + 0x1p-9) * (1 + 0x1p-7));
  EXPECT_EQ(delta(kSglangMode), 1.5 * (1 + 0x1p-7));
  EXPECT_EQ(delta(kVllmMode), 1.5 + 0x1p-6) << "1.5·B is a tie";
}

// [1.17] How often a second rounding shows: about 0.3 % of these pairs, by one bit.
TEST(LoraLinear, TwoRoundingsSeldomDiffer) {
  std::mt19937_64 engine(17);
  const auto between = [&](double low, double high) {
    return low + (high - low) * double(engine() >> 11) * 0x1p-53;
  };
  int num_different = 0;
  for (int i = 0; i < 100000; ++i) {
    const auto base = float(round_to(Dtype::bf16, between(0.5, 2)));
    const auto d = float(between(1e-3, 1e-2));
    const double one = round_to(Dtype::bf16, base + d);
    const double two = round_to(Dtype::bf16, base + float(round_to(Dtype::bf16, d)));
    if (one == two) continue;
    ++num_different;
    EXPECT_LE(std::fabs(one - two), 0x1p-6);
  }
  EXPECT_GT(num_different, 200);
  EXPECT_LT(num_different, 400);
}

// [1.14] P17: bf16 keeps 8 bits, scaling has 13 here; y keeps the dtype it has.
TEST(Expand, ScalingIsNotRoundedToTheDtypeOfTheWeights) {
  const float scaling = 1 + 0x1p-12F;
  EXPECT_EQ(one_product(1, 1, scaling, {}, Dtype::bf16), scaling);
  EXPECT_EQ(one_product(3, 1, scaling, {.sum = SumMode::two_round}, Dtype::bf16), 3 * scaling);
  EXPECT_EQ(one_product(1, 1, scaling, {.scale = ScaleMode::folded_b}, Dtype::bf16), 1);
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    WorkedExample e(dtype);
    e.scalings[0] = scaling;
    lora_linear(e.args());
    EXPECT_EQ(e.y.get(0, 1), round_to(dtype, 2 + 6 * scaling)) << name(dtype);
    EXPECT_EQ(e.y.bytes().size(), 6 * size_bytes(dtype));
  }
}

// [1.15] q times an adapter is another adapter: the same weights in another slot. q = 0 is base.
TEST(LoraLinear, AMultipleOfAnAdapterIsAnotherSlot) {
  Tensor x = tensor(Dtype::f32, {4, 2}, {1, 2, 1, 2, 1, 2, 1, 2});
  Tensor a = filled(Dtype::f32, {3, 1, 2}, 1), b = filled(Dtype::f32, {3, 1, 1}, 2);
  Tensor y = tensor(Dtype::f32, {4, 1}, {10, 10, 10, 10});
  const std::vector<int32_t> slots{0, 1, 2, -1}, ranks{1, 1, 1};
  const std::vector<float> scalings{0.5F, 0.5F * 3, 0.5F * 0};
  lora_linear({.x = x.view(),
               .slots = slots,
               .slices = {{a.view(), b.view(), ranks, scalings, std::nullopt}},
               .y = y.view()});
  EXPECT_THAT(values(y), ElementsAre(13, 19, 10, 10));
}

// [1.2]-[1.5] [1.7]
TEST(Expand, RaggedSlicesWriteTheirOwnColumns) {
  const std::vector<int32_t> slots{0, -1, 1};
  const std::vector<int32_t> ranks[] = {{1, 1}, {0, 1}, {1, 0}};  // slot 0 lacks k, slot 1 lacks v
  const std::vector<float> scalings{1, 1};
  Tensor h = tensor(Dtype::f32, {3, 3, 1}, {1, kNan, 2, kNan, kNan, 3, 4, kNan, kNan});
  Tensor q = filled(Dtype::f32, {2, 3, 1}, 1), kv = filled(Dtype::f32, {2, 1, 1}, 1);
  Tensor y = filled(Dtype::f32, {3, 7}, -0.0);
  expand({.h = h.view(),
          .slots = slots,
          .slices = {{q.view(), ranks[0], scalings},
                     {kv.view(), ranks[1], scalings},
                     {kv.view(), ranks[2], scalings}},
          .offset_start = 1,
          .y = y.view()});
  EXPECT_THAT(values(y), ElementsAre(0, 1, 1, 1, 0, 4, 0,  //
                                     0, 0, 0, 0, 0, 0, 0,  //
                                     0, 2, 2, 2, 3, 0, 0));
  for (const int column : {0, 4, 6}) EXPECT_TRUE(std::signbit(y.get(0, column))) << column;
  for (int column = 0; column < 7; ++column) EXPECT_TRUE(std::signbit(y.get(1, column)));
}

// [1.7] [1.8]
TEST(Shrink, WritesCoveredRowsUpToTheirRank) {
  WorkedExample e(Dtype::f32);
  Tensor h = filled(Dtype::f32, {1, 3, 2}, 77);
  shrink({.x = e.x.view(), .slots = e.slots, .slices = {{e.a.view(), e.ranks}}, .h = h.view()});
  EXPECT_THAT(values(h), ElementsAre(3, 77, 77, 77, -1, 2));
}

// [1.9]
TEST(LoraLinear, BiasComesFirstAndOnlyToCoveredElements) {
  WorkedExample e(Dtype::f32);
  Tensor bias = tensor(Dtype::f32, {2, 2}, {10, 20, 30, 40});
  LinearArgs args = e.args();
  args.slices[0].bias = bias.view();
  lora_linear(args);
  EXPECT_THAT(values(e.y), ElementsAre(12.5, 25, 3, 4, 31, 37));
  args.add_inputs = false;
  EXPECT_THROW(lora_linear(args), InputError);
}

// [1.10] [1.12]
TEST(LoraScaling, AlphaOverRank) {
  EXPECT_EQ(lora_scaling(16, 8, false), 2.0F);
  EXPECT_EQ(lora_scaling(16, 64, true), 2.0F);
  EXPECT_EQ(lora_scaling(1, 3, false), float(1.0 / 3));
  EXPECT_EQ(lora_scaling(0, 3, true), 0.0F);
  EXPECT_EQ(lora_scaling(-1.5, 3, false), -0.5F);
  EXPECT_THROW(lora_scaling(kNan, 3, false), InputError);
  EXPECT_THROW(lora_scaling(1e300, 3, false), InputError);
  for (const int rank : {0, -1}) {
    for (const bool use_rslora : {false, true}) {
      try {
        lora_scaling(1, rank, use_rslora);
        ADD_FAILURE() << "rank " << rank;
      } catch (const InputError& problem) {
        EXPECT_STREQ(problem.what(), "r: is less than 1");
      }
    }
  }
}

// [1.28] [1.29]
TEST(LoraEmbedding, GathersAColumnOfA) {
  // V = 3, r = 2, H = 2; ids at both ends of the vocabulary.
  Tensor a = tensor(Dtype::bf16, {1, 2, 3}, {1, 2, 3, 4, 5, 6});
  Tensor b = tensor(Dtype::bf16, {1, 2, 2}, {1, 0, 0, 1});
  const std::vector<int32_t> ranks{2};
  const std::vector<float> scalings{2};
  Tensor y = filled(Dtype::bf16, {3, 2}, 1);
  std::vector<int64_t> ids{0, 2, 1};
  const std::vector<int32_t> slots{0, 0, -1};
  EmbeddingArgs args{.token_ids = ids,
                     .slots = slots,
                     .slice = {a.view(), b.view(), ranks, scalings, std::nullopt},
                     .y = y.view()};
  lora_embedding(args);
  EXPECT_THAT(values(y), ElementsAre(3, 9, 7, 13, 1, 1));
  const Oracle oracle = embedding_oracle(args);
  EXPECT_EQ(oracle.at(1, 0)->delta, 6);
  // The same h, given.
  Tensor h = tensor(Dtype::bf16, {1, 3, 2}, {1, 4, 3, 6, kNan, kNan});
  const Oracle given = expand_oracle(
      {.h = h.view(), .slots = slots, .slices = {{b.view(), ranks, scalings}}, .y = y.view()});
  for (int64_t i = 0; i < 6; ++i) {
    const auto& facts = oracle.elements[size_t(i)];
    const auto& of_given = given.elements[size_t(i)];
    ASSERT_EQ(facts.has_value(), of_given.has_value());
    if (!facts) continue;
    EXPECT_EQ(facts->result(), of_given->result());
    EXPECT_EQ(facts->sum_b_h, of_given->sum_b_h);
  }
  for (const int64_t bad : {-1, 3}) {
    ids[2] = bad;
    EXPECT_THROW(lora_embedding(args), InputError) << "of a base token too";
  }
}

// A layer of real size with K of no block's multiple; 40 tokens of 2 adapters of ranks 16 and 5.
Tensor wide_layer(Dtype dtype, int64_t num_in, double* worst) {
  std::mt19937_64 engine(7);
  const auto random = [&](Extents shape) {
    Tensor t(dtype, shape);
    for (size_t i = 0; i < t.bytes().size(); i += size_bytes(dtype)) {
      store(dtype, t.bytes().data() + i, double(engine() >> 12) * 0x1p-52 - 0.5);
    }
    return t;
  };
  Tensor x = random({40, num_in}), y = random({40, 96});
  Tensor a = random({2, 16, num_in}), b = random({2, 96, 16});
  std::vector<int32_t> slots, ranks{16, 5};
  for (int t = 0; t < 40; ++t) slots.push_back(t % 3 - 1);
  const std::vector<float> scalings{0.3F, 2};
  const LinearArgs args{.x = x.view(),
                        .slots = slots,
                        .slices = {{a.view(), b.view(), ranks, scalings, std::nullopt}},
                        .y = y.view()};
  const Oracle oracle = linear_oracle(args);
  lora_linear(args);
  for (int64_t t = 0; t < 40; ++t) {
    for (int64_t n = 0; n < 96 && oracle.at(t, n); ++n) {
      const double ratio = error_over_bound(y.get(t, n), *oracle.at(t, n), arithmetic_of(args));
      *worst = std::max(*worst, ratio);
    }
  }
  return y;
}

// [1.19] [1.20]
// P5 on K = 17, 2368, 3456, 11008/P; and the bits of one thread with four.
TEST(LoraLinear, AwkwardSizesLieWithinTheBoundForAnyNumberOfThreads) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    for (const int64_t num_in : {17, 1376, 2368, 3456}) {
      double worst = 0;
      omp_set_num_threads(1);
      const Tensor one = wide_layer(dtype, num_in, &worst);
      omp_set_num_threads(4);
      const Tensor four = wide_layer(dtype, num_in, &worst);
      EXPECT_EQ(one.bytes(), four.bytes()) << name(dtype) << ' ' << num_in;
      EXPECT_GT(worst, 0);
      EXPECT_LE(worst, 1) << name(dtype) << ' ' << num_in;
    }
  }
}

// More rows of a slot and more columns than are worked on at a time.
TEST(LoraLinear, LongSegmentsAndWideSlicesAreTheDefinition) {
  for (const bool add_inputs : {true, false}) {
    std::mt19937_64 engine(3);
    const auto random = [&](Extents shape) {
      Tensor t(Dtype::f32, shape);
      for (size_t i = 0; i < t.bytes().size(); i += 4) {
        store(Dtype::f32, t.bytes().data() + i, double(engine() >> 12) * 0x1p-52 - 0.5);
      }
      return t;
    };
    const Tensor x = random({200, 3}), a = random({2, 2, 3}), b = random({2, 600, 2});
    Tensor y = random({200, 601});
    std::vector<int32_t> slots, ranks{2, 1};
    for (int t = 0; t < 200; ++t) slots.push_back(t < 150 ? 0 : t < 160 ? -1 : 1);
    const std::vector<float> scalings{2, 0.5F};
    Tensor expected = y;
    LinearArgs args{.x = x.view(),
                    .slots = slots,
                    .slices = {{a.view(), b.view(), ranks, scalings, std::nullopt}},
                    .offset_start = 1,
                    .add_inputs = add_inputs,
                    .y = y.view()};
    lora_linear(args);
    args.y = expected.view();
    lora_linear_definition(args);
    EXPECT_EQ(y.bytes(), expected.bytes());
  }
}

// What the bounds are told of how a layer is computed.
TEST(Arithmetic, OfArguments) {
  const Tensor x(Dtype::f16, {0, 4});
  Tensor y(Dtype::f32, {0, 4});
  const NumericMode split{.h = IntermediateMode::split2, .sum = SumMode::two_round};
  const Arithmetic bare = arithmetic_of(
      LinearArgs{.x = x.view(), .slots = {}, .slices = {}, .mode = split, .y = y.view()});
  EXPECT_EQ(bare.mode, split);
  EXPECT_EQ(bare.weight, Dtype::f16);
  EXPECT_EQ(bare.out, Dtype::f32);
  // A column of A is one number of the weights' dtype: in two parts it has no second one.
  EmbeddingArgs embedding{.token_ids = {}, .slots = {}, .slice = {}, .mode = split, .y = y.view()};
  embedding.slice.b.dtype = Dtype::bf16;
  EXPECT_EQ(arithmetic_of(embedding).mode.h, IntermediateMode::fp32);
  EXPECT_EQ(arithmetic_of(embedding).mode.sum, SumMode::two_round);
  EXPECT_EQ(arithmetic_of(embedding).weight, Dtype::bf16);
  embedding.mode.h = IntermediateMode::cast_to_weight;
  EXPECT_EQ(arithmetic_of(embedding).mode.h, IntermediateMode::cast_to_weight);
}

// [1.22] [2.9]
// Each argument that breaks a rule is named.
TEST(LoraLinear, BadArgumentsAreNamed) {
  const auto error = [](auto spoil) -> std::string {
    WorkedExample e(Dtype::bf16);
    LinearArgs args = e.args();
    spoil(e, args);
    try {
      lora_linear(args);
    } catch (const InputError& problem) {
      return problem.what();
    }
    return "no error";
  };
  using testing::HasSubstr;
  EXPECT_THAT(error([](auto& e, auto&) { e.slots[0] = 2; }), HasSubstr("slots[0]"));
  EXPECT_THAT(error([](auto& e, auto&) { e.ranks[1] = 3; }), HasSubstr("ranks[1]"));
  EXPECT_THAT(error([](auto& e, auto&) { e.scalings[1] = float(INFINITY); }),
              HasSubstr("scalings[1]: is not finite"));
  EXPECT_THAT(error([](auto&, auto& args) { args.offset_start = 1; }),
              HasSubstr("y: has 2 columns"));
  EXPECT_THAT(error([](auto&, auto& args) { args.offset_start = -1; }), HasSubstr("negative"));
  EXPECT_THAT(error([](auto&, auto& args) { args.x.dtype = Dtype::f16; }),
              HasSubstr("slices[0].a: has dtype bf16, x has f16"));
  EXPECT_THAT(error([](auto&, auto& args) { args.slices[0].b.dtype = Dtype::f16; }),
              HasSubstr("slices[0].b: has dtype f16, a has bf16"));
  EXPECT_THAT(error([](auto&, auto& args) { args.y.dtype = Dtype::f8_e5m2; }),
              HasSubstr("no scale tensors"));
  EXPECT_THAT(error([](auto&, auto& args) {
                args.x.shape = {3, 1};
              }),
              HasSubstr("has shape [2, 2, 2]; expected [2, any, 1]"));
}

}  // namespace
}  // namespace loratory::reference
