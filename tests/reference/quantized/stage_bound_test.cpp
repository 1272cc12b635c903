// The bound of one stage [1.47] against implementations that are not the reference: other orders of
// summation, factors inside of the products or multiplied with each other first, K cut in two.
// The worst error must use a stated part of the bound, so that the bound stays tight.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "reference/quantized/oracle.hpp"

namespace loratory::reference {
namespace {

using Engine = std::mt19937_64;

enum class Numbers { plain, cancelling, tiny };

double real(Engine& engine) { return (double(engine() >> 12) * 0x1p-52 - 0.5) * 4; }

// One element of an expand with h_q of one token: n terms, in blocks of `group` (0: none).
struct Element {
  int64_t group = 0;
  Tensor b, h, b_scale, h_scale, y;
  std::vector<float> scalings;
  std::vector<int32_t> ranks, slots{0};

  QuantizedExpandArgs args() {
    return {.h = h.view(),
            .h_scale = is_quantized(h.dtype()) ? std::optional<ConstTensorView>(h_scale.view())
                                               : std::nullopt,
            .slots = slots,
            .slices = {{b.view(), b_scale.view(), ranks, scalings}},
            .block = {group, group},
            .y = y.view()};
  }
  int64_t num_terms() const { return b.shape()[2]; }
  int64_t width() const { return group == 0 ? num_terms() : group; }
  float alpha(int64_t c) const {
    return is_quantized(h.dtype()) ? float(h_scale.get(0, 0, c / width())) : 1.0F;
  }
  float beta(int64_t c) const {
    return float(group == 0 ? b_scale.get(0, 0) : b_scale.get(0, 0, c / width()));
  }
};

Element random_element(Dtype weight, Dtype h_dtype, Dtype out, Numbers numbers, Engine& engine) {
  const int64_t n = 1 + int64_t(engine() % (engine() % 4 == 0 ? 300 : 8));
  const int64_t group = engine() % 2 == 0 ? 0 : 1 + int64_t(engine() % 40);
  const int64_t num_groups = group == 0 ? 1 : (n + group - 1) / group;
  Element e{.group = group,
            .b = Tensor(weight, {1, 1, n}),
            .h = Tensor(h_dtype, {1, 1, n}),
            .b_scale = Tensor(Dtype::f32, group == 0 ? Extents{1, 1} : Extents{1, 1, num_groups}),
            .h_scale = Tensor(Dtype::f32, {1, 1, num_groups}),
            .y = Tensor(out, {1, 1}),
            .scalings = {float(real(engine))},
            .ranks = {int32_t(n)}};
  const double size = weight == Dtype::i8 ? 50 : 1;
  const int exponent = numbers == Numbers::tiny ? -70 : 0;
  for (int64_t c = 0; c < n; ++c) {
    e.b.set(size * real(engine), 0, 0, c);
    e.h.set(size * real(engine), 0, 0, c);
    const double b = e.b.get(0, 0, c);
    if (numbers == Numbers::cancelling && c % 2 == 1 && b != 0) {
      const double opposite = -e.b.get(0, 0, c - 1) * e.h.get(0, 0, c - 1) / b;
      e.h.set(round_to(h_dtype, opposite, Overflow::saturate), 0, 0, c);
    }
  }
  for (int64_t g = 0; g < num_groups; ++g) {
    const double alpha = std::ldexp(0.1 + std::fabs(real(engine)), exponent);
    const double beta = std::ldexp(0.1 + std::fabs(real(engine)), exponent);
    e.h_scale.set(alpha, 0, 0, g);
    store(Dtype::f32, e.b_scale.bytes().data() + 4 * g, beta);
  }
  e.y.set(engine() % 2 == 0 ? 0 : real(engine), 0, 0);
  return e;
}

float sum_of(std::vector<float> terms, bool is_tree, Engine& engine) {
  if (is_tree) std::shuffle(terms.begin(), terms.end(), engine);
  while (is_tree && terms.size() > 1) {
    std::vector<float> half;
    for (size_t i = 0; i + 1 < terms.size(); i += 2) half.push_back(terms[i] + terms[i + 1]);
    if (terms.size() % 2 == 1) half.push_back(terms.back());
    terms = half;
  }
  float sum = 0;
  for (const float term : terms) sum += term;
  return sum;
}

constexpr int kNumWays = 4;

// d by one of kNumWays ways.
float delta(const Element& e, int way, Engine& engine) {
  std::vector<float> parts;
  const bool is_tree = engine() % 2 == 0;
  // Way 3 cuts each group in two, as split-K does.
  const int64_t step = way == 3 ? (e.width() + 1) / 2 : e.width();
  for (int64_t begin = 0; begin < e.num_terms(); begin += e.width()) {
    const int64_t end_of_group = std::min(begin + e.width(), e.num_terms());
    for (int64_t from = begin; from < end_of_group; from += step) {
      std::vector<float> terms;
      for (int64_t c = from; c < std::min(from + step, end_of_group); ++c) {
        const auto q = float(e.b.get(0, 0, c)), p = float(e.h.get(0, 0, c));
        terms.push_back(way == 1 ? (q * e.beta(c)) * (p * e.alpha(c)) : q * p);
      }
      const float sum = sum_of(terms, is_tree, engine);
      if (way == 1) {
        parts.push_back(sum);
      } else if (way == 2) {
        parts.push_back(sum * (e.alpha(begin) * e.beta(begin)));
      } else {
        parts.push_back((sum * e.alpha(begin)) * e.beta(begin));
      }
    }
  }
  return e.scalings[0] * sum_of(parts, is_tree, engine);
}

struct Worst {
  double ratio = 0;
  int num_results = 0;
};

Worst worst_of(Dtype weight, Dtype h, Dtype out, Numbers numbers, SumMode sum) {
  Engine engine(uint64_t(weight) * 1000 + uint64_t(h) * 100 + uint64_t(out) * 10 +
                uint64_t(numbers));
  Worst worst;
  for (int i = 0; i < 150; ++i) {
    Element e = random_element(weight, h, out, numbers, engine);
    const StageFacts facts = *expand_oracle(e.args()).at(0, 0);
    for (int way = 0; way < kNumWays; ++way) {
      // Factors inside of or before the products underflow at other places than the bound counts.
      if (numbers == Numbers::tiny && (way == 1 || way == 2)) continue;
      float d = delta(e, way, engine);
      if (sum == SumMode::two_round) d = float(round_to(out, d));
      const double y = round_to(out, float(e.y.get(0, 0)) + d);
      const double ratio = error_over_bound(y, facts, {.mode = {.sum = sum}, .out = out});
      worst.ratio = std::max(worst.ratio, ratio);
      ++worst.num_results;
    }
  }
  return worst;
}

// [1.18] [1.46] [1.47]: no violation, and the bound is used.
TEST(StageBound, HoldsForOtherImplementationsAndIsTight) {
  int num_results = 0;
  for (const Dtype out : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    for (const Numbers numbers : {Numbers::plain, Numbers::cancelling, Numbers::tiny}) {
      double worst = 0;
      for (const Dtype weight : {Dtype::f8_e4m3fn, Dtype::f8_e5m2, Dtype::i8}) {
        for (const Dtype h : {Dtype::f32, Dtype::bf16, weight}) {
          for (const SumMode sum : {SumMode::one_round, SumMode::two_round}) {
            const Worst w = worst_of(weight, h, out, numbers, sum);
            EXPECT_LE(w.ratio, 1.0) << name(weight) << name(h) << name(out) << int(numbers);
            worst = std::max(worst, w.ratio);
            num_results += w.num_results;
          }
        }
      }
      std::printf("%s numbers %d: worst error/bound %.3f\n", name(out).data(), int(numbers), worst);
      // Tiny deltas are less than any step of f16.
      const bool vanishes = out == Dtype::f16 && numbers == Numbers::tiny;
      EXPECT_GT(worst, vanishes ? 0 : out == Dtype::f32 ? 0.25 : 0.6);
    }
  }
  std::printf("%d results\n", num_results);
}

// [1.47]: the numbers of [1.18] that a stage counts: n + 4 roundings of each term.
TEST(StageBound, OfOneElementByHand) {
  const StageFacts facts{
      .base = 0, .delta = 3, .magnitude = 5, .underflows = 7, .num_terms = 10, .adds_base = false};
  const double u = 0x1p-24, e = 14 * u / (1 - 14 * u) * 5 + 7 * 0x1p-149;
  EXPECT_DOUBLE_EQ(error_bound(facts, {.out = Dtype::f32}),
                   (e + u * (3 + e) + 0x1p-150) * kOracleAllowance);
  StageFacts summed = facts;
  summed.adds_base = true, summed.base = 1;
  const double sum = e + u * (4 + e);
  EXPECT_DOUBLE_EQ(error_bound(summed, {.out = Dtype::bf16}),
                   (sum + 0x1p-8 * (4 + sum) + 0x1p-134) * kOracleAllowance);
}

// [1.18]: a stage whose results fall below the normal range loses what Z counts.
TEST(StageBound, UnderflowOfTheFactorsIsCounted) {
  Engine engine(1);
  Element e =
      random_element(Dtype::f8_e4m3fn, Dtype::f8_e4m3fn, Dtype::f32, Numbers::plain, engine);
  const int64_t n = e.num_terms();
  e.group = 0;
  e.b_scale = Tensor(Dtype::f32, {1, 1}), e.h_scale = Tensor(Dtype::f32, {1, 1, 1});
  e.b_scale.set(0x1p20, 0, 0), e.h_scale.set(0x1p-149, 0, 0, 0);
  for (int64_t c = 0; c < n; ++c) e.b.set(c == 0 ? 0.40625 : 0, 0, 0, c), e.h.set(1, 0, 0, c);
  e.y.set(0, 0, 0);
  e.scalings = {1};
  const StageFacts facts = *expand_oracle(e.args()).at(0, 0);
  expand_quantized(e.args());
  EXPECT_EQ(e.y.get(0, 0), 0) << "0.40625 · 2^-149 rounds to 0, then 2^20 cannot help";
  EXPECT_GT(facts.delta, 0x1p-131);
  EXPECT_LE(error_over_bound(0, facts, {.out = Dtype::f32}), 1);
  StageFacts uncounted = facts;
  uncounted.underflows = 1;
  EXPECT_GT(error_over_bound(0, uncounted, {.out = Dtype::f32}), 1);
}

}  // namespace
}  // namespace loratory::reference
