// The statistical model of a delta, element by element, against docs/error_bounds.md ("Errors as
// random numbers") written down as plain loops; of its sums, which sum_error_test.cpp has, it takes
// the library's.
#include "reference/lora/delta_model.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <string>

#include "reference/base/input_error.hpp"
#include "reference/layout/batch_layout.hpp"

namespace loratory::reference {
namespace {

// ---- the definition ----

double squared(double v) { return v * v; }

// From |v| to the next number of the dtype above it, if v is one.
double step_at(Dtype dtype, double v) {
  int exponent = 0;
  std::frexp(v, &exponent);  // |v| in [2^(exponent-1), 2^exponent)
  const double normal = std::ldexp(unit_roundoff(dtype), exponent);
  return v == 0 ? 2 * underflow_unit(dtype) : std::max(normal, 2 * underflow_unit(dtype));
}

struct RandomNumber {
  double value = 0, mean = 0, variance = 0;
  double operands = 0;  // what rounded operands may do
};

struct Sum {
  RandomNumber number;
  double partial = 0, squares = 0;
};

Sum sum_of(const std::vector<double>& left, const std::vector<float>& right, int64_t num_more,
           const Arithmetic& a) {
  const SumFacts facts = sums_of_products(left, right, 1);
  const RandomError e = sum_error(facts, 0, int64_t(left.size()) + num_more, accumulators_of(a));
  return {
      {.value = facts.sum[0],
       .mean = e.mean,
       .variance = e.variance,
       .operands = a.operand_rounding * (std::fabs(facts.sum[0]) + std::sqrt(facts.squares[0]))},
      facts.partial[0],
      facts.squares[0]};
}

// "Rounding points": h as it meets B.
RandomNumber rounded(RandomNumber h, double partial, const Arithmetic& a, bool has_factor) {
  const bool stored = a.mode.h == IntermediateMode::store_as_x;
  const Dtype dtype = stored ? a.h : a.weight;
  if (a.mode.h == IntermediateMode::fp32 || dtype == Dtype::f32) return h;
  const double u = unit_roundoff(dtype), v = h.value;
  if (stored && a.num_h_parts > 1) {
    h.variance +=
        double(a.num_h_parts + 1) * (squared(u) * partial + squared(underflow_unit(dtype)));
  } else if (a.mode.h == IntermediateMode::split2) {
    const double hi = round_to(dtype, v), lo = v - hi;
    h.value = hi + round_to(dtype, lo);
    h.variance += squared(std::max(step_at(dtype, lo), squared(u) * std::fabs(v)));
  } else if (has_factor) {
    h.variance += squared(step_at(dtype, v) / 2);
  } else {
    h.value = round_to(dtype, v);
    const double q = step_at(dtype, v), to_tie = q / 2 - std::fabs(v - h.value);
    const double distance = std::max(0.0, std::max(0.0, to_tie) - std::fabs(h.mean));
    const double deviation = std::sqrt(h.variance);
    if (h.mean == 0 && deviation == 0) return h;
    if (distance > 8 * deviation) {
      h.variance = 0;
    } else {
      const double others = std::fabs(h.mean) + deviation > q ? h.variance : 0;
      const double z = deviation == 0 ? 0 : distance / deviation;
      h.variance = others + squared(q) / (1 + squared(z));
    }
  }
  return h;
}

// "An element": of the h that meet B, the numbers of B that they meet, and the terms of each h.
DeltaModel element(const std::vector<RandomNumber>& h, const std::vector<float>& b, double num_in,
                   float scaling, const Arithmetic& a, std::optional<float> factor) {
  const bool folded = a.mode.scale == ScaleMode::folded_b;
  const double s = (folded ? 1 : double(scaling)) * double(factor.value_or(1));
  const double abs_s = std::fabs(s), u = 0x1p-24;
  std::vector<double> values;
  std::vector<float> weights;
  double mean = 0, doubt = 0, variance = 0, operands = 0, sum_b = 0;
  for (size_t j = 0; j < h.size(); ++j) {
    const double product = double(scaling) * double(b[j]);
    const double b_j = folded ? round_to(a.weight, product) : double(b[j]);
    if (folded) {
      doubt += std::fabs(b_j - round_to(a.weight, float(product))) * std::fabs(h[j].value);
    }
    values.push_back(h[j].value);
    weights.push_back(float(b_j));
    mean += b_j * h[j].mean;
    variance += squared(b_j) * (h[j].variance + squared(h[j].mean / 4));
    operands += std::fabs(b_j) * h[j].operands;
    sum_b += std::fabs(b_j);
  }
  const auto rank = int64_t(h.size());
  const int64_t num_parts = a.mode.h == IntermediateMode::split2 ? 2 : 1;
  const Sum sum = sum_of(values, weights, (num_parts - 1) * rank, a);
  operands += a.operand_rounding * std::sqrt(sum.squares);
  const double num_scalings = factor ? 4 : 2;
  variance += sum.number.variance + squared(operands) +
              squared(num_scalings * u) * (squared(sum.number.value) + sum.squares);
  const double smallest = a.flushes_subnormals ? 0x1p-125 : 0x1p-149;
  const double num_underflows =
      1 + std::max(1.0, abs_s) * double(num_parts * rank) + abs_s * num_in * sum_b;
  return {.delta = s * sum.number.value,
          .mean = abs_s * (std::fabs(mean) + std::fabs(sum.number.mean) + doubt) +
                  smallest * num_underflows,
          .deviation = abs_s * std::sqrt(variance)};
}

// ---- cases ----

struct Drawn {
  std::mt19937_64 engine;
  std::normal_distribution<double> normal;

  int64_t below(int64_t n) { return int64_t(engine() % uint64_t(n)); }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(int64_t(values.size()))];
  }
  // Numbers around `size`, some of them 0.
  Tensor tensor(Dtype dtype, const Extents& shape, double size) {
    Tensor t(dtype, shape);
    for (size_t i = 0; i < t.bytes().size(); i += size_bytes(dtype)) {
      store(dtype, t.bytes().data() + i, below(12) == 0 ? 0 : size * normal(engine));
    }
    return t;
  }
};

// Two slices, three slots (one without the second slice), a base row and two equal ones.
struct Case {
  explicit Case(uint64_t seed) : drawn{.engine = std::mt19937_64(seed), .normal = {}} {
    Drawn& d = drawn;
    dtype = d.one_of({Dtype::f32, Dtype::bf16, Dtype::f16});
    const Dtype out = d.one_of({Dtype::f32, dtype});
    num_in = 1 + d.below(40);
    const double size = d.one_of({1.0, 0x1p-9, 0x1p-13});  // f16 is subnormal below 2^-14
    x = d.tensor(dtype, {5, num_in}, size);
    for (int64_t c = 0; c < num_in; ++c) x.set(x.get(0, c), 3, c);
    y = d.tensor(out, {5, 20}, 1);
    for (int64_t i = 0; i < 2; ++i) {
      a.push_back(d.tensor(dtype, {3, 6, num_in}, 1));
      b.push_back(d.tensor(dtype, {3, 5 + 2 * i, 6}, 1));
    }
    for (float& s : scalings) s = float(d.normal(d.engine) * std::exp2(double(d.below(5)) - 2));
    // Half of the time a scaling of which some products lie within a rounding to fp32 of a tie.
    for (int64_t slot = 0; slot < 3 && d.below(2) == 0; ++slot) {
      const double tie = 1 + unit_roundoff(dtype) * double(1 + 2 * d.below(8));
      const double b_00 = b[0].get(slot, 0, 0);
      if (b_00 != 0) scalings[size_t(slot)] = float(tie / b_00);
    }
    ranks = {{{int32_t(1 + d.below(6)), 3, 6}, {0, 6, int32_t(1 + d.below(6))}}};
    arithmetic = {
        .mode = {IntermediateMode(d.below(4)), SumMode(d.below(2)), ScaleMode(d.below(2))},
        .h = dtype,
        .weight = dtype,
        .out = out,
        .unit = d.one_of({0x1p-24, 0x1p-22, 0x1p-12, 0x1p-8}),
        .operand_rounding = d.one_of({0.0, 0x1p-11}),
        .flushes_subnormals = d.below(2) == 1,
        .num_h_parts = 1 + d.below(3)};
    if (d.below(3) == 0) factor = float(d.normal(d.engine));
  }
  std::vector<LoraSlice> slices() const {
    std::vector<LoraSlice> out;
    for (size_t i = 0; i < 2; ++i) {
      out.push_back({a[i].view(), b[i].view(), ranks[i], scalings, std::nullopt});
    }
    return out;
  }
  int64_t num_out(size_t slice) const { return b[slice].view().size(1); }
  int64_t rank(size_t slice, int64_t t) const {
    const int32_t slot = slots[size_t(t)];
    return slot == kBaseSlot ? 0 : ranks[slice][size_t(slot)];
  }
  std::vector<double> row(int64_t t) const {
    std::vector<double> out;
    for (int64_t c = 0; c < num_in; ++c) out.push_back(x.get(t, c));
    return out;
  }
  std::vector<float> a_of(size_t slice, int64_t t, int64_t j) const {
    std::vector<float> out;
    for (int64_t c = 0; c < num_in; ++c) {
      out.push_back(float(a[slice].get(slots[size_t(t)], j, c)));
    }
    return out;
  }
  DeltaModel model(const std::vector<RandomNumber>& h, size_t slice, int64_t t, int64_t n,
                   double num_terms, const Arithmetic& how) const {
    std::vector<float> b_n;
    const int32_t slot = slots[size_t(t)];
    for (size_t j = 0; j < h.size(); ++j) {
      b_n.push_back(float(b[slice].get(slot, n, int64_t(j))));
    }
    return element(h, b_n, num_terms, scalings[size_t(slot)], how, factor);
  }

  Drawn drawn;
  Dtype dtype;
  int64_t num_in;
  Tensor x{Dtype::f32, {0, 0}}, y{Dtype::f32, {0, 0}};
  std::vector<Tensor> a, b;
  std::vector<int32_t> slots{2, 0, -1, 2, 1};
  std::array<std::vector<int32_t>, 2> ranks;
  std::vector<float> scalings = std::vector<float>(3);
  Arithmetic arithmetic;
  std::optional<float> factor;
};

void expect_equal(const std::optional<DeltaModel>& got, const DeltaModel& expected) {
  ASSERT_TRUE(got);
  const auto near = [](double value, double other, double size) {
    return std::fabs(value - other) <= 0x1p-40 * size;
  };
  // Terms of delta may cancel, and its deviation has the size of their squares' root times 2u.
  EXPECT_PRED3(near, got->delta, expected.delta,
               std::fabs(expected.delta) + expected.deviation * 0x1p23);
  EXPECT_PRED3(near, got->mean, expected.mean, expected.mean);
  EXPECT_PRED3(near, got->deviation, expected.deviation, expected.deviation);
  EXPECT_EQ(got->base, expected.base);
}

constexpr int64_t kOffset = 3;
constexpr uint64_t kCases = 400;

TEST(DeltaModels, OfLinearAreTheDefinition) {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Case c(seed);
    const bool add_inputs = seed % 2 == 0;
    const DeltaModels models = delta_models({.x = c.x.view(),
                                             .slots = c.slots,
                                             .slices = c.slices(),
                                             .offset_start = kOffset,
                                             .add_inputs = add_inputs,
                                             .y = c.y.view()},
                                            c.arithmetic, c.factor);
    EXPECT_EQ(models.num_columns, 20);
    EXPECT_EQ(models.groups[3], 0);
    for (int64_t t = 0, offset = kOffset; t < 5; ++t, offset = kOffset) {
      std::vector<bool> covered(20);
      for (size_t i = 0; i < 2; ++i) {
        std::vector<RandomNumber> h;
        for (int64_t j = 0; j < c.rank(i, t); ++j) {
          const Sum sum =
              sum_of(c.row(t), c.a_of(i, t, j), c.arithmetic.num_h_parts - 1, c.arithmetic);
          h.push_back(rounded(sum.number, sum.partial, c.arithmetic, c.factor.has_value()));
        }
        for (int64_t n = 0; n < c.num_out(i) && !h.empty(); ++n) {
          DeltaModel expected = c.model(h, i, t, n, double(c.num_in), c.arithmetic);
          if (add_inputs) expected.base = c.y.get(t, offset + n);
          expect_equal(models.at(t, offset + n), expected);
          covered[size_t(offset + n)] = true;
        }
        offset += c.num_out(i);
      }
      for (int64_t n = 0; n < 20; ++n) {
        EXPECT_EQ(models.at(t, n).has_value(), covered[size_t(n)]) << t << " " << n;
      }
    }
    if (HasFailure()) return;
  }
}

// Rows of one slot that are alike but for the first, or but for the last number.
TEST(DeltaModels, GroupsAreOfWholeRows) {
  Case c(1);
  c.x = Tensor(Dtype::f32, {5, 8});
  c.x.set(1, 1, 0), c.x.set(1, 2, 7), c.x.set(1, 4, 7);
  c.a[0] = Tensor(Dtype::f32, {3, 6, 8});
  c.b[0] = Tensor(Dtype::f32, {3, 5, 6});
  c.slots = {1, 1, 1, 1, 1};
  c.arithmetic.weight = Dtype::f32;
  const DeltaModels models =
      delta_models({.x = c.x.view(), .slots = c.slots, .slices = {c.slices()[0]}, .y = c.y.view()},
                   c.arithmetic);
  EXPECT_EQ(models.groups, (std::vector<int64_t>{0, 1, 2, 0, 2}));
}

TEST(DeltaModels, OfShrinkAreTheDefinition) {
  for (uint64_t seed = 0; seed < kCases / 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Case c(seed);
    Tensor h(Dtype::f32, {2, 5, 7});
    ShrinkArgs args{.x = c.x.view(), .slots = c.slots, .slices = {}, .h = h.view()};
    for (const LoraSlice& slice : c.slices()) args.slices.push_back({slice.a, slice.ranks});
    const DeltaModels models = delta_models(args, c.arithmetic);
    EXPECT_EQ(models.num_columns, 7);
    EXPECT_EQ(models.groups, (std::vector<int64_t>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4}));
    const double smallest = c.arithmetic.flushes_subnormals ? 0x1p-125 : 0x1p-149;
    for (int64_t row = 0; row < 10; ++row) {
      const auto i = size_t(row / 5);
      const int64_t t = row % 5;
      for (int64_t j = 0; j < 7; ++j) {
        ASSERT_EQ(models.at(row, j).has_value(), j < c.rank(i, t));
        if (j >= c.rank(i, t)) continue;
        const RandomNumber h_j = sum_of(c.row(t), c.a_of(i, t, j), 0, c.arithmetic).number;
        expect_equal(models.at(row, j),
                     {.delta = h_j.value,
                      .mean = std::fabs(h_j.mean) + smallest * double(c.num_in),
                      .deviation = std::sqrt(h_j.variance + squared(h_j.operands))});
      }
    }
    if (HasFailure()) return;
  }
}

// h is what the buffer holds: nothing of it is rounded again, unless B asks for it.
TEST(DeltaModels, OfExpandAreTheDefinition) {
  for (uint64_t seed = 0; seed < kCases / 2; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Case c(seed);
    const Tensor h = c.drawn.tensor(Dtype::f32, {2, 5, 6}, 1);
    Arithmetic how = c.arithmetic;
    ExpandArgs args{.h = h.view(),
                    .slots = c.slots,
                    .slices = {},
                    .offset_start = kOffset,
                    .add_inputs = seed % 2 == 0,
                    .y = c.y.view()};
    for (const LoraSlice& s : c.slices()) args.slices.push_back({s.b, s.ranks, s.scalings});
    const DeltaModels models = delta_models(args, how, c.factor);
    EXPECT_EQ(models.groups, (std::vector<int64_t>{0, 1, 2, 3, 4}));
    if (how.mode.h == IntermediateMode::store_as_x) how.mode.h = IntermediateMode::fp32;
    for (int64_t t = 0, offset = kOffset; t < 5; ++t, offset = kOffset) {
      for (size_t i = 0; i < 2; ++i) {
        std::vector<RandomNumber> exact;
        for (int64_t j = 0; j < c.rank(i, t); ++j) {
          exact.push_back(
              rounded({.value = h.get(int64_t(i), t, j)}, 0, how, c.factor.has_value()));
        }
        for (int64_t n = 0; n < c.num_out(i); ++n) {
          ASSERT_EQ(models.at(t, offset + n).has_value(), !exact.empty());
          if (exact.empty()) continue;
          DeltaModel expected = c.model(exact, i, t, n, 0, how);
          if (args.add_inputs) expected.base = c.y.get(t, offset + n);
          expect_equal(models.at(t, offset + n), expected);
        }
        offset += c.num_out(i);
      }
    }
    if (HasFailure()) return;
  }
}

TEST(DeltaModels, OfEmbeddingAreTheDefinition) {
  for (uint64_t seed = 0; seed < kCases / 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Case c(seed);
    c.factor.reset();
    const std::vector<int64_t> ids{0, 0, 0, 0, c.num_in - 1};
    Tensor y = c.drawn.tensor(c.y.dtype(), {5, 7}, 1);
    const DeltaModels models = delta_models(
        {.token_ids = ids, .slots = c.slots, .slice = c.slices()[1], .y = y.view()}, c.arithmetic);
    EXPECT_EQ(models.num_columns, 7);
    EXPECT_EQ(models.groups, (std::vector<int64_t>{0, 1, 2, 0, 4}));
    for (int64_t t = 0; t < 5; ++t) {
      std::vector<RandomNumber> h;
      for (int64_t j = 0; j < c.rank(1, t); ++j) {
        const double v = c.a[1].get(c.slots[size_t(t)], j, ids[size_t(t)]);
        h.push_back(rounded({.value = v}, 0, c.arithmetic, false));
      }
      for (int64_t n = 0; n < 7; ++n) {
        ASSERT_EQ(models.at(t, n).has_value(), !h.empty());
        if (h.empty()) continue;
        DeltaModel expected = c.model(h, 1, t, n, 0, c.arithmetic);
        expected.base = y.get(t, n);
        expect_equal(models.at(t, n), expected);
      }
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace loratory::reference
