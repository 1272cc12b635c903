#include "fuzz/support/lora_case.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <ostream>

#include "fuzz/support/draw.hpp"
#include "reference/layout/batch_layout.hpp"

namespace loratory::reference {
namespace {

struct LoraStream {
  enum : uint64_t { kX, kY, kSlots, kWidths, kRanks, kScalings, kA, kB = kA + 100 };
};

double random_number(const LoraCase& c, Fill fill, uint64_t stream, uint64_t index) {
  const uint64_t bits = random_bits(c.seed, stream, index);
  const double real = (double(bits >> 12) * 0x1p-52 - 0.5) * 4;
  switch (fill) {
    case Fill::small_integers:
      return double(int(bits % 3) - 1);
    case Fill::reals:
    case Fill::outliers:
      return real;
    case Fill::cancellation: {
      // The neighbours 2i and 2i+1 of x are opposite, of the others nearly equal.
      const double pair = (double(random_bits(c.seed, stream, index / 2) >> 12) * 0x1p-52 + 0.5);
      if (stream == LoraStream::kX) return index % 2 == 0 ? pair : -pair;
      return pair * (1 + real * 0x1p-12);
    }
    case Fill::tiny: {
      const int lowest = c.dtype_value() == Dtype::f16 ? -24 : -80;
      return std::ldexp(real, lowest / 2 + int(bits % 12) - 6);
    }
  }
  return 0;
}

void fill_tensor(const LoraCase& c, Fill fill, uint64_t stream, Tensor& t) {
  for (int64_t i = 0; i < num_numbers(t); ++i) {
    set_number(t, i, random_number(c, fill, stream, uint64_t(i)));
  }
}

// What no operation may read.
void poison_beyond_rank(const std::vector<int32_t>& ranks, Tensor& a, Tensor& b) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t s = 0; s < a.shape()[0]; ++s) {
    for (int64_t j = ranks[size_t(s)]; j < a.shape()[1]; ++j) {
      for (int64_t k = 0; k < a.shape()[2]; ++k) a.set(nan, s, j, k);
      for (int64_t n = 0; n < b.shape()[1]; ++n) b.set(nan, s, n, j);
    }
  }
}

LoraCase random_case() {
  // At full size from the first case on: small sizes would draw few modes but the first.
  const auto size = [](int low, int high) {
    return rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
  };
  return *rc::gen::build<LoraCase>(
      rc::gen::set(&LoraCase::seed, sim::seeds()), rc::gen::set(&LoraCase::num_tokens, size(0, 9)),
      rc::gen::set(&LoraCase::num_in, size(1, 17)), rc::gen::set(&LoraCase::num_slices, size(1, 3)),
      rc::gen::set(&LoraCase::max_loras, size(1, 4)), rc::gen::set(&LoraCase::max_rank, size(1, 8)),
      rc::gen::set(&LoraCase::dtype, size(0, 2)), rc::gen::set(&LoraCase::mode, size(0, 15)));
}

}  // namespace

NumericMode LoraCase::mode_value() const {
  return {IntermediateMode(mode % 4), SumMode(mode / 4 % 2), ScaleMode(mode / 8)};
}

std::ostream& operator<<(std::ostream& out, const LoraCase& c) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  return out << fmt::format(
             "REPRO: LORATORY_CASE={}:{}:{}:{}:{}:{}:{}:{} <this binary> --gtest_filter={}.{}",
             c.seed, c.num_tokens, c.num_in, c.num_slices, c.max_loras, c.max_rank, c.dtype, c.mode,
             test->test_suite_name(), test->name());
}

LoraCase any_lora_case() {
  LoraCase c;
  if (const char* text = std::getenv("LORATORY_CASE"); text != nullptr) {
    unsigned long long seed = 0;
    RC_ASSERT(std::sscanf(text, "%llu:%d:%d:%d:%d:%d:%d:%d", &seed, &c.num_tokens, &c.num_in,
                          &c.num_slices, &c.max_loras, &c.max_rank, &c.dtype, &c.mode) == 8);
    c.seed = seed;
  } else {
    c = random_case();
  }
  RC_LOG() << c << '\n';
  RC_CLASSIFY(c.num_tokens == 0, "no tokens");
  RC_CLASSIFY(c.num_tokens == 1, "one token");
  RC_CLASSIFY(c.max_loras == 1, "one slot");
  RC_CLASSIFY(c.num_slices > 1, "packed");
  RC_CLASSIFY(c.dtype_value() != Dtype::f32, "16-bit weights");
  RC_CLASSIFY(c.mode_value().scale == ScaleMode::folded_b, "scaling folded into B");
  return c;
}

LoraData::LoraData(const LoraCase& c, Fill fill)
    : x(c.dtype_value(), {c.num_tokens, c.num_in}),
      y(c.dtype_value(), {0, 0}),
      mode(c.mode_value()) {
  const auto pick = [&](uint64_t stream, int64_t index, int64_t count) {
    return int64_t(random_bits(c.seed, stream, uint64_t(index)) % uint64_t(count));
  };
  for (int t = 0; t < c.num_tokens; ++t) {
    slots.push_back(int32_t(pick(LoraStream::kSlots, t, c.max_loras + 1)) - 1);
  }
  int64_t columns = 0;
  for (int i = 0; i < c.num_slices; ++i) {
    num_out.push_back(1 + pick(LoraStream::kWidths, i, 6));
    columns += num_out.back();
    ranks.emplace_back(), scalings.emplace_back();
    for (int s = 0; s < c.max_loras; ++s) {
      const int64_t index = i * c.max_loras + s;
      ranks.back().push_back(int32_t(pick(LoraStream::kRanks, index, c.max_rank + 1)));
      const float powers[] = {0.5F, 1, 2, -1, 0.5F};
      const bool exact = fill == Fill::small_integers;
      scalings.back().push_back(exact
                                    ? powers[pick(LoraStream::kScalings, index, 5)]
                                    : 0.3F + 0.37F * float(pick(LoraStream::kScalings, index, 9)));
    }
    a.emplace_back(c.dtype_value(), Extents{c.max_loras, c.max_rank, c.num_in});
    b.emplace_back(c.dtype_value(), Extents{c.max_loras, num_out.back(), c.max_rank});
    fill_tensor(c, fill, LoraStream::kA + uint64_t(i), a.back());
    fill_tensor(c, fill, LoraStream::kB + uint64_t(i), b.back());
    poison_beyond_rank(ranks.back(), a.back(), b.back());
  }
  y = Tensor(c.dtype_value(), {c.num_tokens, columns});
  fill_tensor(c, fill, LoraStream::kX, x);
  fill_tensor(c, fill, LoraStream::kY, y);
}

LinearArgs LoraData::args() {
  LinearArgs args{.x = x.view(), .slots = slots, .slices = {}, .mode = mode, .y = y.view()};
  for (size_t i = 0; i < a.size(); ++i) {
    args.slices.push_back({a[i].view(), b[i].view(), ranks[i], scalings[i], std::nullopt});
  }
  return args;
}

Tensor LoraData::run() const {
  LoraData copy = *this;
  lora_linear(copy.args());
  return copy.y;
}

Tensor LoraData::run(NumericMode other) const {
  LoraData copy = *this;
  copy.mode = other;
  return copy.run();
}

bool LoraData::covered(int64_t t, int64_t column) const {
  if (slot(t) == kBaseSlot) return false;
  size_t i = 0;
  for (; column >= num_out[i]; ++i) column -= num_out[i];
  return ranks[i][size_t(slot(t))] > 0;
}

LoraData with_tokens(const LoraData& data, const std::vector<int64_t>& order) {
  LoraData moved = data;
  const auto num_tokens = int64_t(order.size());
  moved.slots.clear();
  moved.x = Tensor(data.x.dtype(), {num_tokens, data.x.shape()[1]});
  moved.y = Tensor(data.y.dtype(), {num_tokens, data.num_columns()});
  for (int64_t t = 0; t < num_tokens; ++t) {
    const int64_t from = order[size_t(t)];
    moved.slots.push_back(data.slot(from));
    for (int64_t c = 0; c < data.x.shape()[1]; ++c) moved.x.set(data.x.get(from, c), t, c);
    for (int64_t n = 0; n < data.num_columns(); ++n) moved.y.set(data.y.get(from, n), t, n);
  }
  return moved;
}

double number(const Tensor& t, int64_t index) {
  return load(t.dtype(), t.bytes().data() + index * int64_t(size_bytes(t.dtype())));
}

void set_number(Tensor& t, int64_t index, double value) {
  store(t.dtype(), t.bytes().data() + index * int64_t(size_bytes(t.dtype())), value);
}

int64_t num_numbers(const Tensor& t) { return int64_t(t.bytes().size() / size_bytes(t.dtype())); }

bool same_bits(const Tensor& left, const Tensor& right) {
  return left.shape() == right.shape() && left.bytes() == right.bytes();
}

}  // namespace loratory::reference
