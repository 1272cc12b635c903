#include "fuzz/support/emulated_lora.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <span>

#include "reference/numerics/rows.hpp"

namespace loratory::reference {
namespace {

using Engine = std::mt19937_64;
using Row = std::vector<float>;

float to_tf32(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  return std::bit_cast<float>((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFFU);
}

float rounded(Dtype dtype, float v) { return dtype == Dtype::f32 ? v : float(round_to(dtype, v)); }

// ---- sums ----

// width sums of left[i]·right[i][w], i through an order of indices.
struct Products {
  std::span<const float> left;
  const float* right;
  int64_t width;
  std::vector<int32_t> indices;
};

void add_in_fp32(const Products& p, int64_t begin, int64_t end, bool fma, Row& sum) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t c = p.indices[size_t(i)];
    const float l = p.left[size_t(c)];
    const float* const r = p.right + c * p.width;
    float* const s = sum.data();
    if (fma) {  // exact in float64 but for its own rounding, far below a tie of fp32
      for (int64_t w = 0; w < p.width; ++w) s[w] = float(double(l) * double(r[w]) + double(s[w]));
    } else {
      for (int64_t w = 0; w < p.width; ++w) s[w] += l * r[w];
    }
  }
}

int32_t exponent_of(float v) { return int32_t(std::bit_cast<uint32_t>(v) >> 23) & 0xFF; }

float power_of_two(int32_t biased) { return std::bit_cast<float>(uint32_t(biased) << 23); }

// The number of 24 bits next to `sum` quanta, toward zero.
float cut_to_fp32(int32_t sum, float quantum) {
  const auto magnitude = uint32_t(std::abs(sum));
  const int extra = std::max(0, int(std::bit_width(magnitude)) - 24);
  const float kept = float((magnitude >> extra) << extra) * quantum;
  return sum < 0 ? -kept : kept;
}

void tensor_core_step(const Products& p, int64_t begin, int64_t end, int extra_bits, Row& sum) {
  const auto width = size_t(p.width);
  std::array<int32_t, 512> largest;
  std::array<int32_t, 512> total;
  std::array<float, 512> scale;
  for (size_t w = 0; w < width; ++w) largest[w] = exponent_of(sum[w]);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t c = p.indices[size_t(i)];
    const float l = p.left[size_t(c)];
    const float* const r = p.right + c * p.width;
    for (size_t w = 0; w < width; ++w) largest[w] = std::max(largest[w], exponent_of(l * r[w]));
  }
  for (size_t w = 0; w < width; ++w) {
    largest[w] = std::clamp(largest[w], 40, 250);
    scale[w] = power_of_two(127 + 23 + extra_bits - (largest[w] - 127));
    total[w] = int32_t(sum[w] * scale[w]);
  }
  for (int64_t i = begin; i < end; ++i) {
    const int64_t c = p.indices[size_t(i)];
    const float l = p.left[size_t(c)];
    const float* const r = p.right + c * p.width;
    for (size_t w = 0; w < width; ++w) total[w] += int32_t(l * r[w] * scale[w]);
  }
  for (size_t w = 0; w < width; ++w)
    sum[w] = cut_to_fp32(total[w], power_of_two(largest[w] - 23 - extra_bits));
}

void accumulate(const Products& p, int64_t begin, int64_t end, const Recipe& recipe, Row& sum) {
  if (recipe.terms_per_step == 0) return add_in_fp32(p, begin, end, recipe.fma, sum);
  for (int64_t i = begin; i < end; i += recipe.terms_per_step) {
    tensor_core_step(p, i, std::min(end, i + recipe.terms_per_step), recipe.extra_bits, sum);
  }
}

void add_to(Row& sum, const Row& part) {
  for (size_t w = 0; w < sum.size(); ++w) sum[w] += part[w];
}

Row part_of(const Products& p, int64_t begin, int64_t end, const Recipe& recipe) {
  Row sum(size_t(p.width), 0);
  accumulate(p, begin, end, recipe, sum);
  return sum;
}

Row in_halves(const Products& p, int64_t begin, int64_t end, const Recipe& recipe) {
  if (end - begin <= std::max<int64_t>(2, recipe.size)) return part_of(p, begin, end, recipe);
  const int64_t middle = begin + (end - begin) / 2;
  Row sum = in_halves(p, begin, middle, recipe);
  add_to(sum, in_halves(p, middle, end, recipe));
  return sum;
}

Row as_tree(std::vector<Row> parts) {
  for (; parts.size() > 1; parts.resize((parts.size() + 1) / 2)) {
    for (size_t i = 0; 2 * i < parts.size(); ++i) {
      if (i > 0) parts[i] = parts[2 * i];
      if (2 * i + 1 < parts.size()) add_to(parts[i], parts[2 * i + 1]);
    }
  }
  return parts[0];
}

Row sum_of(Products p, const Recipe& recipe, uint64_t seed) {
  const auto n = int64_t(p.left.size());
  p.indices.resize(size_t(n));
  std::iota(p.indices.begin(), p.indices.end(), 0);
  const int64_t size = std::max<int64_t>(1, recipe.size);
  switch (recipe.order) {
    case SumOrder::sequential:
      return part_of(p, 0, n, recipe);
    case SumOrder::shuffled: {
      Engine engine(seed);
      std::shuffle(p.indices.begin(), p.indices.end(), engine);
      return part_of(p, 0, n, recipe);
    }
    case SumOrder::pairwise:
      return in_halves(p, 0, n, recipe);
    case SumOrder::blocked:
    case SumOrder::split: {
      const int64_t length = recipe.order == SumOrder::blocked ? size : (n + size - 1) / size;
      Row sum(size_t(p.width), 0);
      for (int64_t i = 0; i < n; i += length) {
        add_to(sum, part_of(p, i, std::min(n, i + length), recipe));
      }
      return sum;
    }
    case SumOrder::strided: {
      std::ranges::stable_sort(p.indices, {}, [&](int32_t i) { return i % size; });
      std::vector<Row> parts;
      for (int64_t first = 0, m = 0; m < std::min(size, n); ++m) {
        const int64_t length = (n - m + size - 1) / size;
        parts.push_back(part_of(p, first, first + length, recipe));
        first += length;
      }
      return as_tree(std::move(parts));
    }
  }
  return {};
}

// ---- faults of a sum ----

Row sum_rounded_after(Products p, int64_t every, Dtype dtype) {
  p.indices.resize(p.left.size());
  std::iota(p.indices.begin(), p.indices.end(), 0);
  const auto n = int64_t(p.left.size());
  Row sum(size_t(p.width), 0);
  for (int64_t i = 0; i < n; i += every) {
    add_in_fp32(p, i, std::min(n, i + every), false, sum);
    round_elements(dtype, sum);
  }
  return sum;
}

Row sum_of_rounded_parts(Products p, int64_t num_parts, const Recipe& recipe) {
  p.indices.resize(p.left.size());
  std::iota(p.indices.begin(), p.indices.end(), 0);
  const auto n = int64_t(p.left.size());
  const int64_t length = (n + num_parts - 1) / num_parts;
  Row sum(size_t(p.width), 0);
  for (int64_t i = 0; i < n; i += length) {
    Row part = part_of(p, i, std::min(n, i + length), recipe);
    round_elements(Dtype::bf16, part);
    add_to(sum, part);
    round_elements(Dtype::bf16, sum);
  }
  return sum;
}

Row faulty_operand(Fault fault, std::span<const float> numbers) {
  Row out(numbers.begin(), numbers.end());
  if (fault == Fault::tf32_operands) std::ranges::transform(out, out.begin(), to_tf32);
  if (fault == Fault::bf16_operands) round_elements(Dtype::bf16, out);
  if (fault == Fault::e4m3_operands) {
    // As a quantised kernel does: to the whole range of the format first.
    float largest = 0;
    for (const float v : out) largest = std::max(largest, std::fabs(v));
    const float scale = largest == 0 ? 1 : 448 / largest;
    for (float& v : out) v = float(round_to(Dtype::f8_e4m3fn, v * scale)) / scale;
  }
  return out;
}

bool rounds_operands(Fault fault) {
  return fault == Fault::tf32_operands || fault == Fault::bf16_operands ||
         fault == Fault::e4m3_operands;
}

Row shrink_row(const EmulatedCase& c, const SliceNumbers& s, const Row& a, int64_t t, Fault fault) {
  std::span<const float> x(s.x.data() + t * s.num_in, size_t(s.num_in));
  const Row faulty = rounds_operands(fault) ? faulty_operand(fault, x) : Row{};
  if (!faulty.empty()) x = faulty;
  if (fault == Fault::dropped_64_columns) x = x.first(size_t(std::max<int64_t>(0, s.num_in - 64)));
  if (fault == Fault::dropped_last_column) x = x.first(size_t(s.num_in - 1));
  const Products p{x, a.data(), s.rank, {}};
  if (fault == Fault::fp16_accumulation) return sum_rounded_after(p, 1, Dtype::f16);
  if (fault == Fault::bf16_accumulation) return sum_rounded_after(p, 64, Dtype::bf16);
  if (fault == Fault::split_summed_in_bf16) return sum_of_rounded_parts(p, 4, c.recipe);
  return sum_of(p, c.recipe, c.seed);
}

// ---- the rest of an element ----

Row folded(const EmulatedCase& c, const SliceNumbers& s, float scaling) {
  if (c.arithmetic.mode.scale != ScaleMode::folded_b) return s.b;
  Row out;
  for (const float b : s.b) {
    const double product = double(scaling) * double(b);
    const double first = c.recipe.folds_through_fp32 ? double(float(product)) : product;
    out.push_back(float(round_to(c.arithmetic.weight, first)));
  }
  return out;
}

Row kept_h(const EmulatedCase& c, Row h, Fault fault) {
  const Arithmetic& a = c.arithmetic;
  if (fault == Fault::h_in_bf16) round_elements(Dtype::bf16, h);
  if (fault == Fault::dropped_rank) h.back() = 0;
  switch (a.mode.h) {
    case IntermediateMode::fp32:
      return h;
    case IntermediateMode::cast_to_weight:
      round_elements(a.weight, h);
      return h;
    case IntermediateMode::store_as_x:
      round_elements(a.h, h);
      return h;
    case IntermediateMode::split2: {
      Row both = h;
      round_elements(a.weight, both);
      for (size_t j = 0; j < h.size(); ++j) both.push_back(rounded(a.weight, h[j] - both[j]));
      return both;
    }
  }
  return h;
}

float cut_to(Dtype dtype, float v) {
  const float nearest = rounded(dtype, v);
  if (dtype == Dtype::f32 || std::fabs(nearest) <= std::fabs(v)) return nearest;
  const uint32_t bits = encode(dtype, nearest) - 1;
  return float(decode(dtype, bits));
}

float finish(const EmulatedCase& c, float base, float d, Fault fault) {
  const Arithmetic& a = c.arithmetic;
  if (a.mode.sum == SumMode::two_round) {
    d = rounded(a.mode.h == IntermediateMode::cast_to_weight ? a.weight : a.out, d);
  } else if (fault == Fault::delta_rounded_twice) {
    d = rounded(a.out, d);
  }
  const float y = base + d;
  return fault == Fault::y_cut ? cut_to(a.out, y) : rounded(a.out, y);
}

// ---- cases ----

float normal(Engine& engine) {  // of four uniform numbers
  const uint64_t bits = engine();
  const auto part = [&](int i) { return float((bits >> (16 * i)) & 0xFFFF) * 0x1p-16F - 0.5F; };
  return (part(0) + part(1) + part(2) + part(3)) * 1.7320508F;
}

float number(Numbers numbers, Engine& engine) {
  switch (numbers) {
    case Numbers::uniform:
      return (float(engine() >> 40) * 0x1p-23F - 1) * 1.7320508F;
    case Numbers::positive:
      return std::fabs(normal(engine));
    default:
      return normal(engine);
  }
}

Row draw_row(Engine& engine, Numbers numbers, int64_t count, float scale) {
  Row out(static_cast<size_t>(count));
  for (float& v : out) v = scale * number(numbers, engine);
  return out;
}

constexpr std::array<Dtype, 3> kDtypes{Dtype::f32, Dtype::bf16, Dtype::f16};

int64_t of_any_size(Engine& engine, double low, double high) {
  const double share = double(engine() >> 11) * 0x1p-53;
  return std::llround(low * std::pow(high / low, share));
}

Recipe draw_recipe(Engine& engine, const Arithmetic& a) {
  Recipe recipe{.order = SumOrder(engine() % kNumSumOrders)};
  recipe.size = recipe.order == SumOrder::split     ? int64_t(2 + engine() % 15)
                : recipe.order == SumOrder::strided ? int64_t(2) << (engine() % 6)
                                                    : int64_t(16) << (engine() % 4);
  recipe.fma = engine() % 2 == 0;
  if (a.unit > 0x1p-24) recipe.terms_per_step = engine() % 4 == 0 ? 8 : 16;
  if (a.unit > 0x1p-24) recipe.extra_bits = engine() % 2 == 0 ? 0 : 2;
  const bool rounds_h =
      a.mode.h == IntermediateMode::cast_to_weight || a.mode.h == IntermediateMode::store_as_x;
  recipe.scales_h = !rounds_h && engine() % 4 == 0;
  recipe.folds_through_fp32 = engine() % 2 == 0;
  return recipe;
}

}  // namespace

std::string_view name(Numbers numbers) {
  constexpr std::array<std::string_view, kNumNumbers> kNames{"normal", "uniform", "positive",
                                                             "heavy_tailed", "cancelling"};
  return kNames[size_t(numbers)];
}

std::string_view name(SumOrder order) {
  constexpr std::array<std::string_view, kNumSumOrders> kNames{
      "sequential", "blocked", "split", "strided", "pairwise", "shuffled"};
  return kNames[size_t(order)];
}

std::string_view name(Fault fault) {
  constexpr std::array<std::string_view, kNumFaults> kNames{"none",
                                                            "TF32 operands",
                                                            "bf16 operands",
                                                            "delta rounded twice",
                                                            "h in bf16",
                                                            "64 columns of K dropped",
                                                            "last column of K dropped",
                                                            "last rank dropped",
                                                            "scaling in bf16",
                                                            "fp16 accumulation",
                                                            "bf16 accumulation",
                                                            "split summed in bf16",
                                                            "y cut",
                                                            "e4m3 operands"};
  return kNames[size_t(fault)];
}

EmulatedCase emulated_case(uint64_t seed, int64_t num_products) {
  Engine engine(seed);
  EmulatedCase c{.seed = seed};
  Arithmetic& a = c.arithmetic;
  a.weight = kDtypes[engine() % 3];
  a.h = a.weight;
  a.out = engine() % 3 == 0 ? kDtypes[engine() % 3] : a.weight;
  const bool tensor_core = a.weight != Dtype::f32 && engine() % 2 == 0;
  a.unit = tensor_core ? 0x1p-22 : 0x1p-24;
  a.mode.h = IntermediateMode(engine() % 4);
  if (tensor_core && a.mode.h == IntermediateMode::fp32) a.mode.h = IntermediateMode::split2;
  a.mode.sum = SumMode(engine() % 2);
  a.mode.scale = ScaleMode(engine() % 2);
  c.numbers = Numbers(engine() % kNumNumbers);
  c.num_in = of_any_size(engine, 16, 28672);
  c.rank = of_any_size(engine, 1, 256);
  while (c.rank > 1 && c.num_in * c.rank > num_products) c.rank /= 2;
  c.num_tokens = of_any_size(engine, 1, 8);
  c.num_tokens = std::clamp<int64_t>(num_products / (c.num_in * c.rank), 1, c.num_tokens);
  c.num_out = of_any_size(engine, 1, 256);
  c.recipe = draw_recipe(engine, a);
  return c;
}

SliceNumbers EmulatedCase::draw() const {
  Engine engine(seed ^ 0x9E3779B97F4A7C15);
  SliceNumbers s{num_tokens, num_in, rank, num_out, 1, {}, {}, {}, {}};
  s.scaling = engine() % 4 == 0 ? 2.0F : 0.25F + float(engine() >> 40) * 0x1p-23F;
  const bool positive = numbers == Numbers::positive;
  const float a_size = 1 / (positive ? float(num_in) : std::sqrt(float(num_in)));
  // delta from 1/16 to 2 times base.
  const float b_size =
      std::exp2(float(engine() % 6) - 4) / (positive ? float(rank) : std::sqrt(float(rank)));
  s.x = draw_row(engine, numbers, num_tokens * num_in, 1);
  s.a = draw_row(engine, numbers, num_in * rank, a_size);
  s.b = draw_row(engine, numbers, rank * num_out, b_size);
  s.base = draw_row(engine, Numbers::normal, num_tokens * num_out, 1);
  if (numbers == Numbers::heavy_tailed) {
    for (int64_t k = 0; k < num_in; ++k) {
      if (engine() % 128 != 0) continue;
      const float outlier = std::exp2(float(engine() % 8));
      for (int64_t t = 0; t < num_tokens; ++t) s.x[size_t(t * num_in + k)] *= outlier;
    }
  }
  if (numbers == Numbers::cancelling) {
    for (int64_t k = 0; k + 1 < num_in; k += 2) {
      for (int64_t t = 0; t < num_tokens; ++t) {
        s.x[size_t(t * num_in + k + 1)] = s.x[size_t(t * num_in + k)];
      }
      for (int64_t j = 0; j < rank; ++j) {
        s.a[size_t((k + 1) * rank + j)] =
            -s.a[size_t(k * rank + j)] * (1 + 0x1p-5F * normal(engine));
      }
    }
  }
  for (Row* const row : {&s.x, &s.a, &s.b}) round_elements(arithmetic.weight, *row);
  round_elements(arithmetic.out, s.base);
  return s;
}

std::string describe(const EmulatedCase& c) {
  const Arithmetic& a = c.arithmetic;
  return fmt::format(
      "seed {}: T {} K {} r {} N {} {} {} to {}, h {} sum {} scale {}, {} of {}, {}{}", c.seed,
      c.num_tokens, c.num_in, c.rank, c.num_out, name(c.numbers), name(a.weight), name(a.out),
      int(a.mode.h), int(a.mode.sum), int(a.mode.scale), name(c.recipe.order), c.recipe.size,
      c.recipe.terms_per_step > 0
          ? fmt::format("cut every {}, {} extra bits", c.recipe.terms_per_step, c.recipe.extra_bits)
      : c.recipe.fma ? "fma"
                     : "fp32",
      c.recipe.scales_h ? ", scales h" : "");
}

std::vector<float> emulate(const EmulatedCase& c, const SliceNumbers& s, Fault fault) {
  const float scaling =
      fault == Fault::scaling_in_bf16 ? rounded(Dtype::bf16, s.scaling) : s.scaling;
  const bool is_folded = c.arithmetic.mode.scale == ScaleMode::folded_b;
  const Row a = rounds_operands(fault) ? faulty_operand(fault, s.a) : s.a;
  Row b = folded(c, s, scaling);
  if (c.arithmetic.mode.h == IntermediateMode::split2) {
    const Row once = b;
    b.insert(b.end(), once.begin(), once.end());
  }
  const bool scales_h = c.recipe.scales_h && !is_folded;
  const float after = is_folded || scales_h ? 1 : scaling;
  Row y(size_t(s.num_tokens * s.num_out));
  for (int64_t t = 0; t < s.num_tokens; ++t) {
    Row h = shrink_row(c, s, a, t, fault);
    if (scales_h) std::ranges::transform(h, h.begin(), [&](float v) { return scaling * v; });
    h = kept_h(c, std::move(h), fault);
    const Row d = sum_of({h, b.data(), s.num_out, {}}, c.recipe, c.seed + 1);
    for (int64_t n = 0; n < s.num_out; ++n) {
      const auto at = size_t(t * s.num_out + n);
      y[at] = finish(c, s.base[at], after * d[size_t(n)], fault);
    }
  }
  return y;
}

}  // namespace loratory::reference
