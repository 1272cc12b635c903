#include "fuzz/support/quantized_case.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <ostream>

#include "fuzz/support/draw.hpp"
#include "reference/layout/batch_layout.hpp"

namespace loratory::reference {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

enum Stream : uint64_t {
  kSlots,
  kWidths,
  kRanks,
  kScalings,
  kBlocks,
  kKinds,
  kX,
  kXScale,
  kH,
  kHScale,
  kY,
  kA = 100,
  kAScale = 200,
  kB = 300,
  kBScale = 400,
};

// Draws the tensors of one case.
struct Filler {
  const QuantizedCase& c;
  Fill fill;

  int64_t pick(uint64_t stream, int64_t index, int64_t count) const {
    return int64_t(random_bits(c.seed, stream, uint64_t(index)) % uint64_t(count));
  }
  double real(uint64_t stream, int64_t index) const {
    return (double(random_bits(c.seed, stream, uint64_t(index)) >> 12) * 0x1p-52 - 0.5) * 4;
  }
  void numbers(Tensor& t, uint64_t stream) const {
    for (int64_t i = 0; i < num_numbers(t); ++i) {
      const double integer = double(pick(stream, i, 5) - 2);
      const double large = t.dtype() == Dtype::i8 ? 64 * real(stream, i) : real(stream, i);
      set_number(t, i, fill == Fill::small_integers ? integer : large);
    }
  }
  void factors(Tensor& t, uint64_t stream) const {
    constexpr double kPowers[] = {0.5, 1, 2, 4};
    for (int64_t i = 0; i < num_numbers(t); ++i) {
      const double factor = 0.01 + std::fabs(real(stream, i)) / 7;
      set_number(t, i, fill == Fill::small_integers ? kPowers[pick(stream, i, 4)] : factor);
    }
  }
};

// What no operation may read. i8 has no NaN; there the factors alone show a wrong read.
void poison(Tensor& t, int64_t index) { set_number(t, index, t.dtype() == Dtype::i8 ? 127 : kNan); }

int64_t groups(int64_t size, int64_t group) { return (size + group - 1) / group; }

Extents weight_scale_shape(Pair pair, const Extents& bits, const BlockSize& block) {
  if (pair == Pair::tensor_tensor || pair == Pair::tensor_token) return {bits[0]};
  if (pair != Pair::block) return {bits[0], bits[1]};
  return {bits[0], groups(bits[1], block.n), groups(bits[2], block.k)};
}

// Bits and factors of one slot beyond `rows` x `columns`.
void poison_weight(Tensor& bits, Tensor& scale, int64_t slot, int64_t rows, int64_t columns,
                   const BlockSize& block) {
  const Extents& shape = bits.shape();
  for (int64_t i = 0; i < shape[1] * shape[2]; ++i) {
    if (i / shape[2] >= rows || i % shape[2] >= columns) {
      poison(bits, slot * shape[1] * shape[2] + i);
    }
  }
  const bool is_empty = rows == 0 || columns == 0;
  const Extents& factors = scale.shape();
  if (factors.size() == 1) {
    if (is_empty) scale.set(kNan, slot);
    return;
  }
  for (int64_t n = 0; n < factors[1]; ++n) {
    const bool row_out = n * (factors.size() == 3 ? block.n : 1) >= rows;
    if (factors.size() == 2) {
      if (is_empty || row_out) scale.set(kNan, slot, n);
      continue;
    }
    for (int64_t g = 0; g < factors[2]; ++g) {
      if (is_empty || row_out || g * block.k >= columns) scale.set(kNan, slot, n, g);
    }
  }
}

// Of rows of `columns` numbers, what lies beyond widths[row].
void poison_activations(Tensor& bits, std::optional<Tensor>& scale, int64_t lead_axes,
                        const std::vector<int64_t>& widths, int64_t block_k) {
  const auto num_rows = int64_t(widths.size());
  const int64_t columns = bits.shape().back();
  for (int64_t i = 0; i < num_rows * columns; ++i) {
    if (i % columns >= widths[size_t(i / columns)]) poison(bits, i);
  }
  if (!scale || int64_t(scale->shape().size()) == lead_axes) return;
  const int64_t num_groups = scale->shape().back();
  for (int64_t i = 0; i < num_rows * num_groups; ++i) {
    const int64_t begin = i % num_groups * block_k;
    if (begin >= widths[size_t(i / num_groups)]) set_number(*scale, i, kNan);
  }
}

std::optional<Tensor> activation_scale(const QuantizedCase& c, Extents lead, int64_t columns,
                                       int64_t block_k) {
  if (!c.is_w8a8()) return std::nullopt;
  if (!c.is_by_tensor()) {
    lead.push_back(c.num_tokens);
    lead.push_back(c.pair_value() == Pair::block ? groups(columns, block_k) : 1);
  }
  return Tensor(Dtype::f32, lead);
}

QuantizedCase random_case() {
  // At full size from the first case on: small sizes would draw few modes but the first.
  const auto size = [](int low, int high) {
    return rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
  };
  using Case = QuantizedCase;
  return *rc::gen::build<Case>(
      rc::gen::set(&Case::seed, sim::seeds()), rc::gen::set(&Case::num_tokens, size(0, 7)),
      rc::gen::set(&Case::num_in, size(1, 17)), rc::gen::set(&Case::num_slices, size(1, 3)),
      rc::gen::set(&Case::max_loras, size(1, 3)), rc::gen::set(&Case::max_rank, size(1, 8)),
      rc::gen::set(&Case::weight, size(0, 2)), rc::gen::set(&Case::activation, size(0, 3)),
      rc::gen::set(&Case::pair, size(0, 4)));
}

bool is_square(int64_t rows, int64_t columns, const BlockSize& block) {
  return groups(rows, block.n) == groups(columns, block.k);
}

}  // namespace

Dtype QuantizedCase::weight_dtype() const { return Dtype(int(Dtype::f8_e4m3fn) + weight); }

Dtype QuantizedCase::activation_dtype() const {
  if (!is_w8a8()) return Dtype(activation);
  if (weight_dtype() == Dtype::i8) return Dtype::i8;
  return random_bits(seed, kKinds, 0) % 2 == 0 ? Dtype::f8_e4m3fn : Dtype::f8_e5m2;
}

std::ostream& operator<<(std::ostream& out, const QuantizedCase& c) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  return out << fmt::format(
             "REPRO: LORATORY_CASE={}:{}:{}:{}:{}:{}:{}:{}:{} <this binary> --gtest_filter={}.{}",
             c.seed, c.num_tokens, c.num_in, c.num_slices, c.max_loras, c.max_rank, c.weight,
             c.activation, c.pair, test->test_suite_name(), test->name());
}

QuantizedCase any_quantized_case() {
  QuantizedCase c;
  if (const char* text = std::getenv("LORATORY_CASE"); text != nullptr) {
    unsigned long long seed = 0;
    RC_ASSERT(std::sscanf(text, "%llu:%d:%d:%d:%d:%d:%d:%d:%d", &seed, &c.num_tokens, &c.num_in,
                          &c.num_slices, &c.max_loras, &c.max_rank, &c.weight, &c.activation,
                          &c.pair) == 9);
    c.seed = seed;
  } else {
    c = random_case();
  }
  RC_LOG() << c << '\n';
  const QuantizedData data(c, Fill::reals);
  const bool is_block = c.pair_value() == Pair::block;
  RC_CLASSIFY(c.num_tokens == 0, "no tokens");
  RC_CLASSIFY(c.is_w8a8(), "w8a8");
  RC_CLASSIFY(c.weight_dtype() == Dtype::i8, "i8");
  RC_CLASSIFY(is_block, "block");
  RC_CLASSIFY(is_block && !is_square(c.max_rank, c.num_in, data.a_block), "grid not square");
  RC_CLASSIFY(c.num_slices > 1 && data.num_out.front() != data.num_out.back(), "ragged slices");
  return c;
}

QuantizedData::QuantizedData(const QuantizedCase& c, Fill fill)
    : x(c.activation_dtype(), {c.num_tokens, c.num_in}),
      h(c.activation_dtype(), {c.num_slices, c.num_tokens, c.max_rank}),
      y(Dtype(random_bits(c.seed, kKinds, 1) % 3), {0, 0}) {
  const Filler filler{c, fill};
  add_inputs = filler.pick(kKinds, 2, 4) != 0;
  sum = SumMode(filler.pick(kKinds, 3, 2));
  if (c.pair_value() == Pair::block) {
    a_block = {1 + filler.pick(kBlocks, 0, 4), 1 + filler.pick(kBlocks, 1, 6)};
    b_block = {1 + filler.pick(kBlocks, 2, 4), 1 + filler.pick(kBlocks, 3, 4)};
  }
  for (int t = 0; t < c.num_tokens; ++t) {
    slots.push_back(int32_t(filler.pick(kSlots, t, c.max_loras + 1)) - 1);
  }
  int64_t columns = 0;
  for (int i = 0; i < c.num_slices; ++i) {
    const auto stream = uint64_t(i);
    num_out.push_back(1 + filler.pick(kWidths, i, 9));
    columns += num_out.back();
    a.emplace_back(c.weight_dtype(), Extents{c.max_loras, c.max_rank, c.num_in});
    b.emplace_back(c.weight_dtype(), Extents{c.max_loras, num_out.back(), c.max_rank});
    a_scale.emplace_back(Dtype::f32, weight_scale_shape(c.pair_value(), a.back().shape(), a_block));
    b_scale.emplace_back(Dtype::f32, weight_scale_shape(c.pair_value(), b.back().shape(), b_block));
    filler.numbers(a.back(), kA + stream), filler.factors(a_scale.back(), kAScale + stream);
    filler.numbers(b.back(), kB + stream), filler.factors(b_scale.back(), kBScale + stream);
    ranks.emplace_back(), scalings.emplace_back();
    for (int s = 0; s < c.max_loras; ++s) {
      const int64_t index = i * c.max_loras + s;
      const int64_t rank = filler.pick(kRanks, index, c.max_rank + 1);
      ranks.back().push_back(int32_t(rank));
      constexpr float kPowers[] = {0.5F, 1, 2, -1, 4};
      const int64_t scaling = filler.pick(kScalings, index, 5);
      scalings.back().push_back(fill == Fill::small_integers ? kPowers[scaling]
                                                             : 0.3F + 0.37F * float(scaling));
      poison_weight(a.back(), a_scale.back(), s, rank, c.num_in, a_block);
      poison_weight(b.back(), b_scale.back(), s, rank == 0 ? 0 : num_out.back(), rank, b_block);
    }
  }
  y = Tensor(y.dtype(), {c.num_tokens, columns});
  x_scale = activation_scale(c, {}, c.num_in, a_block.k);
  h_scale = activation_scale(c, {c.num_slices}, c.max_rank, b_block.k);
  filler.numbers(x, kX), filler.numbers(h, kH), filler.numbers(y, kY);
  if (x_scale) filler.factors(*x_scale, kXScale);
  if (h_scale) filler.factors(*h_scale, kHScale);
  std::vector<int64_t> x_widths, h_widths;
  for (const int32_t slot : slots) x_widths.push_back(slot == kBaseSlot ? 0 : c.num_in);
  for (int64_t i = 0; i < c.num_slices; ++i) {
    for (int64_t t = 0; t < c.num_tokens; ++t) h_widths.push_back(rank(i, t));
  }
  poison_activations(x, x_scale, 0, x_widths, a_block.k);
  poison_activations(h, h_scale, 1, h_widths, b_block.k);
}

QuantizedShrinkArgs QuantizedData::shrink_args(Tensor& out) {
  QuantizedShrinkArgs args{.x = x.view(),
                           .x_scale = std::nullopt,
                           .slots = slots,
                           .slices = {},
                           .block = a_block,
                           .h = out.view()};
  if (x_scale) args.x_scale = x_scale->view();
  for (size_t i = 0; i < a.size(); ++i) {
    args.slices.push_back({a[i].view(), a_scale[i].view(), ranks[i]});
  }
  return args;
}

QuantizedExpandArgs QuantizedData::expand_args() {
  QuantizedExpandArgs args{.h = h.view(),
                           .h_scale = std::nullopt,
                           .slots = slots,
                           .slices = {},
                           .block = b_block,
                           .offset_start = 0,
                           .add_inputs = add_inputs,
                           .sum = sum,
                           .y = y.view()};
  if (h_scale) args.h_scale = h_scale->view();
  for (size_t i = 0; i < b.size(); ++i) {
    args.slices.push_back({b[i].view(), b_scale[i].view(), ranks[i], scalings[i]});
  }
  return args;
}

QuantizedLinearArgs QuantizedData::linear_args() {
  QuantizedLinearArgs args{.x = x.view(),
                           .x_scale = std::nullopt,
                           .slots = slots,
                           .slices = {},
                           .a_block = a_block,
                           .b_block = b_block,
                           .offset_start = 0,
                           .add_inputs = add_inputs,
                           .sum = sum,
                           .y = y.view()};
  if (x_scale) args.x_scale = x_scale->view();
  for (size_t i = 0; i < a.size(); ++i) {
    args.slices.push_back(
        {a[i].view(), a_scale[i].view(), b[i].view(), b_scale[i].view(), ranks[i], scalings[i]});
  }
  return args;
}

int64_t QuantizedData::rank(int64_t slice, int64_t t) const {
  return slot(t) == kBaseSlot ? 0 : ranks[size_t(slice)][size_t(slot(t))];
}

}  // namespace loratory::reference
