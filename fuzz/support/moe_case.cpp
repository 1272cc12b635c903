#include "fuzz/support/moe_case.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <ostream>

#include "fuzz/support/draw.hpp"
#include "fuzz/support/lora_case.hpp"

namespace loratory::reference {
namespace {

struct MoeStream {
  enum : uint64_t {
    kX,
    kW13,
    kW2,
    kExperts,
    kMap,
    kSlots,
    kEnabled,
    kWeights,
    kShape,
    kRanks,
    kScalings,
    kA = 100,
    kB = 200,
  };
};

double random_number(const MoeCase& c, MoeFill fill, uint64_t stream, uint64_t index) {
  const uint64_t bits = random_bits(c.seed, stream, index);
  if (fill == MoeFill::reals) return (double(bits >> 12) * 0x1p-52 - 0.5) * 4;
  return bits % 3 != 0 ? 0 : (bits / 3 % 2 == 0 ? 1 : -1);
}

void fill_tensor(const MoeCase& c, MoeFill fill, uint64_t stream, Tensor& t) {
  for (int64_t i = 0; i < num_numbers(t); ++i) {
    set_number(t, i, random_number(c, fill, stream, uint64_t(i)));
  }
}

// What no operation may read.
void poison_beyond_rank(int64_t s, int64_t e, int64_t rank, Tensor& a, Tensor& b) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t j = rank; j < a.shape()[2]; ++j) {
    for (int64_t n = 0; n < a.shape()[3]; ++n) a.set(nan, s, e, j, n);
    for (int64_t n = 0; n < b.shape()[2]; ++n) b.set(nan, s, e, n, j);
  }
}

MoeCase random_case(int multiple) {
  // At full size from the first case on: many experts and tokens are the rule.
  const auto size = [](int low, int high) {
    return rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
  };
  MoeCase c = *rc::gen::build<MoeCase>(
      rc::gen::set(&MoeCase::seed, sim::seeds()), rc::gen::set(&MoeCase::num_tokens, size(0, 6)),
      rc::gen::set(&MoeCase::hidden, size(1, multiple > 1 ? 2 : 9)),
      rc::gen::set(&MoeCase::inner, size(1, multiple > 1 ? 2 : 7)),
      rc::gen::set(&MoeCase::num_experts, size(1, multiple > 1 ? 2 : 12)),
      rc::gen::set(&MoeCase::k, size(1, 8)), rc::gen::set(&MoeCase::max_loras, size(1, 4)),
      rc::gen::set(&MoeCase::max_rank, size(1, multiple > 1 ? 1 : 5)),
      rc::gen::set(&MoeCase::dtype, size(0, 2)), rc::gen::set(&MoeCase::mode, size(0, 15)),
      rc::gen::set(&MoeCase::activation, size(0, 3)));
  for (int* n : {&c.hidden, &c.inner, &c.num_experts, &c.max_rank}) *n *= multiple;
  c.k = std::min(c.k, c.num_experts);
  return c;
}

}  // namespace

NumericMode MoeCase::mode_value() const {
  return {IntermediateMode(mode % 4), SumMode(mode / 4 % 2), ScaleMode(mode / 8)};
}

std::ostream& operator<<(std::ostream& out, const MoeCase& c) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  return out << fmt::format(
             "REPRO: LORATORY_CASE={}:{}:{}:{}:{}:{}:{}:{}:{}:{}:{} <this binary> "
             "--gtest_filter={}.{}",
             c.seed, c.num_tokens, c.hidden, c.inner, c.num_experts, c.k, c.max_loras, c.max_rank,
             c.dtype, c.mode, c.activation, test->test_suite_name(), test->name());
}

MoeCase any_moe_case(int multiple) {
  MoeCase c;
  if (const char* text = std::getenv("LORATORY_CASE"); text != nullptr) {
    unsigned long long seed = 0;
    RC_ASSERT(std::sscanf(text, "%llu:%d:%d:%d:%d:%d:%d:%d:%d:%d:%d", &seed, &c.num_tokens,
                          &c.hidden, &c.inner, &c.num_experts, &c.k, &c.max_loras, &c.max_rank,
                          &c.dtype, &c.mode, &c.activation) == 11);
    c.seed = seed;
  } else {
    c = random_case(multiple);
  }
  RC_LOG() << c << '\n';
  RC_CLASSIFY(c.num_tokens == 0, "no tokens");
  RC_CLASSIFY(c.k == 1, "k = 1");
  RC_CLASSIFY((c.k > 1) & (c.k < 8), "k = 2..7");
  RC_CLASSIFY(c.k == 8, "k = 8");
  RC_CLASSIFY(c.k == c.num_experts, "every token at every expert");
  return c;
}

MoeData::MoeData(const MoeCase& of, MoeFill fill)
    : c(of),
      x(Dtype(c.dtype), {c.num_tokens, c.hidden}),
      w13(Dtype(c.dtype), {0, 0, 0}),
      w2(Dtype(c.dtype), {c.num_experts, c.hidden, c.inner}) {
  gated = pick(MoeStream::kShape, 0, 4) != 0 || Activation(c.activation) == Activation::gpt_oss;
  weight_on_input = c.k == 1 && pick(MoeStream::kShape, 1, 2) == 0;
  const int64_t num_slices = gated ? 2 : 1;
  w13 = Tensor(Dtype(c.dtype), {c.num_experts, num_slices * c.inner, c.hidden});
  fill_tensor(c, fill, MoeStream::kX, x);
  fill_tensor(c, fill, MoeStream::kW13, w13);
  fill_tensor(c, fill, MoeStream::kW2, w2);
  for (int64_t t = 0; t < c.num_tokens; ++t) {
    slots.push_back(int32_t(pick(MoeStream::kSlots, t, c.max_loras + 1)) - 1);
    add_experts(t, fill);
  }
  // The element of slot -1 says anything.
  for (int s = 0; s <= c.max_loras; ++s) {
    adapter_enabled.push_back(pick(MoeStream::kEnabled, s, 5) != 0);
  }
  for (int64_t i = 0; i < num_slices; ++i) add_slice(c.hidden, c.inner, fill);
  add_slice(c.inner, c.hidden, fill);
}

int64_t MoeData::pick(uint64_t stream, int64_t index, int64_t count) const {
  return int64_t(random_bits(c.seed, stream, uint64_t(index)) % uint64_t(count));
}

void MoeData::add_experts(int64_t t, MoeFill fill) {
  const float powers[] = {0.25F, 0.5F, 1};
  for (int64_t i = 0; i < c.k; ++i) {
    const int64_t row = t * c.k + i;
    auto e = int32_t(pick(MoeStream::kExperts, row, c.num_experts));
    while (std::find(experts.end() - i, experts.end(), e) != experts.end()) {
      e = (e + 1) % c.num_experts;
    }
    experts.push_back(e);
    router_weights.push_back(fill == MoeFill::integers
                                 ? powers[pick(MoeStream::kWeights, row, 3)]
                                 : 0.01F + 0.09F * float(pick(MoeStream::kWeights, row, 11)));
  }
}

void MoeData::add_slice(int64_t num_in, int64_t num_out, MoeFill fill) {
  const auto i = int64_t(a.size());
  a.emplace_back(Dtype(c.dtype), Extents{c.max_loras, c.num_experts, c.max_rank, num_in});
  b.emplace_back(Dtype(c.dtype), Extents{c.max_loras, c.num_experts, num_out, c.max_rank});
  fill_tensor(c, fill, MoeStream::kA + uint64_t(i), a.back());
  fill_tensor(c, fill, MoeStream::kB + uint64_t(i), b.back());
  ranks.emplace_back(), scalings.emplace_back();
  const float powers[] = {0.5F, 1, 2, -1};
  for (int64_t s = 0; s < c.max_loras; ++s) {
    for (int64_t e = 0; e < c.num_experts; ++e) {
      const int64_t index = (i * c.max_loras + s) * c.num_experts + e;
      const auto rank = pick(MoeStream::kRanks, index, c.max_rank + 1);
      ranks.back().push_back(int32_t(rank));
      scalings.back().push_back(fill == MoeFill::integers
                                    ? powers[pick(MoeStream::kScalings, index, 4)]
                                    : 0.3F + 0.37F * float(pick(MoeStream::kScalings, index, 9)));
      poison_beyond_rank(s, e, rank, a.back(), b.back());
    }
  }
}

MoeArgs MoeData::args() const {
  MoeArgs args;
  args.x = x.view();
  args.rows = {c.k, experts, expert_map};
  args.router_weights = router_weights;
  args.w13 = w13.view();
  args.w2 = w2.view();
  args.gated = gated;
  args.activation = Activation(c.activation);
  args.router_weight_on_input = weight_on_input;
  args.intermediate = args.out = x.dtype();
  return args;
}

MoeLora MoeData::lora() const {
  std::vector<ExpertLoraSlice> slices;
  for (size_t i = 0; i < a.size(); ++i) {
    slices.push_back({a[i].view(), b[i].view(), ranks[i], scalings[i]});
  }
  const ExpertLoraSlice down = slices.back();
  slices.pop_back();
  return {{slots, adapter_enabled}, slices, down, c.mode_value()};
}

ExpertLoraArgs MoeData::lora_args(const std::vector<ExpertLoraSlice>& slices, const Tensor& from,
                                  Tensor& y) const {
  return {.x = from.view(),
          .rows = {c.k, experts, expert_map},
          .adapters = {slots, adapter_enabled},
          .slices = slices,
          .router_weights = {},
          .mode = c.mode_value(),
          .y = y.view()};
}

int32_t MoeData::rank(size_t slice, int32_t slot, int32_t expert) const {
  return ranks[slice][size_t(slot * c.num_experts + expert)];
}

int32_t MoeData::active_slot(int64_t token) const {
  const int32_t slot = slots[size_t(token)];
  return slot >= 0 && adapter_enabled[size_t(slot)] != 0 ? slot : -1;
}

}  // namespace loratory::reference
