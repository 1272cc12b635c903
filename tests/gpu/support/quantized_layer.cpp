#include "tests/gpu/support/quantized_layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "check/statistics/statistical_judge.hpp"
#include "gpu/plan/quantized_variants.hpp"
#include "reference/quantized/oracle.hpp"
#include "reference/quantized/stage_model.hpp"

namespace loratory::gpu {

using reference::BlockSize;
using reference::Dtype;
using reference::Extents;
using reference::Fill;
using reference::num_numbers;
using reference::random_bits;
using reference::set_number;
using reference::Tensor;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kUnit = 0x1p-22;       // of tensor cores
constexpr double kSplitUnit = 0x1p-17;  // of h in bf16 hi + lo

struct IndexedDraw {
  uint64_t seed;
  uint64_t stream;
  uint64_t bits(int64_t index) const { return random_bits(seed, stream, uint64_t(index)); }
  int64_t below(int64_t index, int64_t count) const {
    return int64_t(bits(index) % uint64_t(count));
  }
  double real(int64_t index) const { return (double(bits(index) >> 12) * 0x1p-52 - 0.5) * 4; }
};

template <typename T>
T one_of(const IndexedDraw& draw, int64_t index, const std::vector<T>& values) {
  return values[size_t(draw.below(index, int64_t(values.size())))];
}

void fill_numbers(Tensor& t, const IndexedDraw& draw, Fill fill) {
  for (int64_t i = 0; i < num_numbers(t); ++i) {
    const double real = t.dtype() == Dtype::i8 ? 64 * draw.real(i) : draw.real(i);
    set_number(t, i, fill == Fill::small_integers ? double(draw.below(i, 5) - 2) : real);
  }
}
void fill_factors(Tensor& t, const IndexedDraw& draw, Fill fill) {
  constexpr double kPowers[] = {0.5, 1, 2};
  for (int64_t i = 0; i < num_numbers(t); ++i) {
    const double factor = 0.01 + std::fabs(draw.real(i)) / 7;
    set_number(t, i, fill == Fill::small_integers ? kPowers[draw.below(i, 3)] : factor);
  }
}

void poison(Tensor& t, int64_t i) { set_number(t, i, t.dtype() == Dtype::i8 ? 127 : kNan); }

int64_t groups(int64_t size, int64_t group) { return (size + group - 1) / group; }

// Beyond rows x columns of a slot: numbers, and factors of nothing else.
void poison_weight(Tensor& bits, Tensor& scale, int64_t slot, int64_t rows, int64_t columns,
                   const BlockSize& block) {
  const int64_t all_rows = bits.shape()[1], all_columns = bits.shape()[2];
  for (int64_t i = 0; i < all_rows * all_columns; ++i) {
    if (i / all_columns >= rows || i % all_columns >= columns) {
      poison(bits, slot * all_rows * all_columns + i);
    }
  }
  const bool is_empty = rows == 0 || columns == 0;
  if (scale.shape().size() == 1) {
    if (is_empty) scale.set(kNan, slot);
    return;
  }
  for (int64_t n = 0; n < scale.shape()[1]; ++n) {
    const bool row_out = is_empty || n * std::max<int64_t>(1, block.n) >= rows;
    if (scale.shape().size() == 2) {
      if (row_out) scale.set(kNan, slot, n);
      continue;
    }
    for (int64_t k = 0; k < scale.shape()[2]; ++k) {
      if (row_out || k * block.k >= columns) scale.set(kNan, slot, n, k);
    }
  }
}

Extents scale_shape(Factors factors, const Extents& bits, const BlockSize& block) {
  if (factors == Factors::tensor) return {bits[0]};
  if (factors == Factors::channel) return {bits[0], bits[1]};
  return {bits[0], groups(bits[1], block.n), groups(bits[2], block.k)};
}

std::optional<Tensor> activation_scale(const QuantizedLayerCase& c, Extents lead, int64_t columns,
                                       int64_t block_k) {
  if (!c.is_w8a8()) return std::nullopt;
  if (block_k > 0) {
    lead.push_back(c.num_tokens), lead.push_back(groups(columns, block_k));
  } else if (!c.by_tensor) {
    lead.push_back(c.num_tokens), lead.push_back(1);
  }
  return Tensor(Dtype::f32, lead);
}

// What lies beyond the width of each row, of T or S · T rows.
void poison_activations(Tensor& bits, std::optional<Tensor>& scale, int64_t lead_axes,
                        const std::vector<int64_t>& widths, int64_t block_k) {
  const int64_t columns = bits.shape().back(), rows = int64_t(widths.size());
  for (int64_t i = 0; i < rows * columns; ++i) {
    if (i % columns >= widths[size_t(i / columns)]) poison(bits, i);
  }
  if (!scale || int64_t(scale->shape().size()) == lead_axes) return;
  const int64_t each = scale->shape().back();
  for (int64_t i = 0; i < rows * each; ++i) {
    if (i % each * block_k >= widths[size_t(i / each)]) set_number(*scale, i, kNan);
  }
}

Dtype format(const QuantizedLayerCase& c, uint64_t stream) {
  if (c.integers) return Dtype::i8;
  return random_bits(c.seed, 70, stream) % 3 == 0 ? Dtype::f8_e5m2 : Dtype::f8_e4m3fn;
}

}  // namespace

std::string describe(const QuantizedLayerCase& c) {
  std::string widths;
  for (const int64_t n : c.widths) widths += fmt::format("{}{}", widths.empty() ? "" : "+", n);
  return fmt::format(
      "seed={} T={} K={} N={} R={} L={} x={} y={} factors={} by_tensor={} integers={}", c.seed,
      c.num_tokens, c.num_in, widths, c.max_rank, c.max_loras, name(c.x), name(c.y), int(c.factors),
      c.by_tensor, c.integers);
}

QuantizedLayerCase random_quantized_layer(uint64_t seed, bool aligned, int64_t num_products) {
  const IndexedDraw draw{seed, 71};
  QuantizedLayerCase c{.seed = seed};
  const auto size = [&](int64_t index, const std::vector<int64_t>& even,
                        const std::vector<int64_t>& odd) {
    return aligned ? one_of(draw, index, even) : one_of(draw, index, odd);
  };
  c.num_tokens = one_of<int64_t>(draw, 0, {0, 1, 3, 7, 8, 9, 20, 33, 70, 150});
  c.num_in = size(1, {16, 64, 176, 512, 1024, 2080, 4096}, {1, 17, 40, 100, 513});
  c.max_rank = size(2, {16, 32, 48, 64, 80, 128, 160}, {1, 3, 8, 12, 20, 40});
  c.max_loras = one_of<int64_t>(draw, 3, {1, 2, 5, 9});
  c.widths.clear();
  for (int64_t i = 0; i < 1 + draw.below(4, 3); ++i) {
    c.widths.push_back(size(5 + i, {8, 64, 72, 320, 1024}, {1, 5, 33, 100}));
  }
  c.factors = Factors(draw.below(8, 4));
  c.integers = draw.below(9, 5) == 0;
  c.by_tensor = draw.below(10, 3) == 0;
  c.x = one_of<Dtype>(draw, 11, {Dtype::bf16, Dtype::f16, Dtype::f8_e4m3fn, Dtype::f8_e5m2});
  if (is_quantized(c.x) && c.integers) c.x = Dtype::i8;
  c.y = one_of<Dtype>(draw, 12, {Dtype::bf16, Dtype::f16, Dtype::f32});
  c.fill = draw.below(13, 3) == 0 ? Fill::small_integers : Fill::reals;
  c.add_inputs = draw.below(14, 4) != 0;
  c.sum = reference::SumMode(draw.below(15, 2));
  while (c.num_tokens * c.max_rank * c.num_in * int64_t(c.widths.size()) > num_products &&
         c.num_tokens > 1) {
    c.num_tokens /= 2;
  }
  return c;
}

QuantizedLayerCase random_quantized_gate_and_up(uint64_t seed, int64_t num_products) {
  QuantizedLayerCase c = random_quantized_layer(seed, true, num_products);
  const IndexedDraw draw{seed, 73};
  c.num_tokens = std::max<int64_t>(c.num_tokens, 1);
  c.widths.assign(2, one_of<int64_t>(draw, 0, {8, 64, 72, 320, 1024}));
  // Sums of i8 overflow f16, and NaN has many bits.
  c.x = c.y = c.integers || draw.below(1, 2) == 0 ? Dtype::bf16 : Dtype::f16;
  if (c.factors == Factors::block) c.factors = Factors::one_group;
  c.add_inputs = c.lacks_modules = true;
  return c;
}

QuantizedLayerData::QuantizedLayerData(const QuantizedLayerCase& c)
    : shape(c),
      x(c.x, {c.num_tokens, c.num_in}),
      y(c.y, {0, 0}),
      h(c.is_w8a8() ? c.x : Dtype::f32, {int64_t(c.widths.size()), c.num_tokens, c.max_rank}) {
  const IndexedDraw draw{c.seed, 72};
  if (c.factors == Factors::block) {
    a_block = {1 + draw.below(0, 24), 1 + draw.below(1, std::max<int64_t>(1, c.num_in / 2))};
    b_block = {1 + draw.below(2, 40), 1 + draw.below(3, c.max_rank)};
  } else if (c.factors == Factors::one_group) {
    a_block = {1 + draw.below(0, 24), c.num_in + draw.below(1, 9)};
    b_block = {1 + draw.below(2, 40), c.max_rank + draw.below(3, 9)};
  }
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    slots.push_back(int32_t(draw.below(100 + t, c.max_loras + 1)) - 1);
  }
  int64_t columns = 0;
  for (size_t i = 0; i < c.widths.size(); ++i) {
    const Extents of_a{c.max_loras, c.max_rank, c.num_in};
    const Extents of_b{c.max_loras, c.widths[i], c.max_rank};
    columns += c.widths[i];
    a.emplace_back(format(c, 2 * i), of_a), b.emplace_back(format(c, 2 * i + 1), of_b);
    a_scale.emplace_back(Dtype::f32, scale_shape(c.factors, of_a, a_block));
    b_scale.emplace_back(Dtype::f32, scale_shape(c.factors, of_b, b_block));
    fill_numbers(a.back(), {c.seed, 200 + i}, c.fill);
    fill_numbers(b.back(), {c.seed, 300 + i}, c.fill);
    fill_factors(a_scale.back(), {c.seed, 400 + i}, c.fill);
    fill_factors(b_scale.back(), {c.seed, 500 + i}, c.fill);
    ranks.emplace_back(), scalings.emplace_back();
    for (int64_t s = 0; s < c.max_loras; ++s) {
      const IndexedDraw of{c.seed, 600 + i};
      int64_t rank = of.below(2 * s, 4) == 0 ? c.max_rank : of.below(2 * s, c.max_rank + 1);
      if (c.lacks_modules && IndexedDraw{c.seed, 700 + i}.below(s, 3) == 0) rank = 0;
      ranks.back().push_back(int32_t(rank));
      constexpr float kPowers[] = {0.5F, 1, 2, -1};
      const auto scaling = size_t(of.below(2 * s + 1, 4));
      scalings.back().push_back(c.fill == Fill::small_integers ? kPowers[scaling]
                                                               : 0.3F + 0.37F * float(scaling));
      poison_weight(a.back(), a_scale.back(), s, rank, c.num_in, a_block);
      poison_weight(b.back(), b_scale.back(), s, rank == 0 ? 0 : c.widths[i], rank, b_block);
    }
  }
  y = Tensor(c.y, {c.num_tokens, columns});
  x_scale = activation_scale(c, {}, c.num_in, a_block.k);
  h_scale = activation_scale(c, {int64_t(c.widths.size())}, c.max_rank, b_block.k);
  fill_numbers(x, {c.seed, 80}, c.fill), fill_numbers(y, {c.seed, 81}, c.fill);
  for (int64_t i = 0; c.lacks_modules && i < num_numbers(y); i += 9) set_number(y, i, -0.0);
  fill_numbers(h, {c.seed, 82}, c.fill);
  if (x_scale) fill_factors(*x_scale, {c.seed, 83}, c.fill);
  if (h_scale) fill_factors(*h_scale, {c.seed, 84}, c.fill);
  std::vector<int64_t> x_widths, h_widths;
  for (const int32_t slot : slots) x_widths.push_back(slot < 0 ? 0 : c.num_in);
  for (size_t i = 0; i < c.widths.size(); ++i) {
    for (int64_t t = 0; t < c.num_tokens; ++t) h_widths.push_back(rank(i, t));
  }
  poison_activations(x, x_scale, 0, x_widths, a_block.k);
  poison_activations(h, h_scale, 1, h_widths, b_block.k);
}

int64_t QuantizedLayerData::rank(size_t slice, int64_t t) const {
  const int32_t slot = slots[size_t(t)];
  return slot < 0 ? 0 : ranks[slice][size_t(slot)];
}

reference::QuantizedShrinkArgs QuantizedLayerData::shrink_args(Tensor& to) {
  reference::QuantizedShrinkArgs args{.x = x.view(),
                                      .x_scale = std::nullopt,
                                      .slots = slots,
                                      .slices = {},
                                      .block = a_block,
                                      .h = to.view()};
  if (x_scale) args.x_scale = x_scale->view();
  for (size_t i = 0; i < a.size(); ++i) {
    args.slices.push_back({a[i].view(), a_scale[i].view(), ranks[i]});
  }
  return args;
}

reference::QuantizedExpandArgs QuantizedLayerData::expand_args(
    const Tensor& from, const std::optional<Tensor>& from_scale, Tensor& to) {
  reference::QuantizedExpandArgs args{.h = from.view(),
                                      .h_scale = std::nullopt,
                                      .slots = slots,
                                      .slices = {},
                                      .block = b_block,
                                      .offset_start = 0,
                                      .add_inputs = shape.add_inputs,
                                      .sum = shape.sum,
                                      .y = to.view()};
  if (from_scale) args.h_scale = from_scale->view();
  for (size_t i = 0; i < b.size(); ++i) {
    args.slices.push_back({b[i].view(), b_scale[i].view(), ranks[i], scalings[i]});
  }
  return args;
}

reference::QuantizedLinearArgs QuantizedLayerData::linear_args(Tensor& to) {
  reference::QuantizedLinearArgs args{.x = x.view(),
                                      .x_scale = std::nullopt,
                                      .slots = slots,
                                      .slices = {},
                                      .a_block = a_block,
                                      .b_block = b_block,
                                      .offset_start = 0,
                                      .add_inputs = shape.add_inputs,
                                      .sum = shape.sum,
                                      .y = to.view()};
  if (x_scale) args.x_scale = x_scale->view();
  for (size_t i = 0; i < a.size(); ++i) {
    args.slices.push_back(
        {a[i].view(), a_scale[i].view(), b[i].view(), b_scale[i].view(), ranks[i], scalings[i]});
  }
  return args;
}

std::vector<LoraVariant> all_quantized_variants(const QuantizedLayerCase& c, LoraOp op,
                                                bool is_generic) {
  const auto of = quantized_variants(op == LoraOp::expand ? op : LoraOp::shrink);
  std::vector<LoraVariant> out(of.begin(), of.end());
  if (op != LoraOp::linear) return out;
  for (LoraVariant& v : out) v.launches = 2;
  if (is_generic || c.is_w8a8() || (c.y != Dtype::f32 && c.y != c.x)) return out;
  const auto in_one = quantized_variants(op);
  out.insert(out.end(), in_one.begin(), in_one.end());
  return out;
}

std::vector<SiluMulVariants> quantized_silu_mul_variants() {
  std::vector<SiluMulVariants> out;
  for (const LoraVariant& shrink :
       {kQuantizedShrinkVariants[0],
        LoraVariant{.rank_tiles = 4, .token_tiles = 4, .cluster = 8, .stages = 4},
        LoraVariant{.rank_tiles = 4, .token_tiles = 8, .cluster = 8, .stages = 3}}) {
    for (const LoraVariant& v : kQuantizedGatedVariants) {
      const bool divides = shrink.segment_size() % v.segment_size() == 0;
      if (divides && v.needs_wgmma() == shrink.needs_wgmma()) out.push_back({shrink, v});
    }
  }
  return out;
}

Tensor empty_h(const QuantizedLayerData& data) {
  Tensor h(Dtype::f32, data.h.shape());
  for (int64_t i = 0; i < num_numbers(h); ++i) set_number(h, i, kNan);
  return h;
}

LoraLayerDesc desc_of(const QuantizedLayerData& data, LoraOp op, const Placed& placed) {
  LoraLayerDesc desc{.op = op,
                     .slices = {},
                     .add_inputs = data.shape.add_inputs,
                     .mode = {.sum = data.shape.sum},
                     .a_block = data.a_block,
                     .b_block = data.b_block};
  for (size_t i = 0; i < data.a.size(); ++i) {
    desc.slices.push_back({.a = placed.view(data.a[i]),
                           .b = placed.view(data.b[i]),
                           .ranks = placed.ranks(data.ranks[i]),
                           .scalings = placed.scalings(data.scalings[i]),
                           .a_scale = placed.view(data.a_scale[i]),
                           .b_scale = placed.view(data.b_scale[i])});
  }
  return desc;
}

// --- verdicts ---------------------------------------------------------------------------------

namespace {

bool is_same(double left, double right) {
  return left == right || (std::isnan(left) && std::isnan(right));
}

// One element: of the bits, or within the bound; what is not covered as it was before.
struct Judge {
  Verdict out;
  bool exact;

  void see(const std::string& place, double got, double expected, double before,
           const std::optional<reference::StageFacts>& facts,
           const reference::Arithmetic& arithmetic) {
    if (!out.wrong.empty()) return;
    const auto fail = [&](double wanted) {
      out.wrong = fmt::format("{}: {} for {}", place, got, wanted);
    };
    if (!facts) {
      if (!is_same(got, before)) fail(before);
      return;
    }
    ++out.num_results;
    if (exact) {
      if (!is_same(got, expected)) fail(expected);
      return;
    }
    const double ratio = reference::error_over_bound(got, *facts, arithmetic);
    out.worst = std::max(out.worst, ratio);
    if (!(ratio <= 1)) fail(facts->result());
  }
};

// Adds what the errors say as random numbers: rows and columns as the models have them.
template <typename At>
void judge_statistics(const reference::DeltaModels& models, const reference::Arithmetic& arithmetic,
                      At at, Verdict& out) {
  check::StatisticalJudge judge(arithmetic);
  for (size_t row = 0; row < models.groups.size(); ++row) {
    for (int64_t n = 0; n < models.num_columns; ++n) {
      const auto& model = models.at(int64_t(row), n);
      if (model) judge.add(models.groups[row], *model, at(int64_t(row), n), int64_t(row), n);
    }
  }
  const check::StatisticalVerdict verdict = judge.verdict();
  if (!verdict.ok && out.wrong.empty()) out.wrong = verdict.in_words();
}

}  // namespace

Verdict judge_shrink(QuantizedLayerData& data, const Tensor& h, bool exact) {
  Tensor expected = empty_h(data);
  const auto args = data.shrink_args(expected);
  const reference::StageOracle oracle = shrink_oracle(args);
  if (exact) shrink_quantized(args);
  Judge judge{{}, exact};
  const reference::Arithmetic arithmetic{.out = h.dtype(), .unit = kUnit};
  for (int64_t i = 0; i < data.num_slices(); ++i) {
    for (int64_t t = 0; t < data.shape.num_tokens; ++t) {
      for (int64_t j = 0; j < data.shape.max_rank; ++j) {
        judge.see(fmt::format("slice {} row {} rank {}", i, t, j), h.get(i, t, j),
                  expected.get(i, t, j), kNan, oracle.at(i * data.shape.num_tokens + t, j),
                  arithmetic);
      }
    }
  }
  if (exact) return judge.out;
  const int64_t num_tokens = data.shape.num_tokens;
  judge_statistics(
      stage_models(args, arithmetic), arithmetic,
      [&](int64_t row, int64_t j) { return h.get(row / num_tokens, row % num_tokens, j); },
      judge.out);
  return judge.out;
}

Verdict judge_expand(QuantizedLayerData& data, const Tensor& y, bool exact) {
  Tensor expected = data.y;
  const auto args = data.expand_args(data.h, data.h_scale, expected);
  reference::StageOracle oracle = expand_oracle(args);
  if (exact) expand_quantized(args);
  const bool is_split = !is_quantized(data.h.dtype());
  for (auto& facts : oracle.elements) {
    if (facts && is_split) facts->num_terms = 2 * facts->num_terms + 8;  // docs/error_bounds.md
  }
  Judge judge{{}, exact};
  const reference::Arithmetic arithmetic{.mode = {.sum = data.shape.sum},
                                         .out = y.dtype(),
                                         .unit = kUnit,
                                         .operand_rounding = is_split ? kSplitUnit : 0};
  for (int64_t t = 0; t < y.shape()[0]; ++t) {
    for (int64_t n = 0; n < y.shape()[1]; ++n) {
      judge.see(fmt::format("row {} column {}", t, n), y.get(t, n), expected.get(t, n),
                data.y.get(t, n), oracle.at(t, n), arithmetic);
    }
  }
  if (exact) return judge.out;
  Tensor base = data.y;
  judge_statistics(
      stage_models(data.expand_args(data.h, data.h_scale, base), arithmetic, is_split), arithmetic,
      [&](int64_t row, int64_t n) { return y.get(row, n); }, judge.out);
  return judge.out;
}

Verdict judge_linear(QuantizedLayerData& data, const Tensor& y, bool exact) {
  Tensor expected = data.y;
  const auto args = data.linear_args(expected);
  const reference::Arithmetic of_shrink{
      .mode = {.sum = data.shape.sum}, .out = y.dtype(), .unit = kUnit};
  reference::Arithmetic arithmetic = of_shrink;
  reference::StageOracle oracle = linear_oracle(args, of_shrink);
  const bool is_split = !data.shape.is_w8a8();
  if (is_split) arithmetic.operand_rounding = kSplitUnit;
  for (auto& facts : oracle.elements) {
    if (facts && is_split) facts->num_terms = 2 * facts->num_terms + 8;
  }
  const auto models = stage_models(args, of_shrink, is_split);
  if (exact) lora_linear_quantized(args);
  Judge judge{{}, exact};
  for (int64_t t = 0; t < y.shape()[0]; ++t) {
    for (int64_t n = 0; n < y.shape()[1]; ++n) {
      judge.see(fmt::format("row {} column {}", t, n), y.get(t, n), expected.get(t, n),
                data.y.get(t, n), oracle.at(t, n), arithmetic);
    }
  }
  if (exact) return judge.out;
  judge_statistics(
      models, arithmetic, [&](int64_t row, int64_t n) { return y.get(row, n); }, judge.out);
  return judge.out;
}

}  // namespace loratory::gpu
