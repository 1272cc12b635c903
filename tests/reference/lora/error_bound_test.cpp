// The bound [1.18] against implementations that sum in other orders: sequential, tree, random.
// Method: a second, small implementation of one output element with every NumericMode and an
// order of summation as a parameter; its result must lie within the bound of the float64 oracle,
// and the worst error must use a stated part of the bound, so that the bound stays tight.
#include "reference/numerics/error_bound.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

namespace loratory::reference {
namespace {

enum class Order { sequential, tree, random };
enum class Numbers { plain, cancelling, tiny };

using Engine = std::mt19937_64;

float sum_in(Order order, std::vector<float> terms, Engine& engine) {
  if (terms.empty()) return 0;
  while (terms.size() > 1) {
    if (order == Order::sequential) {
      float sum = 0;
      for (const float t : terms) sum += t;
      return sum;
    }
    if (order == Order::random) std::shuffle(terms.begin(), terms.end(), engine);
    std::vector<float> half;
    for (size_t i = 0; i + 1 < terms.size(); i += 2) half.push_back(terms[i] + terms[i + 1]);
    if (terms.size() % 2 == 1) half.push_back(terms.back());
    terms = half;
  }
  return terms[0];
}

// One output element: x [K], A [r][K], B [r], in `dtype`.
struct Element {
  std::vector<double> x, b;
  std::vector<std::vector<double>> a;
  double base;
  float scaling;
};

double real(Engine& engine) { return (double(engine() >> 12) * 0x1p-52 - 0.5) * 4; }

Element random_element(Dtype dtype, Numbers numbers, Engine& engine) {
  const int num_in = 1 + int(engine() % (engine() % 4 == 0 ? 300 : 6));
  const int rank = 1 + int(engine() % (engine() % 4 == 0 ? 100 : 4));
  const int exponent = numbers == Numbers::tiny ? (dtype == Dtype::f16 ? -10 : -45) : 0;
  const auto draw = [&](int e) {
    return round_to(dtype, std::ldexp(real(engine), e - int(engine() % 4)));
  };
  Element e{.x = {}, .b = {}, .a = {}, .base = draw(3 * exponent), .scaling = float(real(engine))};
  if (engine() % 4 == 0) e.base = 0;
  for (int c = 0; c < num_in; ++c) e.x.push_back(draw(exponent));
  for (int j = 0; j < rank; ++j) {
    e.b.push_back(draw(exponent));
    e.a.emplace_back();
    for (int c = 0; c < num_in; ++c) {
      e.a[j].push_back(draw(exponent));
      // Neighbours whose products cancel but for a little.
      if (numbers == Numbers::cancelling && c % 2 == 1 && e.x[c] != 0) {
        e.a[j][c] = round_to(dtype, -e.a[j][c - 1] * e.x[c - 1] / e.x[c]);
      }
    }
  }
  return e;
}

DeltaFacts facts_of(const Element& e) {
  DeltaFacts f{.base = e.base,
               .scaling = e.scaling,
               .num_in = int64_t(e.x.size()),
               .rank = int64_t(e.b.size())};
  for (size_t j = 0; j < e.b.size(); ++j) {
    double h = 0, xa = 0;
    for (size_t c = 0; c < e.x.size(); ++c) {
      h += e.x[c] * e.a[j][c], xa += std::fabs(e.x[c] * e.a[j][c]);
    }
    const double b = std::fabs(e.b[j]);
    f.delta += e.b[j] * h * e.scaling;
    f.sum_b_h += b * std::fabs(h), f.sum_b_xa += b * xa;
    f.sum_b += b, f.sum_h += std::fabs(h), f.sum_xa += xa;
  }
  return f;
}

double compute(const Element& e, const Arithmetic& a, Order order, Engine& engine) {
  const bool folded = a.mode.scale == ScaleMode::folded_b;
  std::vector<float> products;
  for (size_t j = 0; j < e.b.size(); ++j) {
    std::vector<float> terms;
    for (size_t c = 0; c < e.x.size(); ++c) terms.push_back(float(e.x[c]) * float(e.a[j][c]));
    const float h = sum_in(order, terms, engine);
    const auto b = float(folded ? round_to(a.weight, e.b[j] * e.scaling) : e.b[j]);
    const auto hi = float(round_to(a.weight, h));
    switch (a.mode.h) {
      case IntermediateMode::fp32:
        products.push_back(h * b);
        break;
      case IntermediateMode::split2:
        products.push_back(hi * b);
        products.push_back(float(round_to(a.weight, h - hi)) * b);
        break;
      default:
        products.push_back(hi * b);
        break;
    }
  }
  float d = sum_in(order, products, engine);
  if (!folded) d = e.scaling * d;
  const bool as_weight = a.mode.h == IntermediateMode::cast_to_weight;
  if (a.mode.sum == SumMode::two_round) d = float(round_to(as_weight ? a.weight : a.out, d));
  return round_to(a.out, float(e.base) + d);
}

// The worst error/bound of `num_cases` elements with an order of summation each.
double worst_ratio(const Arithmetic& a, Numbers numbers, int num_cases) {
  Engine engine(uint64_t(a.out) * 100 + uint64_t(numbers));
  double worst = 0;
  for (int i = 0; i < num_cases; ++i) {
    const Element e = random_element(a.weight, numbers, engine);
    const DeltaFacts facts = facts_of(e);
    for (const Order order : {Order::sequential, Order::tree, Order::random}) {
      const double ratio = error_over_bound(compute(e, a, order, engine), facts, a);
      EXPECT_LE(ratio, 1) << name(a.out) << " case " << i << " order " << int(order);
      worst = std::max(worst, ratio);
    }
  }
  return worst;
}

std::vector<NumericMode> all_modes() {
  std::vector<NumericMode> modes;
  for (int i = 0; i < 16; ++i) {
    modes.push_back({IntermediateMode(i % 4), SumMode(i / 4 % 2), ScaleMode(i / 8)});
  }
  return modes;
}

// Dtypes of the weights and of the result, and the least part of the bound that the worst of the
// plain cases must use. An f32 result of f32 weights has nothing but the accumulators' roundings,
// of which the worst case needs all to point one way; f32 results of narrower weights show what
// a rounding of h or B costs, because no rounding of y hides it.
struct Dtypes {
  Dtype weight, out;
  double least_worst_ratio;
};

// [1.18]
TEST(ErrorBound, HoldsForEveryOrderOfSummationAndIsTight) {
  const Dtypes dtypes[] = {{Dtype::f32, Dtype::f32, 0.25},
                           {Dtype::f16, Dtype::f16, 0.6},
                           {Dtype::bf16, Dtype::bf16, 0.6},
                           {Dtype::f16, Dtype::f32, 0.25},
                           {Dtype::bf16, Dtype::f32, 0.25}};
  for (const auto& [weight, out, least_worst_ratio] : dtypes) {
    for (const NumericMode& mode : all_modes()) {
      const Arithmetic a{.mode = mode, .h = weight, .weight = weight, .out = out};
      const double plain = worst_ratio(a, Numbers::plain, 1000);
      const double cancelling = worst_ratio(a, Numbers::cancelling, 300);
      const double tiny = worst_ratio(a, Numbers::tiny, 300);
      std::printf(
          "%-4s to %-4s h=%d sum=%d scale=%d worst error/bound: "
          "plain %.3f cancelling %.3f tiny %.3f\n",
          name(weight).data(), name(out).data(), int(mode.h), int(mode.sum), int(mode.scale), plain,
          cancelling, tiny);
      EXPECT_GT(plain, least_worst_ratio);
    }
  }
}

// [1.18]
// Folded, the products h·B' underflow at their own size, not at |s| times it: here every one of 64
// products vanishes, and a bound with 2^-149·|s|·r for them would be too small by a factor of 20.
TEST(ErrorBound, UnderflowOfFoldedProductsDoesNotShrinkWithScaling) {
  Element e{.x = {1}, .b = {}, .a = {}, .base = 0, .scaling = 0x1p-10F};
  for (int j = 0; j < 64; ++j) e.b.push_back(0x1p-65 * (1 - 0x1p-8)), e.a.push_back({0x1p-75});
  const Arithmetic a{.mode = {.scale = ScaleMode::folded_b}};
  Engine engine(1);
  const double got = compute(e, a, Order::sequential, engine);
  EXPECT_EQ(got, 0);
  const double ratio = error_over_bound(got, facts_of(e), a);
  EXPECT_LE(ratio, 1);
  EXPECT_GT(ratio, 0.3);
}

// [1.18]
TEST(ErrorBound, InfinityMustBeMetByTheSameInfinity) {
  const Arithmetic f16{.out = Dtype::f16};
  const DeltaFacts past{.base = 65504, .delta = 65504};
  EXPECT_EQ(error_over_bound(INFINITY, past, f16), 0);
  EXPECT_EQ(error_over_bound(65504, past, f16), INFINITY);
  EXPECT_EQ(error_over_bound(-INFINITY, past, f16), INFINITY);
  EXPECT_EQ(error_over_bound(NAN, {}, f16), INFINITY);
  EXPECT_EQ(error_over_bound(0, {}, f16), 0);
}

// Numbers from 65520 on round to infinity. Which of the two a sum becomes that is near to it by
// less than its error before the last rounding, nobody can say.
TEST(ErrorBound, BothSidesOfOverflowPassWithinTheErrorBeforeTheLastRounding) {
  const Arithmetic f16{.out = Dtype::f16};
  const auto of = [&](double delta, double got) {
    const DeltaFacts facts{.base = 65504,
                           .delta = delta,
                           .scaling = 1,
                           .num_in = 8,
                           .rank = 1,
                           .sum_b_h = delta,
                           .sum_b_xa = delta};
    return error_over_bound(got, facts, f16);
  };
  EXPECT_EQ(of(15.999999, INFINITY), 0);
  EXPECT_LE(of(15.999999, 65504), 1);
  EXPECT_LE(of(16.000001, 65504), 1);
  EXPECT_EQ(of(16.000001, INFINITY), 0);
  EXPECT_EQ(of(15.9, INFINITY), INFINITY);
  EXPECT_EQ(of(16.1, 65504), INFINITY);
  EXPECT_EQ(of(15.999999, -INFINITY), INFINITY);
}

// Where roundings are too many or too coarse, nothing is bounded: no bound is NaN or less.
TEST(ErrorBound, IsInfiniteFromNTimesUnitOn) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(gamma(4096, 0x1p-12), kInfinity);
  EXPECT_LT(gamma(4095, 0x1p-12), kInfinity);
  for (const double size : {0.0, 1.0}) {
    const DeltaFacts facts{.delta = size, .num_in = 14336, .rank = 8, .sum_b_xa = size};
    const Arithmetic coarse{.unit = 0x1p-12};
    EXPECT_EQ(error_bound(facts, coarse), kInfinity);
    EXPECT_EQ(error_over_bound(7, facts, coarse), 0);
    EXPECT_EQ(shrink_error_bound(size, size, 14336, Dtype::f32, 0x1p-12), kInfinity);
  }
}

// What a kernel says of itself counts in a shrink alone as it does in a whole delta.
TEST(ErrorBound, OfAShrinkCountsFlushesAndTheLastRoundingOfRoundedOperands) {
  const Arithmetic plain{.out = Dtype::f32};
  EXPECT_EQ(shrink_error_bound(1, 2, 8, plain), shrink_error_bound(1, 2, 8, Dtype::f32));
  // Eight products just below the normal range, all flushed.
  const double lost = 8 * 0x1p-126;
  EXPECT_GT(lost, shrink_error_bound(lost, lost, 8, plain));
  EXPECT_LE(lost, shrink_error_bound(lost, lost, 8, {.flushes_subnormals = true}));
  // Operands that are off by all they may be, and a result that is off by half a step of bf16 of
  // what they give.
  const double rounding = 0x1p-10, u = unit_roundoff(Dtype::bf16);
  const double off = rounding + (1 + rounding) * u;
  const Arithmetic tf32{.out = Dtype::bf16, .unit = 0x1p-60, .operand_rounding = rounding};
  EXPECT_GE(shrink_error_bound(1, 1, 1, tf32), off);
  EXPECT_LT(shrink_error_bound(1, 1, 1, tf32), 1.001 * off);
}

// No comparison with NaN holds, so that one would take what cannot be judged for right.
TEST(ErrorOver, IsInfiniteWhereNothingCanBeJudged) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(error_over(1, nan, 1, Dtype::f32), infinity);
  EXPECT_EQ(error_over(1, 1, nan, Dtype::f32), infinity);
  EXPECT_EQ(error_over(nan, 1, 1, Dtype::f32), infinity);
  EXPECT_EQ(error_over(1.5, 1, 2, Dtype::f32), 0.25);
}

}  // namespace
}  // namespace loratory::reference
