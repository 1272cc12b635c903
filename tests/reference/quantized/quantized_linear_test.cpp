// 8-bit weights by hand: what is read wrongly elsewhere, and every refusal.
#include "reference/quantized/quantized_linear.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "reference/base/input_error.hpp"
#include "reference/lora/linear.hpp"
#include "reference/quantized/oracle.hpp"

extern "C" void omp_set_num_threads(int);

namespace loratory::reference {
namespace {

constexpr Dtype kE4m3 = Dtype::f8_e4m3fn;
constexpr Dtype kE5m2 = Dtype::f8_e5m2;

Tensor filled(Dtype dtype, const Extents& shape, const std::function<double(int64_t)>& number) {
  Tensor t(dtype, shape);
  const auto size = int64_t(size_bytes(dtype));
  for (int64_t i = 0; i * size < int64_t(t.bytes().size()); ++i) {
    store(dtype, t.bytes().data() + i * size, number(i));
  }
  return t;
}

Tensor constant(Dtype dtype, const Extents& shape, double number) {
  return filled(dtype, shape, [=](int64_t) { return number; });
}

// 1, 2, 4, 8, ... so that any wrong factor shows.
Tensor powers(const Extents& shape) {
  return filled(Dtype::f32, shape, [](int64_t i) { return std::ldexp(1.0, int(i)); });
}

// One slot, rank and scaling 1 unless said otherwise; T tokens of slot 0.
struct Small {
  std::vector<int32_t> slots, ranks{1};
  std::vector<float> scalings{1};
  explicit Small(int num_tokens = 1) : slots(size_t(num_tokens), 0) {}
};

// [1.42]: the format belongs to the tensor. Byte 0x38 is 1.0 in e4m3 and 0.5 in e5m2, in one slice
// and in three, in A and in B.
TEST(QuantizedLinear, AFormatIsReadAsItself) {
  for (const std::vector<Dtype>& formats :
       {std::vector{kE5m2}, {kE4m3}, {kE5m2, kE5m2, kE5m2}, {kE4m3, kE5m2, kE4m3}}) {
    const Small s;
    const auto num_slices = int64_t(formats.size());
    std::vector<Tensor> a, b;
    for (const Dtype dtype : formats) {
      a.emplace_back(dtype, Extents{1, 1, 2});
      b.emplace_back(dtype, Extents{1, 1, 1});
      std::fill(a.back().bytes().begin(), a.back().bytes().end(), std::byte{0x38});
      std::fill(b.back().bytes().begin(), b.back().bytes().end(), std::byte{0x38});
    }
    const Tensor one = constant(Dtype::f32, {1}, 1), x = constant(Dtype::bf16, {1, 2}, 1);
    Tensor y(Dtype::f32, {1, num_slices});
    QuantizedLinearArgs args{.x = x.view(),
                             .x_scale = std::nullopt,
                             .slots = s.slots,
                             .slices = {},
                             .a_block = {},
                             .b_block = {},
                             .y = y.view()};
    for (size_t i = 0; i < formats.size(); ++i) {
      args.slices.push_back(
          {a[i].view(), one.view(), b[i].view(), one.view(), s.ranks, s.scalings});
    }
    lora_linear_quantized(args);
    for (int64_t i = 0; i < num_slices; ++i) {
      EXPECT_EQ(y.get(0, i), formats[size_t(i)] == kE4m3 ? 2.0 : 0.5);
    }
  }
}

// [1.43] [1.44] [1.48]: blocks of 2 x 4 of A [4, 10] make a grid of 2 x 3, indexed [n][k].
TEST(QuantizedLinear, BlocksOfAGridThatIsNotSquare) {
  const Small s;
  const std::vector<int32_t> ranks{4};
  const Tensor a = constant(kE4m3, {1, 4, 10}, 1), a_scale = powers({1, 2, 3});
  const Tensor x = constant(Dtype::f32, {1, 10}, 1);
  Tensor h(Dtype::f32, {1, 1, 4});
  shrink_quantized({.x = x.view(),
                    .x_scale = std::nullopt,
                    .slots = s.slots,
                    .slices = {{a.view(), a_scale.view(), ranks}},
                    .block = {2, 4},
                    .h = h.view()});
  const double upper = 4 * 1 + 4 * 2 + 2 * 4, lower = 4 * 8 + 4 * 16 + 2 * 32;
  EXPECT_EQ(h.get(0, 0, 0), upper);
  EXPECT_EQ(h.get(0, 0, 1), upper);
  EXPECT_EQ(h.get(0, 0, 2), lower);
  EXPECT_EQ(h.get(0, 0, 3), lower);
}

// [1.45]: each slice has its own factors of h: by tensor, by token, by block.
TEST(QuantizedLinear, ScalesOfHHaveASliceAxis) {
  const Small s(2);
  const std::vector<int32_t> ranks{4};
  const Tensor b = constant(kE4m3, {1, 1, 4}, 1), h = constant(kE4m3, {2, 2, 4}, 1);
  const Tensor one = constant(Dtype::f32, {1}, 1), ones = constant(Dtype::f32, {1, 1, 2}, 1);
  const auto run = [&](const Extents& shape, BlockSize block) {
    const Tensor h_scale = powers(shape);
    const ConstTensorView b_scale = block.k > 0 ? ones.view() : one.view();
    Tensor y(Dtype::f32, {2, 2});
    expand_quantized(
        {.h = h.view(),
         .h_scale = h_scale.view(),
         .slots = s.slots,
         .slices = {{b.view(), b_scale, ranks, s.scalings}, {b.view(), b_scale, ranks, s.scalings}},
         .block = block,
         .y = y.view()});
    return std::vector{y.get(0, 0), y.get(0, 1), y.get(1, 0), y.get(1, 1)};
  };
  EXPECT_EQ(run({2}, {}), (std::vector<double>{4, 8, 4, 8}));
  EXPECT_EQ(run({2, 2, 1}, {}), (std::vector<double>{4, 16, 8, 32}));
  EXPECT_EQ(run({2, 2, 2}, {1, 2}), (std::vector<double>{6, 96, 24, 384}));
}

// [1.45]: q, k, v of 4, 2 and 2 columns; slot 1 reads its own factors in each of them.
TEST(QuantizedLinear, RaggedSlicesOfTheSecondSlot) {
  const std::vector<int32_t> slots{1}, ranks{1, 1};
  const std::vector<float> scalings{1, 1};
  const Tensor h = constant(Dtype::f32, {3, 1, 1}, 1);
  const Tensor q = constant(kE5m2, {2, 4, 1}, 1), kv = constant(kE5m2, {2, 2, 1}, 1);
  const Tensor q_scale = powers({2, 4}), kv_scale = powers({2, 2});
  Tensor y(Dtype::f32, {1, 8});
  expand_quantized({.h = h.view(),
                    .h_scale = std::nullopt,
                    .slots = slots,
                    .slices = {{q.view(), q_scale.view(), ranks, scalings},
                               {kv.view(), kv_scale.view(), ranks, scalings},
                               {kv.view(), kv_scale.view(), ranks, scalings}},
                    .block = {},
                    .y = y.view()});
  const double expected[] = {16, 32, 64, 128, 4, 8, 4, 8};
  for (int64_t n = 0; n < 8; ++n) EXPECT_EQ(y.get(0, n), expected[n]) << n;
}

// [1.46] [1.13]: (acc · factor of h) · factor of B, then · scaling; other orders round differently.
TEST(QuantizedLinear, FactorsMultiplyInTheirOrder) {
  const float alpha = 0.3F, beta = 0.7F, scaling = 0.9F;
  const float expected = ((15.0F * alpha) * beta) * scaling;
  EXPECT_NE(expected, ((15.0F * beta) * alpha) * scaling);
  EXPECT_NE(expected, (15.0F * (alpha * beta)) * scaling);
  EXPECT_NE(expected, ((15.0F * scaling) * alpha) * beta);
  EXPECT_NE(expected, (15.0F * alpha) * (beta * scaling));
  const Small s;
  const std::vector<float> scalings{scaling};
  const Tensor h = constant(kE4m3, {1, 1, 1}, 5), b = constant(kE4m3, {1, 1, 1}, 3);
  for (const auto& [h_shape, b_shape, block] :
       {std::tuple{Extents{1}, Extents{1}, BlockSize{}},
        {Extents{1, 1, 1}, Extents{1, 1}, BlockSize{}},
        {Extents{1, 1, 1}, Extents{1, 1, 1}, BlockSize{2, 3}}}) {
    const Tensor h_scale = constant(Dtype::f32, h_shape, alpha);
    const Tensor b_scale = constant(Dtype::f32, b_shape, beta);
    Tensor y(Dtype::f32, {1, 1});
    expand_quantized({.h = h.view(),
                      .h_scale = h_scale.view(),
                      .slots = s.slots,
                      .slices = {{b.view(), b_scale.view(), s.ranks, scalings}},
                      .block = block,
                      .y = y.view()});
    EXPECT_EQ(y.get(0, 0), expected);
  }
}

// [1.46]: with blocks the sum of one group is scaled before the next is added, from 0 each.
TEST(QuantizedLinear, GroupsAreScaledBeforeTheyAreAdded) {
  const Small s;
  const Tensor a = constant(kE4m3, {1, 1, 4}, 1);
  const Tensor x = filled(Dtype::f32, {1, 4}, [](int64_t i) { return i < 2 ? 0x1p23 : 1.25; });
  const Tensor a_scale =
      filled(Dtype::f32, {1, 1, 2}, [](int64_t g) { return g == 0 ? 1.0 : 0x1p-1; });
  Tensor h(Dtype::f32, {1, 1, 1});
  shrink_quantized({.x = x.view(),
                    .x_scale = std::nullopt,
                    .slots = s.slots,
                    .slices = {{a.view(), a_scale.view(), s.ranks}},
                    .block = {1, 2},
                    .h = h.view()});
  // 2^24 + 1.25 rounds to 2^24 + 2 (ties and all); the numbers one by one would vanish.
  EXPECT_EQ(h.get(0, 0, 0), double(0x1p24F + 1.25F));
  EXPECT_EQ(h.get(0, 0, 0), 0x1p24 + 2);
}

// [1.51]: sums of i8 products are exact integers, far beyond what fp32 adds without loss.
TEST(QuantizedLinear, I8SumsAreExact) {
  const Small s;
  const int64_t num_in = 3001;
  const Tensor a = constant(Dtype::i8, {1, 1, num_in}, 127);
  const Tensor x = filled(Dtype::i8, {1, num_in}, [](int64_t i) { return i == 0 ? 1 : 127; });
  const Tensor a_scale = constant(Dtype::f32, {1}, 1), x_scale = constant(Dtype::f32, {}, 1);
  Tensor h(Dtype::f32, {1, 1, 1});
  shrink_quantized({.x = x.view(),
                    .x_scale = x_scale.view(),
                    .slots = s.slots,
                    .slices = {{a.view(), a_scale.view(), s.ranks}},
                    .block = {},
                    .h = h.view()});
  EXPECT_EQ(h.get(0, 0, 0), double(float(127 * 127 * 3000 + 127)));
}

// A case in which every mode is accepted: T = 5, K = 6, R = 4, L = 2, S = 2, N = 3.
struct Mode {
  Dtype weight, activations;
  bool weights_by_channel = false, activations_by_token = false, is_block = false;
};

struct Stage {
  explicit Stage(const Mode& mode)
      : is_w8a8(is_quantized(mode.activations)),
        a(filled(mode.weight, {2, 4, 6}, number)),
        b(filled(mode.weight, {2, 3, 4}, number)),
        x(filled(mode.activations, {5, 6}, number)),
        h(filled(mode.activations, {2, 5, 4}, number)),
        a_scale(Dtype::f32, {0}),
        b_scale(a_scale),
        x_scale(a_scale),
        h_scale(a_scale) {
    Extents a_shape{2}, b_shape{2}, x_shape, h_shape{2};
    if (mode.weights_by_channel) a_shape = {2, 4}, b_shape = {2, 3};
    if (mode.activations_by_token) x_shape = {5, 1}, h_shape = {2, 5, 1};
    if (mode.is_block) {
      block = {3, 2};
      a_shape = {2, 2, 3}, b_shape = {2, 1, 2}, x_shape = {5, 3}, h_shape = {2, 5, 2};
    }
    a_scale = constant(Dtype::f32, a_shape, 0.125), b_scale = constant(Dtype::f32, b_shape, 0.25);
    x_scale = constant(Dtype::f32, x_shape, 0.5), h_scale = constant(Dtype::f32, h_shape, 2);
  }
  static double number(int64_t i) { return double(i * 7 % 11) - 4; }

  QuantizedShrinkArgs shrink_args() {
    QuantizedShrinkArgs args{.x = x.view(),
                             .x_scale = std::nullopt,
                             .slots = slots,
                             .slices = {},
                             .block = block,
                             .h = out.view()};
    if (is_w8a8) args.x_scale = x_scale.view();
    args.slices.assign(2, {a.view(), a_scale.view(), ranks});
    return args;
  }
  QuantizedExpandArgs expand_args() {
    QuantizedExpandArgs args{.h = h.view(),
                             .h_scale = std::nullopt,
                             .slots = slots,
                             .slices = {},
                             .block = block,
                             .y = y.view()};
    if (is_w8a8) args.h_scale = h_scale.view();
    args.slices.assign(2, {b.view(), b_scale.view(), ranks, scalings});
    return args;
  }

  bool is_w8a8;
  Tensor a, b, x, h, a_scale, b_scale, x_scale, h_scale;
  BlockSize block;
  std::vector<int32_t> slots{0, 1, -1, 1, 0}, ranks{4, 2};
  std::vector<float> scalings{1, 2};
  Tensor out{Dtype::f32, {2, 5, 4}}, y{Dtype::f32, {5, 6}};
};

std::vector<Mode> all_modes() {
  std::vector<Mode> modes;
  for (const Dtype weight : {kE4m3, kE5m2, Dtype::i8}) {
    for (const Dtype activations : {Dtype::f32, Dtype::f16, Dtype::bf16, kE4m3, kE5m2, Dtype::i8}) {
      const bool mixes = is_quantized(activations) && is_f8(activations) != is_f8(weight);
      for (int form = 0; form < 5 && !mixes; ++form) {
        modes.push_back(
            {weight, activations, form == 1 || form == 3, form == 2 || form == 3, form == 4});
      }
    }
  }
  return modes;
}

// [1.51] P4 P19: no declared mode is a silent nothing: every covered number of h and of y moves.
TEST(QuantizedLinear, EveryModeGivesADelta) {
  const std::vector<Mode> modes = all_modes();
  EXPECT_EQ(modes.size(), 70U);
  for (const Mode& mode : modes) {
    Stage stage(mode);
    shrink_quantized(stage.shrink_args());
    expand_quantized(stage.expand_args());
    int num_h = 0, num_y = 0;
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t j = 0; j < 4; ++j) num_h += stage.out.get(1, t, j) != 0;
      for (int64_t n = 0; n < 6; ++n) num_y += stage.y.get(t, n) != 0;
    }
    EXPECT_GE(num_h, 11) << name(mode.weight) << ' ' << name(mode.activations);
    EXPECT_GE(num_y, 20) << name(mode.weight) << ' ' << name(mode.activations);
  }
}

// [1.49]: nothing is kept from call to call; factors that changed in place are read anew.
TEST(QuantizedLinear, ScalesAreReadAtEachCall) {
  Stage stage({kE4m3, kE4m3});
  expand_quantized(stage.expand_args());
  const double first = stage.y.get(0, 0);
  stage.b_scale.set(0.5, 0);
  stage.y = Tensor(Dtype::f32, {5, 6});
  expand_quantized(stage.expand_args());
  EXPECT_NE(first, 0);
  EXPECT_EQ(stage.y.get(0, 0), 2 * first);
}

// A real layer of K = num_in, rank 16, N = 96 in blocks of 128 x 128 or by channel and token; y
// and the worst error/bound of both stages.
Tensor wide_layer(int64_t num_in, bool is_block, Dtype activations, double* worst) {
  const int64_t num_tokens = 40, num_groups = (num_in + 127) / 128;
  const auto wave = [](int64_t i) { return 1.7 * std::sin(double(i) * 0.7 + 0.3); };
  const auto factor = [](int64_t i) { return 0.01 + 0.001 * double(i % 37); };
  const Tensor a = filled(kE4m3, {2, 16, num_in}, wave), b = filled(kE5m2, {2, 96, 16}, wave);
  const Tensor x = filled(activations, {num_tokens, num_in}, wave);
  const bool is_w8a8 = is_quantized(activations);
  const Tensor a_scale =
      filled(Dtype::f32, is_block ? Extents{2, 1, num_groups} : Extents{2, 16}, factor);
  const Tensor b_scale = filled(Dtype::f32, is_block ? Extents{2, 1, 1} : Extents{2, 96}, factor);
  const Tensor x_scale = filled(Dtype::f32, {num_tokens, is_block ? num_groups : 1}, factor);
  std::vector<int32_t> slots, ranks{16, 5};
  for (int t = 0; t < num_tokens; ++t) slots.push_back(t % 3 - 1);
  const std::vector<float> scalings{0.3F, 2};
  const BlockSize block = is_block ? BlockSize{128, 128} : BlockSize{};
  Tensor h(Dtype::f32, {1, num_tokens, 16}), y = filled(Dtype::f32, {num_tokens, 96}, wave);
  QuantizedShrinkArgs down{.x = x.view(),
                           .x_scale = std::nullopt,
                           .slots = slots,
                           .slices = {{a.view(), a_scale.view(), ranks}},
                           .block = block,
                           .h = h.view()};
  if (is_w8a8) down.x_scale = x_scale.view();
  const StageOracle h_oracle = shrink_oracle(down);
  shrink_quantized(down);
  const QuantizedExpandArgs up{.h = h.view(),
                               .h_scale = std::nullopt,
                               .slots = slots,
                               .slices = {{b.view(), b_scale.view(), ranks, scalings}},
                               .block = block,
                               .y = y.view()};
  const StageOracle y_oracle = expand_oracle(up);
  expand_quantized(up);
  for (int64_t t = 0; t < num_tokens; ++t) {
    const auto see = [&](double got, const std::optional<StageFacts>& facts) {
      if (facts) *worst = std::max(*worst, error_over_bound(got, *facts, {.out = Dtype::f32}));
    };
    for (int64_t j = 0; j < 16; ++j) see(h.get(0, t, j), h_oracle.at(t, j));
    for (int64_t n = 0; n < 96; ++n) see(y.get(t, n), y_oracle.at(t, n));
  }
  return y;
}

// [1.47] P5 on K = 17 and 2368 in blocks of 128 as checkpoints have them; and the bits of one
// thread with four.
TEST(QuantizedLinear, AwkwardSizesLieWithinTheBoundForAnyNumberOfThreads) {
  for (const Dtype activations : {Dtype::bf16, kE4m3}) {
    for (const bool is_block : {false, true}) {
      for (const int64_t num_in : {17, 2368}) {
        double worst = 0;
        omp_set_num_threads(1);
        const Tensor one = wide_layer(num_in, is_block, activations, &worst);
        omp_set_num_threads(4);
        const Tensor four = wide_layer(num_in, is_block, activations, &worst);
        EXPECT_EQ(one.bytes(), four.bytes()) << num_in;
        EXPECT_GT(worst, 0);
        EXPECT_LE(worst, 1) << num_in;
      }
    }
  }
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

std::string shrink_refusal(Stage& stage) {
  return refusal([&] { shrink_quantized(stage.shrink_args()); });
}

std::string expand_refusal(Stage& stage) {
  return refusal([&] { expand_quantized(stage.expand_args()); });
}

// [1.45] P19: one factor for each token has its axis of one. vLLM reads [T] with stride 0.
TEST(QuantizedLinear, AScaleOfOneAxisIsNotPerToken) {
  Stage stage({kE4m3, kE4m3});
  stage.x_scale = constant(Dtype::f32, {5}, 1);
  EXPECT_EQ(shrink_refusal(stage), "shrink_quantized: x_scale: has shape [5]; expected [5, 1]");
  stage.x_scale = constant(Dtype::f32, {1}, 1);
  EXPECT_EQ(shrink_refusal(stage), "shrink_quantized: x_scale: has shape [1]; expected [5, 1]");
  for (const Extents& shape : {Extents{5}, {1}, {}, {2, 5}, {5, 1}, {1, 5, 1}, {2, 5, 2}}) {
    stage.h_scale = constant(Dtype::f32, shape, 1);
    EXPECT_NE(expand_refusal(stage).find("expand_quantized: h_scale: has shape"),
              std::string::npos);
  }
  stage.h_scale = constant(Dtype::f32, {2, 5, 1}, 1);
  EXPECT_EQ(expand_refusal(stage), "accepted");
}

// [1.44] [1.45]: weights by tensor or channel with activations by tensor or token, block with
// block; group sizes both or neither; 8-bit activations without a scale in no mode.
TEST(QuantizedLinear, OnlyTheAllowedPairs) {
  const auto find = [](const std::string& text, const char* word) {
    return text.find(word) != std::string::npos;
  };
  for (const Mode& mode : all_modes()) {
    Stage good(mode);
    EXPECT_EQ(shrink_refusal(good), "accepted");
    EXPECT_EQ(expand_refusal(good), "accepted");
    if (mode.is_block) {
      for (const Extents& shape : {Extents{2}, {2, 4}, {2, 3, 2}, {2, 2, 2}, {1, 2, 3}}) {
        Stage bad(mode);
        bad.a_scale = constant(Dtype::f32, shape, 1);
        EXPECT_TRUE(find(shrink_refusal(bad), "slices[0].a_scale: has shape"));
      }
    } else {
      Stage bad(mode);
      bad.a_scale = constant(Dtype::f32, {2, 2, 3}, 1);
      EXPECT_TRUE(find(shrink_refusal(bad), "slices[0].a_scale: has shape"));
      bad.b_scale = constant(Dtype::f32, {2, 4}, 1);
      EXPECT_TRUE(find(expand_refusal(bad), "slices[0].b_scale: has shape"));
    }
    if (!good.is_w8a8) continue;
    Stage bad(mode);
    bad.x_scale = constant(Dtype::f32, mode.is_block ? Extents{5, 1} : Extents{5, 3}, 1);
    EXPECT_TRUE(find(shrink_refusal(bad), "x_scale: has shape"));
    bad.h_scale = constant(Dtype::f32, mode.is_block ? Extents{2} : Extents{2, 5, 2}, 1);
    EXPECT_TRUE(find(expand_refusal(bad), "h_scale: has shape"));
    QuantizedShrinkArgs no_x_scale = good.shrink_args();
    QuantizedExpandArgs no_h_scale = good.expand_args();
    no_x_scale.x_scale.reset(), no_h_scale.h_scale.reset();
    EXPECT_TRUE(find(refusal([&] { shrink_quantized(no_x_scale); }), "x_scale: is missing"));
    EXPECT_TRUE(find(refusal([&] { expand_quantized(no_h_scale); }), "h_scale: is missing"));
  }
  for (const BlockSize& block : {BlockSize{2, 0}, {0, 2}, {-1, 2}, {-1, -1}}) {
    Stage bad({kE4m3, kE4m3});
    bad.block = block;
    EXPECT_TRUE(find(shrink_refusal(bad), "shrink_quantized: block: is"));
    EXPECT_TRUE(find(expand_refusal(bad), "expand_quantized: block: is"));
  }
}

// [1.45]: a scale too much, a dtype that has none, kinds that do not meet.
TEST(QuantizedLinear, DtypesAndScalesThatDoNotFit) {
  Stage wide({kE4m3, Dtype::bf16});
  QuantizedShrinkArgs too_much = wide.shrink_args();
  too_much.x_scale = wide.x_scale.view();
  EXPECT_NE(refusal([&] { shrink_quantized(too_much); }).find("x_scale: scales bf16"),
            std::string::npos);

  for (const auto& [weight, activations] :
       {std::pair{Dtype::i8, kE4m3}, {kE5m2, Dtype::i8}, {Dtype::bf16, Dtype::bf16}}) {
    Stage mixed({weight, activations});
    EXPECT_NE(shrink_refusal(mixed).find("slices[0].a: has dtype"), std::string::npos);
    EXPECT_NE(expand_refusal(mixed).find("slices[0].b: has dtype"), std::string::npos);
  }
  Stage stage({kE4m3, kE4m3});
  stage.a_scale = constant(Dtype::f16, {2}, 1);
  stage.h_scale = constant(Dtype::bf16, {2}, 1);
  EXPECT_NE(shrink_refusal(stage).find("a_scale: has dtype f16"), std::string::npos);
  EXPECT_NE(expand_refusal(stage).find("h_scale: has dtype bf16"), std::string::npos);

  Stage out({kE4m3, kE4m3});
  out.out = Tensor(kE4m3, {2, 5, 4});
  out.y = Tensor(Dtype::i8, {5, 6});
  EXPECT_NE(shrink_refusal(out).find("shrink_quantized: h: has dtype"), std::string::npos);
  EXPECT_NE(expand_refusal(out).find("expand_quantized: y: has dtype i8"), std::string::npos);
}

// What the operations on wide numbers check, checked here too; y keeps its bits.
TEST(QuantizedLinear, ShapesSlotsRanksAndScalings) {
  const auto refusal_of = [](const std::function<void(Stage&)>& change) {
    Stage stage({kE4m3, kE4m3});
    change(stage);
    const Tensor before = stage.y;
    const std::string text = shrink_refusal(stage) + " | " + expand_refusal(stage);
    EXPECT_EQ(stage.y.bytes(), before.bytes());
    return text;
  };
  EXPECT_NE(refusal_of([](Stage& s) { s.slots[0] = 2; }).find("slot"), std::string::npos);
  EXPECT_NE(refusal_of([](Stage& s) {
              s.ranks = {5, 1};
            }).find("slices[0].ranks[0]"),
            std::string::npos);
  EXPECT_NE(refusal_of([](Stage& s) { s.ranks = {1}; }).find("a: has shape"), std::string::npos);
  EXPECT_NE(refusal_of([](Stage& s) {
              s.scalings[1] = std::numeric_limits<float>::infinity();
            }).find("slices[0].scalings[1]"),
            std::string::npos);
  EXPECT_NE(refusal_of([](Stage& s) {
              s.y = Tensor(Dtype::f32, {5, 5});
            }).find("the slices end"),
            std::string::npos);
  Stage stage({kE4m3, kE4m3});
  QuantizedExpandArgs args = stage.expand_args();
  args.offset_start = -1;
  EXPECT_NE(refusal([&] { expand_quantized(args); }).find("offset_start"), std::string::npos);
  args.offset_start = 1;
  EXPECT_NE(refusal([&] { expand_quantized(args); }).find("the slices end at 7"),
            std::string::npos);
}

// [1.22]: what takes wide numbers does not take 8-bit ones, i8 included.
TEST(QuantizedLinear, WideOperationsRefuseBits) {
  const Small s;
  for (const Dtype dtype : {kE4m3, kE5m2, Dtype::i8}) {
    const Tensor x(dtype, {1, 2}), a(dtype, {1, 1, 2});
    Tensor h(Dtype::f32, {1, 1, 1});
    EXPECT_NE(
        refusal([&] {
          shrink({.x = x.view(), .slots = s.slots, .slices = {{a.view(), s.ranks}}, .h = h.view()});
        }).find("no scale tensors"),
        std::string::npos);
  }
}

}  // namespace
}  // namespace loratory::reference
