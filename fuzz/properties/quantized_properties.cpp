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

#include "fuzz/support/quantized_case.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "reference/base/input_error.hpp"
#include "reference/layout/batch_layout.hpp"
#include "reference/quantized/oracle.hpp"
#include "reference/quantized/quantize.hpp"

namespace loratory::reference {
namespace {

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
std::pair<int64_t, int64_t> slice_of(const QuantizedData& data, int64_t column) {
  size_t i = 0;
  for (; column >= data.num_out[i]; ++i) column -= data.num_out[i];
  return {int64_t(i), column};
}

bool is_covered(const QuantizedData& data, int64_t t, int64_t column) {
  return data.rank(slice_of(data, column).first, t) > 0;
}

Tensor nan_h(const QuantizedCase& c, Dtype dtype) {
  Tensor h(dtype, {c.num_slices, c.num_tokens, c.max_rank});
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
  const QuantizedCase c = any_quantized_case();
  QuantizedData data(c, Fill::small_integers);
  Tensor h = nan_h(c, Dtype::f32), expected = h;
  shrink_quantized(data.shrink_args(h));
  Tensor x(Dtype::f32, data.x.shape());
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t k = 0; k < c.num_in; ++k) {
      x.set(data.x.get(t, k) * activation_factor(data.x_scale, 0, t, k, data.a_block.k), t, k);
    }
  }
  std::vector<Tensor> a;
  ShrinkArgs args{.x = x.view(), .slots = data.slots, .slices = {}, .h = expected.view()};
  for (size_t i = 0; i < data.a.size(); ++i) {
    a.push_back(dequantised(data.a[i], data.a_scale[i], data.a_block));
  }
  for (size_t i = 0; i < a.size(); ++i) args.slices.push_back({a[i].view(), data.ranks[i]});
  shrink(args);
  RC_ASSERT(same_bits(h, expected));
  RC_CLASSIFY(c.weight_dtype() == Dtype::f8_e5m2 && c.num_slices == 3, "e5m2, three slices");
}

// [1.13] [1.42]-[1.46] [1.48] P19: the same of expand; the scaling enters here, once.
RC_GTEST_PROP(Quantized, P19ExpandIsExpandOfTheDequantised, ()) {
  const QuantizedCase c = any_quantized_case();
  QuantizedData data(c, Fill::small_integers);
  Tensor expected = data.y, h(Dtype::f32, data.h.shape());
  for (int64_t i = 0; i < c.num_slices; ++i) {
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      for (int64_t j = 0; j < c.max_rank; ++j) {
        h.set(data.h.get(i, t, j) * activation_factor(data.h_scale, i, t, j, data.b_block.k), i, t,
              j);
      }
    }
  }
  std::vector<Tensor> b;
  ExpandArgs args{.h = h.view(),
                  .slots = data.slots,
                  .slices = {},
                  .offset_start = 0,
                  .add_inputs = data.add_inputs,
                  .mode = {.sum = data.sum},
                  .y = expected.view()};
  for (size_t i = 0; i < data.b.size(); ++i) {
    b.push_back(dequantised(data.b[i], data.b_scale[i], data.b_block));
  }
  for (size_t i = 0; i < b.size(); ++i) {
    args.slices.push_back({b[i].view(), data.ranks[i], data.scalings[i]});
  }
  expand(args);
  expand_quantized(data.expand_args());
  RC_ASSERT(same_bits(data.y, expected));
}

// [1.47] P5: the shrink against its oracle, into each dtype.
RC_GTEST_PROP(Quantized, P5ShrinkLiesWithinItsBound, ()) {
  static Worst worst{"shrink_quantized"};
  const QuantizedCase c = any_quantized_case();
  QuantizedData data(c, Fill::reals);
  Tensor h = nan_h(c, Dtype(random_bits(c.seed, 999, 0) % 3));
  const QuantizedShrinkArgs args = data.shrink_args(h);
  const StageOracle oracle = shrink_oracle(args);
  shrink_quantized(args);
  for (int64_t i = 0; i < c.num_slices; ++i) {
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      for (int64_t j = 0; j < c.max_rank; ++j) {
        const auto& facts = oracle.at(i * c.num_tokens + t, j);
        RC_ASSERT(facts.has_value() == (j < data.rank(i, t)));
        RC_ASSERT(std::isnan(h.get(i, t, j)) == !facts.has_value());
        if (!facts) continue;
        const double ratio = error_over_bound(h.get(i, t, j), *facts, {.out = h.dtype()});
        worst.see(ratio);
        RC_ASSERT(ratio <= 1.0);
      }
    }
  }
}

// [1.47] P5: the expand from the h it is given.
RC_GTEST_PROP(Quantized, P5ExpandLiesWithinItsBound, ()) {
  static Worst worst{"expand_quantized"};
  const QuantizedCase c = any_quantized_case();
  QuantizedData data(c, Fill::reals);
  const QuantizedExpandArgs args = data.expand_args();
  const StageOracle oracle = expand_oracle(args);
  expand_quantized(args);
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t n = 0; n < data.y.shape()[1]; ++n) {
      RC_ASSERT(oracle.at(t, n).has_value() == is_covered(data, t, n));
      if (!oracle.at(t, n)) continue;
      const Arithmetic arithmetic{.mode = {.sum = data.sum}, .out = data.y.dtype()};
      const double ratio = error_over_bound(data.y.get(t, n), *oracle.at(t, n), arithmetic);
      worst.see(ratio);
      RC_ASSERT(ratio <= 1.0);
    }
  }
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
// by group with blocks. The scaling multiplies what is left, once.
RC_GTEST_PROP(Quantized, P19EveryRoundingIsWhereItShouldBe, ()) {
  const QuantizedCase c = any_quantized_case();
  const bool is_integer = random_bits(c.seed, 999, 3) % 4 == 0;  // zeros, of both signs
  QuantizedData data(c, is_integer ? Fill::small_integers : Fill::reals);
  const Tensor base = data.y;
  Tensor h = nan_h(c, Dtype(random_bits(c.seed, 999, 0) % 3));
  shrink_quantized(data.shrink_args(h));
  expand_quantized(data.expand_args());
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t i = 0; i < c.num_slices; ++i) {
      const auto at = size_t(i);
      for (int64_t j = 0; j < data.rank(i, t); ++j) {
        const float sum = stage_element(data.a[at], data.a_scale[at], data.a_block, data.slot(t), j,
                                        {data.x.view(), data.x_scale, 0, c.num_in}, t);
        RC_ASSERT(h.get(i, t, j) == round_to(h.dtype(), sum));
        RC_ASSERT(std::signbit(h.get(i, t, j)) == std::signbit(sum));
      }
    }
    for (int64_t column = 0; column < data.y.shape()[1]; ++column) {
      if (!is_covered(data, t, column)) continue;
      const auto [i, n] = slice_of(data, column);
      const auto at = size_t(i);
      const Activations h_i{data.h.view()[i], data.h_scale, i, data.rank(i, t)};
      float d = data.scalings[at][size_t(data.slot(t))] *
                stage_element(data.b[at], data.b_scale[at], data.b_block, data.slot(t), n, h_i, t);
      if (data.sum == SumMode::two_round) d = float(round_to(data.y.dtype(), d));
      const float y = data.add_inputs ? float(base.get(t, column)) + d : d;
      RC_ASSERT(bits_at(data.y, t, column) == encode(data.y.dtype(), y));
    }
  }
}

// P2 P13 P16 P24 [1.5] [1.6]: uncovered elements and what lies around y keep their bits; without
// add_inputs the old y is not read.
RC_GTEST_PROP(Quantized, P2UncoveredElementsKeepTheirBits, ()) {
  const QuantizedCase c = any_quantized_case();
  QuantizedData data(c, Fill::reals);
  const int64_t offset = int64_t(random_bits(c.seed, 999, 1) % 4);
  const int64_t width = data.y.shape()[1] + offset + 2;
  Tensor wide(data.y.dtype(), {c.num_tokens, width});
  for (int64_t i = 0; i < num_numbers(wide); ++i) set_number(wide, i, i % 2 == 0 ? kNan : -0.0);
  const auto covered = [&](int64_t t, int64_t n) {
    const bool inside = n >= offset && n < offset + data.y.shape()[1];
    return inside && is_covered(data, t, n - offset);
  };
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t n = 0; data.add_inputs && n < width; ++n) {
      if (covered(t, n)) wide.set(1, t, n);
    }
  }
  const Tensor before = wide;
  QuantizedLinearArgs args = data.linear_args();
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
  const QuantizedCase c = any_quantized_case();
  RC_PRE(c.num_tokens > 0);
  QuantizedData data(c, Fill::reals);
  if (c.is_w8a8() && c.is_by_tensor()) {
    RC_DISCARD("h has one factor for the batch");
  }
  const auto kept = int64_t(random_bits(c.seed, 999, 2) % uint64_t(c.num_tokens));
  QuantizedData alone = data;
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    if (t != kept) alone.slots[size_t(t)] = kBaseSlot;
  }
  lora_linear_quantized(data.linear_args());
  lora_linear_quantized(alone.linear_args());
  for (int64_t n = 0; n < data.y.shape()[1]; ++n) {
    RC_ASSERT(bits_at(alone.y, kept, n) == bits_at(data.y, kept, n));
  }
}

// h of one slice and its factor for (t, j), looked for by hand; NaN where not covered.
double absmax_of(const QuantizedData& data, const QuantizedCase& c, const Tensor& h, int64_t i,
                 int64_t t, int64_t j) {
  double absmax = 0;
  for (int64_t row = 0; row < c.num_tokens; ++row) {
    for (int64_t column = 0; column < data.rank(i, row); ++column) {
      const bool same_row = c.is_by_tensor() || row == t;
      const bool is_block = c.pair_value() == Pair::block;
      const bool same_group = !is_block || column / data.b_block.k == j / data.b_block.k;
      if (same_row && same_group) absmax = std::max(absmax, std::fabs(h.get(i, row, column)));
    }
  }
  return absmax;
}

// [1.47]: the whole stage is shrink, the quantisation of h, expand, each as above.
RC_GTEST_PROP(Quantized, P19TheLinearIsItsStages, ()) {
  const QuantizedCase c = any_quantized_case();
  QuantizedData data(c, Fill::reals), whole = data;
  lora_linear_quantized(whole.linear_args());
  Tensor h = nan_h(c, Dtype::f32);
  shrink_quantized(data.shrink_args(h));
  if (!c.is_w8a8()) {
    data.h = h;
  } else {
    const Dtype dtype = c.activation_dtype();
    for (int64_t i = 0; i < c.num_slices; ++i) {
      for (int64_t t = 0; t < c.num_tokens; ++t) {
        for (int64_t j = 0; j < data.rank(i, t); ++j) {
          const auto absmax = float(absmax_of(data, c, h, i, t, j));
          const float scale = absmax == 0 ? 1 : absmax / float(largest_finite(dtype));
          data.h.set(round_to(dtype, float(h.get(i, t, j)) / scale, Overflow::saturate), i, t, j);
          const int64_t g = data.b_block.k > 0 ? j / data.b_block.k : 0;
          if (data.h_scale->shape().size() == 1) data.h_scale->set(scale, i);
          if (data.h_scale->shape().size() == 3) data.h_scale->set(scale, i, t, g);
        }
      }
    }
  }
  expand_quantized(data.expand_args());
  RC_ASSERT(same_bits(whole.y, data.y));
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
