// LoRA with 8-bit weights: P19 in every mode, format and group grid, and what P2, P5, P7 say of it.
// Exact lane: small integers under factors that are powers of two, against the unquantised
// operations on dequantised numbers, bit for bit. Bounded lane: reals, against the oracle of each
// stage. Everything that no operation may read is NaN in every case, factors included (P13).
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "fuzz/support/lora_case.hpp"
#include "fuzz/support/quantized_case.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "reference/base/input_error.hpp"
#include "reference/layout/batch_layout.hpp"
#include "reference/quantized/oracle.hpp"
#include "reference/quantized/quantize.hpp"

namespace loratory::reference {
namespace {

using check::Case;
using check::CaseData;
using check::Fill;
using check::SliceData;
using check::StepData;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The worst error/bound of a run, printed when the program ends.
struct Worst {
  const char* name;
  double ratio = 0;
  ~Worst() { std::printf("worst error/bound of %s: %.3f\n", name, ratio); }
  void see(double r) { ratio = std::max(ratio, r); }
};

uint32_t bits_at(const Tensor& t, int64_t row, int64_t column) {
  uint32_t bits = 0;
  std::memcpy(&bits, t.view().address(row, column), size_bytes(t.dtype()));
  return bits;
}

// Which slice a column belongs to, and which of its columns it is.
std::pair<int64_t, int64_t> slice_of(const CaseData& data, int64_t column) {
  size_t i = 0;
  for (; column >= data.shape.num_out[i]; ++i) column -= data.shape.num_out[i];
  return {int64_t(i), column};
}

bool is_covered(const CaseData& data, int64_t t, int64_t column) {
  return rank_of(data, slice_of(data, column).first, t) > 0;
}

int64_t num_slices(const Case& c) { return int64_t(c.num_out.size()); }

Tensor nan_h(const Case& c, Dtype dtype) {
  Tensor h(dtype, {num_slices(c), c.num_tokens, c.max_rank});
  for (int64_t i = 0; i < num_numbers(h); ++i) set_number(h, i, kNan);
  return h;
}

// The factor of one weight, by the shapes of [1.44].
double weight_factor(const Tensor& scale, const BlockSize& block, int64_t s, int64_t n, int64_t k) {
  if (scale.shape().size() == 1) return scale.get(s);
  if (scale.shape().size() == 2) return scale.get(s, n);
  return scale.get(s, n / block.n, k / block.k);
}

double activation_factor(const std::optional<Tensor>& scale, int64_t lead, int64_t t, int64_t c,
                         int64_t block_k) {
  if (!scale) return 1;
  const Extents& shape = scale->shape();
  if (shape.empty()) return number(*scale, 0);
  if (shape.size() == 1) return scale->get(lead);
  const int64_t g = block_k > 0 ? c / block_k : 0;
  return shape.size() == 2 ? scale->get(t, g) : scale->get(lead, t, g);
}

// The weights of a slice in fp32, exact if the factors are powers of two.
Tensor dequantised(const Tensor& bits, const Tensor& scale, const BlockSize& block) {
  Tensor out(Dtype::f32, bits.shape());
  for (int64_t s = 0; s < bits.shape()[0]; ++s) {
    for (int64_t n = 0; n < bits.shape()[1]; ++n) {
      for (int64_t k = 0; k < bits.shape()[2]; ++k) {
        out.set(bits.get(s, n, k) * weight_factor(scale, block, s, n, k), s, n, k);
      }
    }
  }
  return out;
}

// [1.42]-[1.44] [1.45] [1.48] P19: shrink of 8-bit numbers is shrink of what they mean.
RC_GTEST_PROP(Quantized, P19ShrinkIsShrinkOfTheDequantised, ()) {
  const Case c = any_quantized_case(LORATORY_OP_SHRINK, Fill::small_integers);
  CaseData data(c);
  const StepData& step = data.step;
  Tensor expected = *step.h;
  shrink_quantized(shrink_args(data));
  Tensor x(Dtype::f32, step.x->shape());
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t k = 0; k < c.num_in; ++k) {
      x.set(step.x->get(t, k) * activation_factor(step.x_scale, 0, t, k, data.a_block_k), t, k);
    }
  }
  std::vector<Tensor> a;
  ShrinkArgs args{.x = x.view(), .slots = step.slots, .slices = {}, .h = expected.view()};
  for (const SliceData& slice : data.slices) {
    a.push_back(dequantised(*slice.a, *slice.a_scale, a_block(data)));
  }
  for (size_t i = 0; i < a.size(); ++i) args.slices.push_back({a[i].view(), data.slices[i].ranks});
  shrink(args);
  RC_ASSERT(same_bits(*step.h, expected));
  RC_CLASSIFY(c.weight == Dtype::f8_e5m2 && num_slices(c) == 3, "e5m2, three slices");
}

// [1.13] [1.42]-[1.46] [1.48] P19: the same of expand; the scaling enters here, once.
RC_GTEST_PROP(Quantized, P19ExpandIsExpandOfTheDequantised, ()) {
  const Case c = any_quantized_case(LORATORY_OP_EXPAND, Fill::small_integers);
  CaseData data(c);
  const StepData& step = data.step;
  Tensor expected = *step.y, h(Dtype::f32, step.h->shape());
  for (int64_t i = 0; i < num_slices(c); ++i) {
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      for (int64_t j = 0; j < c.max_rank; ++j) {
        h.set(step.h->get(i, t, j) * activation_factor(step.h_scale, i, t, j, data.b_block_k), i, t,
              j);
      }
    }
  }
  std::vector<Tensor> b;
  ExpandArgs args{.h = h.view(),
                  .slots = step.slots,
                  .slices = {},
                  .offset_start = 0,
                  .add_inputs = c.add_inputs,
                  .mode = {.sum = c.mode.sum},
                  .y = expected.view()};
  for (const SliceData& slice : data.slices) {
    b.push_back(dequantised(*slice.b, *slice.b_scale, b_block(data)));
  }
  for (size_t i = 0; i < b.size(); ++i) {
    args.slices.push_back({b[i].view(), data.slices[i].ranks, data.slices[i].scalings});
  }
  expand(args);
  expand_quantized(expand_args(data));
  RC_ASSERT(same_bits(*step.y, expected));
}

// [1.47] P5: the shrink against its oracle, into each dtype.
RC_GTEST_PROP(Quantized, P5ShrinkLiesWithinItsBound, ()) {
  static Worst worst{"shrink_quantized"};
  const Case c = any_quantized_case(LORATORY_OP_SHRINK, Fill::reals);
  CaseData data(c);
  Tensor h = nan_h(c, Dtype(random_bits(c.seed, 999, 0) % 3));
  QuantizedShrinkArgs args = shrink_args(data);
  args.h = h.view();
  const StageOracle oracle = shrink_oracle(args);
  shrink_quantized(args);
  for (int64_t i = 0; i < num_slices(c); ++i) {
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      for (int64_t j = 0; j < c.max_rank; ++j) {
        const auto& facts = oracle.at(i * c.num_tokens + t, j);
        RC_ASSERT(facts.has_value() == (j < rank_of(data, i, t)));
        RC_ASSERT(std::isnan(h.get(i, t, j)) == !facts.has_value());
        if (!facts) continue;
        const double ratio = error_over_bound(h.get(i, t, j), *facts, {.out = h.dtype()});
        worst.see(ratio);
        RC_ASSERT(ratio <= 1.0);
      }
    }
  }
}

// Every covered element of y lies within its bound, and no other has one.
void expect_covered_within_bound(const CaseData& data, const StageOracle& oracle,
                                 const Arithmetic& arithmetic, Worst& worst) {
  const Tensor& y = *data.step.y;
  for (int64_t t = 0; t < y.shape()[0]; ++t) {
    for (int64_t n = 0; n < y.shape()[1]; ++n) {
      RC_ASSERT(oracle.at(t, n).has_value() == is_covered(data, t, n));
      if (!oracle.at(t, n)) continue;
      const double ratio = error_over_bound(y.get(t, n), *oracle.at(t, n), arithmetic);
      worst.see(ratio);
      RC_ASSERT(ratio <= 1.0);
    }
  }
}

// [1.47] P5: the expand from the h it is given.
RC_GTEST_PROP(Quantized, P5ExpandLiesWithinItsBound, ()) {
  static Worst worst{"expand_quantized"};
  const Case c = any_quantized_case(LORATORY_OP_EXPAND, Fill::reals);
  CaseData data(c);
  const QuantizedExpandArgs args = expand_args(data);
  const Arithmetic arithmetic{.mode = {.sum = c.mode.sum}, .out = data.step.y->dtype()};
  const StageOracle oracle = expand_oracle(args);
  expand_quantized(args);
  expect_covered_within_bound(data, oracle, arithmetic, worst);
}

// [1.47] P5: both stages, with the h that the reference makes for itself.
RC_GTEST_PROP(Quantized, P5LinearLiesWithinItsBound, ()) {
  static Worst worst{"lora_linear_quantized"};
  const Case c = any_quantized_case(LORATORY_OP_LINEAR, Fill::reals);
  CaseData data(c);
  const QuantizedLinearArgs args = linear_args(data);
  const Arithmetic arithmetic{.mode = {.sum = c.mode.sum}, .out = data.step.y->dtype()};
  const StageOracle oracle = linear_oracle(args, arithmetic);
  lora_linear_quantized(args);
  expect_covered_within_bound(data, oracle, arithmetic, worst);
}

// The activations of one stage, of one slice.
struct Activations {
  ConstTensorView v;
  const std::optional<Tensor>& scale;
  int64_t slice, num_columns;
};

// [1.46] in scalars: one element of a stage.
float stage_element(const Tensor& w, const Tensor& w_scale, const BlockSize& block, int64_t s,
                    int64_t n, const Activations& of, int64_t t) {
  const int64_t width = block.k > 0 ? block.k : of.num_columns;
  const bool is_integer = w.dtype() == Dtype::i8 && of.v.dtype == Dtype::i8;
  float sum = 0;
  for (int64_t begin = 0; begin < of.num_columns; begin += width) {
    float part = 0;
    int64_t exact = 0;
    for (int64_t c = begin; c < std::min(begin + width, of.num_columns); ++c) {
      part += float(w.get(s, n, c)) * float(of.v.get(t, c));
      if (is_integer) exact += int64_t(w.get(s, n, c)) * int64_t(of.v.get(t, c));
    }
    if (is_integer) part = float(exact);
    if (of.scale) part *= float(activation_factor(of.scale, of.slice, t, begin, block.k));
    part *= float(weight_factor(w_scale, block, s, n, begin));
    sum = block.k > 0 ? sum + part : part;
  }
  return sum;
}

// [1.46] P19: where the factors enter, bit for bit: one sum, then activations, then weights; group
// by group with blocks.
RC_GTEST_PROP(Quantized, P19EveryRoundingOfShrinkIsWhereItShouldBe, ()) {
  Case c = any_quantized_case(LORATORY_OP_SHRINK, Fill::reals);
  c.h = Dtype(random_bits(c.seed, 999, 0) % 3);
  if (random_bits(c.seed, 999, 3) % 4 == 0) c.fill = Fill::small_integers;  // zeros of both signs
  CaseData data(c);
  const StepData& step = data.step;
  shrink_quantized(shrink_args(data));
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t i = 0; i < num_slices(c); ++i) {
      const SliceData& slice = data.slices[size_t(i)];
      for (int64_t j = 0; j < rank_of(data, i, t); ++j) {
        const float sum =
            stage_element(*slice.a, *slice.a_scale, a_block(data), step.slots[size_t(t)], j,
                          {step.x->view(), step.x_scale, 0, c.num_in}, t);
        RC_ASSERT(step.h->get(i, t, j) == round_to(c.h, sum));
        RC_ASSERT(std::signbit(step.h->get(i, t, j)) == std::signbit(sum));
      }
    }
  }
}

// [1.46] P19: the same of expand. The scaling multiplies what is left, once.
RC_GTEST_PROP(Quantized, P19EveryRoundingOfExpandIsWhereItShouldBe, ()) {
  Case c = any_quantized_case(LORATORY_OP_EXPAND, Fill::reals);
  if (random_bits(c.seed, 999, 3) % 4 == 0) c.fill = Fill::small_integers;
  CaseData data(c);
  const StepData& step = data.step;
  const Tensor base = *step.y;
  expand_quantized(expand_args(data));
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t column = 0; column < c.num_columns(); ++column) {
      if (!is_covered(data, t, column)) continue;
      const auto [i, n] = slice_of(data, column);
      const SliceData& slice = data.slices[size_t(i)];
      const int32_t slot = step.slots[size_t(t)];
      const Activations h{step.h->view()[i], step.h_scale, i, rank_of(data, i, t)};
      float d = slice.scalings[size_t(slot)] *
                stage_element(*slice.b, *slice.b_scale, b_block(data), slot, n, h, t);
      if (c.mode.sum == SumMode::two_round) d = float(round_to(c.y, d));
      const float y = c.add_inputs ? float(base.get(t, column)) + d : d;
      RC_ASSERT(bits_at(*step.y, t, column) == encode(c.y, y));
    }
  }
}

// P2 P13 P16 P24 [1.5] [1.6]: uncovered elements and what lies around y keep their bits; without
// add_inputs the old y is not read.
RC_GTEST_PROP(Quantized, P2UncoveredElementsKeepTheirBits, ()) {
  const Case c = any_quantized_case(LORATORY_OP_LINEAR, Fill::reals);
  CaseData data(c);
  const int64_t offset = int64_t(random_bits(c.seed, 999, 1) % 4);
  const int64_t width = c.num_columns() + offset + 2;
  Tensor wide(c.y, {c.num_tokens, width});
  for (int64_t i = 0; i < num_numbers(wide); ++i) set_number(wide, i, i % 2 == 0 ? kNan : -0.0);
  const auto covered = [&](int64_t t, int64_t n) {
    const bool inside = n >= offset && n < offset + c.num_columns();
    return inside && is_covered(data, t, n - offset);
  };
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t n = 0; c.add_inputs && n < width; ++n) {
      if (covered(t, n)) wide.set(1, t, n);
    }
  }
  const Tensor before = wide;
  QuantizedLinearArgs args = linear_args(data);
  args.offset_start = offset;
  args.y = wide.view();
  lora_linear_quantized(args);
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t n = 0; n < width; ++n) {
      if (covered(t, n)) {
        RC_ASSERT(!std::isnan(wide.get(t, n)));  // i8 in f16 may overflow
      } else {
        RC_ASSERT(bits_at(wide, t, n) == bits_at(before, t, n));
      }
    }
  }
}

// P7 P6: a row does not depend on its neighbours, but for the factors that they share.
RC_GTEST_PROP(Quantized, P7RowsDoNotDependOnTheBatch, ()) {
  const Case c = any_quantized_case(LORATORY_OP_LINEAR, Fill::reals);
  RC_PRE(c.num_tokens > 0);
  CaseData data(c);
  if (c.activation_scales == LORATORY_SCALES_TENSOR) {
    RC_DISCARD("h has one factor for the batch");
  }
  const auto kept = int64_t(random_bits(c.seed, 999, 2) % uint64_t(c.num_tokens));
  CaseData alone = data;
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    if (t != kept) alone.step.slots[size_t(t)] = kBaseSlot;
  }
  lora_linear_quantized(linear_args(data));
  lora_linear_quantized(linear_args(alone));
  for (int64_t n = 0; n < c.num_columns(); ++n) {
    RC_ASSERT(bits_at(*alone.step.y, kept, n) == bits_at(*data.step.y, kept, n));
  }
}

// The largest of the numbers that share a factor with (t, j), looked for by hand.
double absmax_of(const CaseData& shrunk, int64_t i, int64_t t, int64_t j) {
  const Case& c = shrunk.shape;
  double absmax = 0;
  for (int64_t row = 0; row < c.num_tokens; ++row) {
    for (int64_t column = 0; column < rank_of(shrunk, i, row); ++column) {
      const bool same_row = c.activation_scales == LORATORY_SCALES_TENSOR || row == t;
      const bool is_block = c.activation_scales == LORATORY_SCALES_BLOCK;
      const bool same_group = !is_block || column / shrunk.b_block_k == j / shrunk.b_block_k;
      if (!same_row || !same_group) continue;
      absmax = std::max(absmax, std::fabs(shrunk.step.h->get(i, row, column)));
    }
  }
  return absmax;
}

// [1.47]: the whole stage is shrink, the quantisation of h, expand, each as above.
RC_GTEST_PROP(Quantized, P19TheLinearIsItsStages, ()) {
  const Case c = any_quantized_case(LORATORY_OP_LINEAR, Fill::reals);
  CaseData whole(c), shrunk(with_operation(c, LORATORY_OP_SHRINK));
  CaseData expanded(with_operation(c, LORATORY_OP_EXPAND));
  RC_ASSERT(same_bits(*whole.step.y, *expanded.step.y));
  lora_linear_quantized(linear_args(whole));
  shrink_quantized(shrink_args(shrunk));
  StepData& step = expanded.step;
  for (int64_t i = 0; i < num_slices(c); ++i) {
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      for (int64_t j = 0; j < rank_of(expanded, i, t); ++j) {
        const double h = shrunk.step.h->get(i, t, j);
        if (!c.has_quantized_activations()) {
          step.h->set(h, i, t, j);
          continue;
        }
        const auto absmax = float(absmax_of(shrunk, i, t, j));
        const float scale = absmax == 0 ? 1 : absmax / float(largest_finite(c.x));
        step.h->set(round_to(c.x, float(h) / scale, Overflow::saturate), i, t, j);
        const int64_t g = c.activation_scales == LORATORY_SCALES_BLOCK ? j / expanded.b_block_k : 0;
        if (step.h_scale->shape().size() == 1) step.h_scale->set(scale, i);
        if (step.h_scale->shape().size() == 3) step.h_scale->set(scale, i, t, g);
      }
    }
  }
  expand_quantized(expand_args(expanded));
  RC_ASSERT(same_bits(*whole.step.y, *step.y));
}

// [1.47] [1.50]: bits are nearest to v / factor, no factor is below 2^-126, the largest number
// meets the largest of the format; nothing beyond the widths is read or written.
RC_GTEST_PROP(Quantized, QuantisedNumbersAreNearest, ()) {
  const sim::SeededCase c = sim::any_seeded_case(40);
  sim::Draw draw(c.seed);
  const Dtype dtype = draw.one_of({Dtype::f8_e4m3fn, Dtype::f8_e5m2, Dtype::i8});
  const int64_t rows = draw.between(1, 5), columns = draw.between(1, 9), group = draw.between(1, 4);
  const int form = int(draw(3));  // tensor, token, block
  const int exponent = int(draw.one_of({0, -20, -130, -149, 100}));
  Tensor v(Dtype::f32, {rows, columns}), bits(dtype, {rows, columns});
  const Extents block{rows, (columns + group - 1) / group}, token{rows, 1};
  Tensor scale(Dtype::f32, form == 0 ? Extents{} : form == 1 ? token : block);
  std::vector<int32_t> widths;
  for (int64_t t = 0; t < rows; ++t) {
    widths.push_back(int32_t(draw(columns + 1)));
    for (int64_t k = 0; k < columns; ++k) {
      const double number = draw.one_in(4) ? -0.0 : double(draw(2001) - 1000) / 300;
      v.set(k < widths.back() ? std::ldexp(number, exponent) : kNan, t, k);
      *bits.view().address(t, k) = std::byte{0x55};
    }
  }
  quantize({.v = v.view(),
            .widths = widths,
            .group_k = form == 2 ? group : 0,
            .bits = bits.view(),
            .scale = scale.view()});
  const auto factor_of = [&](int64_t t, int64_t k) {
    if (form == 0) return float(number(scale, 0));
    return float(scale.get(t, form == 1 ? 0 : k / group));
  };
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t k = 0; k < columns; ++k) {
      if (k >= widths[size_t(t)]) {
        RC_ASSERT(bits_at(bits, t, k) == 0x55U);
        continue;
      }
      const float factor = factor_of(t, k);
      RC_ASSERT(factor >= 0x1p-126F);
      const double quotient = float(v.get(t, k)) / factor, got = bits.get(t, k);
      for (uint32_t other = 0; other < 256; ++other) {
        const double value = decode(dtype, other);
        const bool nearer = std::fabs(value - quotient) < std::fabs(got - quotient);
        RC_ASSERT(!(std::isfinite(value) && nearer));
      }
    }
  }
  double largest = 0, largest_bits = 0;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t k = 0; k < widths[size_t(t)]; ++k) {
      largest = std::max(largest, std::fabs(v.get(t, k)));
      largest_bits = std::max(largest_bits, std::fabs(bits.get(t, k)));
    }
  }
  const bool fits = largest / largest_finite(dtype) >= 0x1p-126;
  RC_CLASSIFY(largest == 0, "all zeros");
  RC_CLASSIFY(largest > 0 && !fits, "factor at its floor");
  if (fits) RC_ASSERT(largest_bits == largest_finite(dtype));
  if (largest == 0) RC_ASSERT(largest_bits == 0);
}

}  // namespace
}  // namespace loratory::reference
