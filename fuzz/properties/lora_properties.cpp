// LoRA operations of the reference: P1-P10, P13-P16, P18, P22, P24, P25.
// Exact lane: small integers, compared bit for bit. Bounded lane: reals, against error_bound().
// Everything beyond a rank and in empty slots is NaN in every case (P13), so that no other
// property can pass while reading it.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "fuzz/support/lora_case.hpp"
#include "fuzz/support/seeded_case.hpp"
#include "reference/base/input_error.hpp"
#include "reference/layout/batch_layout.hpp"
#include "reference/lora/oracle.hpp"
#include "reference/lora/scaling.hpp"

namespace loratory::reference {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

uint32_t bits_at(const Tensor& t, int64_t row, int64_t column) {
  uint32_t bits = 0;
  std::memcpy(&bits, t.view().address(row, column), size_bytes(t.dtype()));
  return bits;
}

bool same_row(const Tensor& left, int64_t l, const Tensor& right, int64_t r) {
  for (int64_t n = 0; n < left.shape()[1]; ++n) {
    if (bits_at(left, l, n) != bits_at(right, r, n)) return false;
  }
  return true;
}

std::vector<int64_t> shuffled(int64_t size, uint64_t seed) {
  auto order = std::vector<int64_t>(size_t(size));
  std::iota(order.begin(), order.end(), 0);
  sim::Draw draw(seed);
  for (int64_t i = size - 1; i > 0; --i) std::swap(order[size_t(i)], order[size_t(draw(i + 1))]);
  return order;
}

// Weights inside the ranks only; what is poisoned stays so.
template <typename Change>
void change_numbers(Tensor& t, Change change) {
  for (int64_t i = 0; i < num_numbers(t); ++i) set_number(t, i, change(i, number(t, i)));
}

// [1.12]
RC_GTEST_PROP(Lora, P1ZeroWeightsOrScalingGiveBase, ()) {
  const LoraCase c = any_lora_case();
  LoraData data(c, Fill::reals);
  const auto zero = [](int64_t, double v) { return std::isnan(v) ? v : 0.0; };
  const uint64_t what = random_bits(c.seed, 999, 0) % 3;
  for (size_t i = 0; i < data.a.size(); ++i) {
    if (what == 0) change_numbers(data.a[i], zero);
    if (what == 1) change_numbers(data.b[i], zero);
    if (what == 2) std::fill(data.scalings[i].begin(), data.scalings[i].end(), 0.0F);
  }
  const Tensor y = data.run();
  for (int64_t i = 0; i < num_numbers(y); ++i) RC_ASSERT(number(y, i) == number(data.y, i));
}

// [1.2]
// P2, [1.3], [1.4], [1.6]: NaN in everything that is not covered stays, bit for bit.
RC_GTEST_PROP(Lora, P2UncoveredElementsKeepTheirBits, ()) {
  LoraData data(any_lora_case(), Fill::reals);
  bool some = false;
  for (int64_t t = 0; t < int64_t(data.slots.size()); ++t) {
    for (int64_t c = 0; data.slot(t) == kBaseSlot && c < data.x.shape()[1]; ++c) {
      data.x.set(kNan, t, c);
    }
    for (int64_t n = 0; n < data.num_columns(); ++n) {
      if (!data.covered(t, n)) some = true, data.y.set(n % 2 == 0 ? kNan : -0.0, t, n);
    }
  }
  RC_CLASSIFY(some, "uncovered elements");
  const Tensor y = data.run();
  for (int64_t t = 0; t < int64_t(data.slots.size()); ++t) {
    for (int64_t n = 0; n < data.num_columns(); ++n) {
      if (data.covered(t, n)) {
        RC_ASSERT(std::isfinite(y.get(t, n)));
      } else {
        RC_ASSERT(bits_at(y, t, n) == bits_at(data.y, t, n));
      }
    }
  }
}

// [1.1]
RC_GTEST_PROP(Lora, P3DeltaIsLinearInBAndHomogeneousInPowersOfTwo, ()) {
  LoraCase c = any_lora_case();
  c.dtype = 0;  // sums of two results stay exact
  const LoraData data(c, Fill::small_integers);
  LoraData other = data, sum = data, doubled_a = data, doubled_b = data, doubled_scaling = data;
  for (size_t i = 0; i < data.a.size(); ++i) {
    change_numbers(other.b[i], [&](int64_t at, double v) {
      return std::isnan(v) ? v : double(int(random_bits(c.seed, 500 + i, uint64_t(at)) % 3) - 1);
    });
    change_numbers(sum.b[i], [&](int64_t at, double v) { return v + number(other.b[i], at); });
    change_numbers(doubled_a.a[i], [](int64_t, double v) { return 2 * v; });
    change_numbers(doubled_b.b[i], [](int64_t, double v) { return 2 * v; });
    for (float& s : doubled_scaling.scalings[i]) s *= 2;
  }
  const Tensor y = data.run(), y_other = other.run(), y_sum = sum.run(),
               y_doubled = doubled_a.run();
  for (int64_t i = 0; i < num_numbers(y); ++i) {
    const double base = number(data.y, i), delta = number(y, i) - base;
    RC_ASSERT(number(y_sum, i) - base == delta + (number(y_other, i) - base));
    RC_ASSERT(number(y_doubled, i) - base == 2 * delta);
  }
  RC_ASSERT(same_bits(y_doubled, doubled_b.run()));
  RC_ASSERT(same_bits(y_doubled, doubled_scaling.run()));
}

// [1.1]
// P4 with every mode: integers leave nothing to round, so all modes give the exact delta.
RC_GTEST_PROP(Lora, P4IntegersGiveTheExactDeltaInEveryMode, ()) {
  LoraCase c = any_lora_case();
  LoraData data(c, Fill::small_integers);
  std::fill(data.y.bytes().begin(), data.y.bytes().end(), std::byte{0});
  const Oracle oracle = linear_oracle(data.args());
  bool nonzero = false;
  const Tensor y = data.run();
  for (int64_t t = 0; t < int64_t(data.slots.size()); ++t) {
    for (int64_t n = 0; n < data.num_columns(); ++n) {
      RC_ASSERT(oracle.at(t, n).has_value() == data.covered(t, n));
      const double exact = data.covered(t, n) ? oracle.at(t, n)->delta : 0;
      nonzero |= exact != 0;
      RC_ASSERT(y.get(t, n) == exact);
    }
  }
  RC_CLASSIFY(nonzero, "some delta is not 0");
}

// [1.17] [1.18]
RC_GTEST_PROP(Lora, P5EveryModeLiesWithinTheBound, ()) {
  const LoraCase c = any_lora_case();
  const Fill fill = Fill(1 + random_bits(c.seed, 999, 1) % 3);
  LoraData data(c, fill);
  const bool add_inputs = random_bits(c.seed, 999, 2) % 4 != 0;
  LinearArgs args = data.args();
  args.add_inputs = add_inputs;
  const Oracle oracle = linear_oracle(args);
  const Arithmetic arithmetic = arithmetic_of(args);
  lora_linear(args);
  double worst = 0;
  for (int64_t t = 0; t < int64_t(data.slots.size()); ++t) {
    for (int64_t n = 0; n < data.num_columns(); ++n) {
      if (!oracle.at(t, n)) continue;
      const double ratio = error_over_bound(data.y.get(t, n), *oracle.at(t, n), arithmetic);
      worst = std::max(worst, ratio);
      RC_ASSERT(ratio <= 1.0);
    }
  }
  RC_CLASSIFY(fill == Fill::cancellation, "cancellation");
  RC_CLASSIFY(fill == Fill::tiny, "tiny");
  RC_CLASSIFY(worst > 0.5, "worst error/bound > 0.5");
}

// [1.8] [1.18]
// The shrink alone, into a buffer of each dtype.
RC_GTEST_PROP(Lora, P5ShrinkLiesWithinItsBound, ()) {
  const LoraCase c = any_lora_case();
  LoraData data(c, Fill(1 + random_bits(c.seed, 999, 1) % 3));
  const Dtype dtype = Dtype(random_bits(c.seed, 999, 8) % 3);
  Tensor h(dtype, {c.num_slices, c.num_tokens, c.max_rank});
  ShrinkArgs args{.x = data.x.view(), .slots = data.slots, .slices = {}, .h = h.view()};
  for (size_t i = 0; i < data.a.size(); ++i) {
    args.slices.push_back({data.a[i].view(), data.ranks[i]});
  }
  shrink(args);
  for (int64_t i = 0; i < c.num_slices; ++i) {
    for (int64_t t = 0; t < c.num_tokens; ++t) {
      const int32_t slot = data.slot(t);
      const int64_t rank = slot == kBaseSlot ? 0 : data.ranks[size_t(i)][size_t(slot)];
      for (int64_t j = 0; j < rank; ++j) {
        double sum = 0, sum_xa = 0;
        for (int64_t k = 0; k < c.num_in; ++k) {
          const double product = data.a[size_t(i)].get(slot, j, k) * data.x.get(t, k);
          sum += product, sum_xa += std::fabs(product);
        }
        RC_ASSERT(std::fabs(h.get(i, t, j) - sum) <=
                  shrink_error_bound(sum, sum_xa, c.num_in, dtype));
      }
    }
  }
}

// [1.19]
RC_GTEST_PROP(Lora, P6PermutingTokensPermutesRows, ()) {
  const LoraCase c = any_lora_case();
  const LoraData data(c, Fill::reals);
  const std::vector<int64_t> order = shuffled(c.num_tokens, c.seed);
  const Tensor y = data.run(), moved = with_tokens(data, order).run();
  for (int64_t t = 0; t < c.num_tokens; ++t) RC_ASSERT(same_row(moved, t, y, order[size_t(t)]));
}

// [1.19]
// P7, and P11 for the operations: any cut of a batch into consecutive parts.
RC_GTEST_PROP(Lora, P7P11RowsDoNotDependOnTheBatchOrItsChunks, ()) {
  const LoraCase c = any_lora_case();
  const LoraData data(c, Fill::reals);
  const Tensor y = data.run();
  sim::Draw draw(c.seed);
  for (int64_t begin = 0; begin < c.num_tokens;) {
    const int64_t end = draw.between(begin + 1, c.num_tokens);
    std::vector<int64_t> part(size_t(end - begin));
    std::iota(part.begin(), part.end(), begin);
    const Tensor alone = with_tokens(data, part).run();
    for (int64_t t = begin; t < end; ++t) RC_ASSERT(same_row(alone, t - begin, y, t));
    begin = end;
  }
}

template <typename T>
void permute(std::vector<T>& values, const std::vector<int64_t>& to) {
  std::vector<T> moved(values.size());
  for (size_t s = 0; s < values.size(); ++s) moved[size_t(to[s])] = values[s];
  values = moved;
}

void permute_parts(Tensor& t, const std::vector<int64_t>& to) {
  const Tensor from = t;
  const size_t part = t.bytes().size() / to.size();
  for (size_t s = 0; s < to.size(); ++s) {
    std::copy_n(from.bytes().begin() + ptrdiff_t(s * part), part,
                t.bytes().begin() + ptrdiff_t(size_t(to[s]) * part));
  }
}

// [1.19]
RC_GTEST_PROP(Lora, P8SlotNumbersDoNotMatter, ()) {
  const LoraCase c = any_lora_case();
  const LoraData data(c, Fill::reals);
  LoraData moved = data;
  const std::vector<int64_t> to = shuffled(c.max_loras, c.seed);
  for (int32_t& s : moved.slots) s = s == kBaseSlot ? s : int32_t(to[size_t(s)]);
  for (size_t i = 0; i < data.a.size(); ++i) {
    permute(moved.ranks[i], to), permute(moved.scalings[i], to);
    permute_parts(moved.a[i], to), permute_parts(moved.b[i], to);
  }
  RC_ASSERT(same_bits(moved.run(), data.run()));
}

// A in a buffer of another max_rank; NaN beyond the old one.
Tensor with_rows(const Tensor& a, int64_t num_rows) {
  Tensor out(a.dtype(), {a.shape()[0], num_rows, a.shape()[2]});
  change_numbers(out, [](int64_t, double) { return kNan; });
  for (int64_t s = 0; s < a.shape()[0]; ++s) {
    for (int64_t j = 0; j < std::min(a.shape()[1], num_rows); ++j) {
      for (int64_t k = 0; k < a.shape()[2]; ++k) out.set(a.get(s, j, k), s, j, k);
    }
  }
  return out;
}

Tensor with_columns(const Tensor& b, int64_t num_columns) {
  Tensor out(b.dtype(), {b.shape()[0], b.shape()[1], num_columns});
  change_numbers(out, [](int64_t, double) { return kNan; });
  for (int64_t s = 0; s < b.shape()[0]; ++s) {
    for (int64_t n = 0; n < b.shape()[1]; ++n) {
      for (int64_t j = 0; j < std::min(b.shape()[2], num_columns); ++j) {
        out.set(b.get(s, n, j), s, n, j);
      }
    }
  }
  return out;
}

// [1.8]
// P9, [1.11], [1.26]: max_rank of r, 2r and 64.
RC_GTEST_PROP(Lora, P9TheRankOfTheBufferDoesNotMatter, ()) {
  const LoraCase c = any_lora_case();
  const LoraData data(c, Fill::reals);
  const Tensor y = data.run();
  for (const int64_t max_rank : {int64_t(2 * c.max_rank), int64_t(64)}) {
    LoraData wide = data;
    for (size_t i = 0; i < data.a.size(); ++i) {
      wide.a[i] = with_rows(data.a[i], max_rank);
      wide.b[i] = with_columns(data.b[i], max_rank);
    }
    RC_ASSERT(same_bits(wide.run(), y));
  }
}

// P10: rank r as rank q and rank r - q, one after the other.
RC_GTEST_PROP(Lora, P10AnAdapterIsTheSumOfItsRanks, ()) {
  const LoraCase c = any_lora_case();
  const LoraData data(c, Fill::small_integers);
  const int32_t cut = int32_t(random_bits(c.seed, 999, 3) % uint64_t(c.max_rank + 1));
  LoraData first = data, rest = data;
  for (size_t i = 0; i < data.a.size(); ++i) {
    for (size_t s = 0; s < data.ranks[i].size(); ++s) {
      const int32_t rank = data.ranks[i][s], kept = std::min(cut, rank);
      first.ranks[i][s] = kept;
      rest.ranks[i][s] = rank - kept;
      for (int64_t j = kept; j < rank; ++j) {
        const auto slot = int64_t(s);
        for (int64_t k = 0; k < c.num_in; ++k) {
          rest.a[i].set(data.a[i].get(slot, j, k), slot, j - kept, k);
        }
        for (int64_t n = 0; n < data.num_out[i]; ++n) {
          rest.b[i].set(data.b[i].get(slot, n, j), slot, n, j - kept);
        }
      }
    }
  }
  rest.y = first.run();
  const Tensor twice = rest.run(), once = data.run();
  for (int64_t i = 0; i < num_numbers(once); ++i) RC_ASSERT(number(twice, i) == number(once, i));
}

// P13, [1.21]: NaN in one row of x or in one slot shows in no other row.
RC_GTEST_PROP(Lora, P13NanStaysInItsRowOrSlot, ()) {
  const LoraCase c = any_lora_case();
  RC_PRE(c.num_tokens > 0);
  const LoraData data(c, Fill::reals);
  const Tensor y = data.run();
  const auto row = int64_t(random_bits(c.seed, 999, 4) % uint64_t(c.num_tokens));
  const auto slot = int64_t(random_bits(c.seed, 999, 5) % uint64_t(c.max_loras));
  LoraData bad_row = data, bad_slot = data;
  bad_row.x.set(kNan, row, 0);
  bad_slot.a[0].set(kNan, slot, 0, 0);
  bad_slot.b.back().set(kNan, slot, 0, 0);
  const Tensor y_row = bad_row.run(), y_slot = bad_slot.run();
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    RC_ASSERT(t == row || same_row(y_row, t, y, t));
    RC_ASSERT(data.slot(t) == slot || same_row(y_slot, t, y, t));
  }
}

// P13, [1.6]: NaN in the weights of one slice shows in no column of another.
RC_GTEST_PROP(Lora, P13NanOfASliceStaysInItsColumns, ()) {
  const LoraCase c = any_lora_case();
  const LoraData data(c, Fill::reals);
  const size_t bad = size_t(random_bits(c.seed, 999, 9) % uint64_t(c.num_slices));
  LoraData poisoned = data;
  change_numbers(poisoned.a[bad], [](int64_t, double) { return kNan; });
  change_numbers(poisoned.b[bad], [](int64_t, double) { return kNan; });
  const Tensor y = data.run(), y_poisoned = poisoned.run();
  const auto before = data.num_out.begin() + ptrdiff_t(bad);
  const int64_t begin = std::accumulate(data.num_out.begin(), before, int64_t(0));
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t n = 0; n < data.num_columns(); ++n) {
      if (n >= begin && n < begin + *before && data.covered(t, n)) {
        RC_ASSERT(std::isnan(y_poisoned.get(t, n)));
      } else {
        RC_ASSERT(bits_at(y_poisoned, t, n) == bits_at(y, t, n));
      }
    }
  }
}

// [1.3] [1.4]
RC_GTEST_PROP(Lora, P14ASliceChangesItsOwnColumnsOnly, ()) {
  const LoraCase c = any_lora_case();
  const LoraData data(c, Fill::reals);
  const size_t gone = size_t(random_bits(c.seed, 999, 6) % uint64_t(c.num_slices));
  LoraData without = data;
  std::fill(without.ranks[gone].begin(), without.ranks[gone].end(), 0);
  const Tensor y = data.run(), y_without = without.run();
  int64_t begin = 0;
  for (size_t i = 0; i < gone; ++i) begin += data.num_out[i];
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t n = 0; n < data.num_columns(); ++n) {
      const bool inside = n >= begin && n < begin + data.num_out[gone];
      RC_ASSERT(bits_at(y_without, t, n) == bits_at(inside ? data.y : y, t, n));
    }
  }
}

// P15, [1.25]: one A and a stacked B are the slices with A repeated, bit for bit.
RC_GTEST_PROP(Lora, P15AFusedAdapterIsItsSlices, ()) {
  LoraCase c = any_lora_case();
  LoraData data(c, Fill::reals);
  for (size_t i = 1; i < data.a.size(); ++i) {
    data.a[i] = data.a[0], data.ranks[i] = data.ranks[0], data.scalings[i] = data.scalings[0];
    change_numbers(data.b[i], [&](int64_t at, double) {
      return double(random_bits(c.seed, 600 + i, uint64_t(at)) % 1000) / 300 - 1;
    });
  }
  LoraData fused = data;
  fused.a.resize(1, data.a[0]), fused.ranks.resize(1), fused.scalings.resize(1);
  Tensor b(data.y.dtype(), {c.max_loras, data.num_columns(), c.max_rank});
  int64_t offset = 0;
  for (const Tensor& part : data.b) {
    for (int64_t s = 0; s < c.max_loras; ++s) {
      for (int64_t n = 0; n < part.shape()[1]; ++n) {
        for (int64_t j = 0; j < c.max_rank; ++j) b.set(part.get(s, n, j), s, offset + n, j);
      }
    }
    offset += part.shape()[1];
  }
  fused.b.assign(1, b), fused.num_out.assign(1, data.num_columns());
  RC_ASSERT(same_bits(fused.run(), data.run()));
}

// P16, [1.5]: y inside a wider tensor of canaries, ragged slices, from offset_start on.
RC_GTEST_PROP(Lora, P16NothingIsWrittenAroundY, ()) {
  const LoraCase c = any_lora_case();
  LoraData data(c, Fill::reals);
  const Tensor y = data.run();
  const auto offset = int64_t(random_bits(c.seed, 999, 7) % 4);
  const int64_t width = data.num_columns() + offset + 3;
  Tensor guarded(y.dtype(), {c.num_tokens + 2, width});
  change_numbers(guarded, [](int64_t, double) { return kNan; });
  const Tensor before = guarded;
  LinearArgs args = data.args();
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t n = 0; n < data.num_columns(); ++n) {
      guarded.set(data.y.get(t, n), t + 1, offset + n);
    }
  }
  args.y = {y.dtype(),
            guarded.view().data + width * int64_t(size_bytes(y.dtype())),
            {c.num_tokens, width},
            {width, 1}};
  args.offset_start = offset;
  lora_linear(args);
  for (int64_t row = 0; row < c.num_tokens + 2; ++row) {
    for (int64_t column = 0; column < width; ++column) {
      const int64_t t = row - 1, n = column - offset;
      const bool inside = t >= 0 && t < c.num_tokens && n >= 0 && n < data.num_columns();
      RC_ASSERT(bits_at(guarded, row, column) ==
                (inside ? bits_at(y, t, n) : bits_at(before, row, column)));
    }
  }
}

// P18 and [1.13]: the merged weight W + scaling·B·A, applied in float64, lies within the bound;
// and folding changes nothing for scalings that are powers of two.
RC_GTEST_PROP(Lora, P18MergedWeightsGiveTheSame, ()) {
  const LoraCase c = any_lora_case();
  LoraData data(c, Fill::small_integers);
  for (size_t i = 0; i < data.a.size(); ++i) {
    for (size_t s = 0; s < data.ranks[i].size(); ++s) {
      const int32_t rank = std::max(1, data.ranks[i][s]);
      data.scalings[i][s] = lora_scaling(rank * (s % 2 == 0 ? 0.5 : 2.0), rank, false);
    }
  }
  const Tensor y = data.run();
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t n = 0, i = 0, first = 0; n < data.num_columns(); ++n) {
      if (n - first == data.num_out[size_t(i)]) first = n, ++i;
      if (!data.covered(t, n)) continue;
      const int32_t slot = data.slot(t), rank = data.ranks[size_t(i)][size_t(slot)];
      double sum = data.y.get(t, n);
      for (int64_t k = 0; k < c.num_in; ++k) {
        double merged = 0;
        for (int64_t j = 0; j < rank; ++j) {
          merged += data.b[size_t(i)].get(slot, n - first, j) * data.a[size_t(i)].get(slot, j, k);
        }
        sum += data.scalings[size_t(i)][size_t(slot)] * merged * data.x.get(t, k);
      }
      RC_ASSERT(y.get(t, n) == round_to(y.dtype(), sum));
    }
  }
  LoraData reals(c, Fill::reals);
  for (auto& scalings : reals.scalings) {
    for (size_t s = 0; s < scalings.size(); ++s) scalings[s] = std::ldexp(0.5F, int(s));
  }
  NumericMode folded = data.mode, plain = data.mode;
  folded.scale = ScaleMode::folded_b, plain.scale = ScaleMode::accumulator;
  RC_ASSERT(same_bits(reals.run(folded), reals.run(plain)));
}

// [1.29]
// P22, [1.28]: a gather of a column of A is the linear form of a one-hot x; ids at both ends.
RC_GTEST_PROP(Lora, P22EmbeddingIsLinearOfOneHot, ()) {
  LoraCase c = any_lora_case();
  c.num_slices = 1;
  LoraData data(c, Fill::reals);
  std::vector<int64_t> ids;
  change_numbers(data.x, [](int64_t, double) { return 0.0; });
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    const int64_t any = int64_t(random_bits(c.seed, 700, uint64_t(t)) % uint64_t(c.num_in));
    ids.push_back(t % 3 == 0 ? 0 : t % 3 == 1 ? c.num_in - 1 : any);
    data.x.set(1, t, ids.back());
  }
  LoraData gathered = data;
  const LinearArgs linear = gathered.args();
  EmbeddingArgs args{.token_ids = ids,
                     .slots = data.slots,
                     .slice = linear.slices[0],
                     .mode = data.mode,
                     .y = linear.y};
  const Oracle oracle = embedding_oracle(args);
  const Arithmetic arithmetic = arithmetic_of(args);
  lora_embedding(args);
  RC_ASSERT(same_bits(gathered.y, data.run()));
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t n = 0; n < data.num_columns(); ++n) {
      RC_ASSERT(oracle.at(t, n).has_value() == data.covered(t, n));
      if (!oracle.at(t, n)) continue;
      RC_ASSERT(error_over_bound(gathered.y.get(t, n), *oracle.at(t, n), arithmetic) <= 1.0);
    }
  }
  if (ids.empty()) return;
  ids[0] = c.num_in;
  RC_ASSERT_THROWS_AS(lora_embedding(args), InputError);
}

// P22, [1.30]: logits of vocabulary shards, side by side, are the logits of the whole.
RC_GTEST_PROP(Lora, P22LogitsOfShardsAreTheLogits, ()) {
  LoraCase c = any_lora_case();
  c.num_slices = 1;
  LoraData data(c, Fill::reals);
  const Tensor y = data.run();
  const int64_t vocab = data.num_columns(), cut = vocab / 2;
  LinearArgs args = data.args();
  for (const auto& [begin, end] : {std::pair{int64_t(0), cut}, std::pair{cut, vocab}}) {
    LoraSlice shard = args.slices[0];
    TensorView logits = args.y;
    const auto size = int64_t(size_bytes(y.dtype()));
    shard.b.data += begin * shard.b.strides[1] * size;
    shard.b.shape[1] = logits.shape[1] = end - begin;
    logits.data += begin * size;
    lora_logits(args.x, args.slots, shard, args.mode, logits);
  }
  RC_ASSERT(same_bits(data.y, y));
}

// P24, [1.6]: without add_inputs y is delta alone, whatever it held; with it y accumulates.
RC_GTEST_PROP(Lora, P24AddInputs, ()) {
  const LoraCase c = any_lora_case();
  LoraData data(c, Fill::small_integers), poisoned = data;
  change_numbers(poisoned.y, [](int64_t, double) { return kNan; });
  const Tensor before = poisoned.y, y = data.run();
  LinearArgs args = poisoned.args();
  args.add_inputs = false;
  lora_linear(args);
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    for (int64_t n = 0; n < data.num_columns(); ++n) {
      if (data.covered(t, n)) {
        RC_ASSERT(poisoned.y.get(t, n) == y.get(t, n) - data.y.get(t, n));
      } else {
        RC_ASSERT(bits_at(poisoned.y, t, n) == bits_at(before, t, n));
      }
    }
  }
}

// Address space of `num_bytes` zeros that takes memory only where it is touched.
class SparseMemory {
 public:
  explicit SparseMemory(size_t num_bytes)
      : num_bytes_(num_bytes),
        data_(mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMemory() {
    if (data_ != MAP_FAILED) munmap(data_, num_bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  std::byte* data() const { return data_ == MAP_FAILED ? nullptr : static_cast<std::byte*>(data_); }

 private:
  size_t num_bytes_;
  void* data_;
};

// P25: rows of x and y 2^30 elements apart; the last lie beyond 2^31 elements.
TEST(Lora, P25OffsetsAre64Bit) {
  LoraCase c{.seed = 5,
             .num_tokens = 4,
             .num_in = 7,
             .num_slices = 2,
             .max_loras = 2,
             .max_rank = 3,
             .dtype = int(Dtype::bf16)};
  LoraData data(c, Fill::reals);
  data.slots = {0, -1, 1, 0};
  const Tensor expected = data.run();
  const int64_t stride = int64_t(1) << 30;
  const SparseMemory x(size_t(stride) * 7), y(size_t(stride) * 7);
  if (x.data() == nullptr || y.data() == nullptr) GTEST_SKIP() << "no 14 GiB of address space";
  LinearArgs args = data.args();
  args.x = ConstTensorView{Dtype::bf16, x.data(), {4, 7}, {stride, 1}};
  args.y = {Dtype::bf16, y.data(), {4, data.num_columns()}, {stride, 1}};
  const TensorView x_far{Dtype::bf16, x.data(), {4, 7}, {stride, 1}};
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t k = 0; k < 7; ++k) x_far.set(data.x.get(t, k), t, k);
    for (int64_t n = 0; n < data.num_columns(); ++n) args.y.set(data.y.get(t, n), t, n);
  }
  lora_linear(args);
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t n = 0; n < data.num_columns(); ++n) {
      EXPECT_EQ(args.y.get(t, n), expected.get(t, n)) << t << ' ' << n;
    }
  }
}

}  // namespace
}  // namespace loratory::reference
