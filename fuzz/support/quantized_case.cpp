#include "fuzz/support/quantized_case.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "check/kernels/reference_call.hpp"
#include "fuzz/support/draw.hpp"
#include "reference/base/integers.hpp"

namespace loratory::reference {
namespace {

// What shrinks; the rest follows from the seed.
struct Sizes {
  uint64_t seed = 0;
  int num_tokens = 0, num_in = 1, num_slices = 1, max_loras = 1, max_rank = 1;
  int weight = 0;      // f8_e4m3fn, f8_e5m2, i8
  int activation = 0;  // f32, f16, bf16, or 8-bit: of the weights' kind
  int scales = 0;      // the allowed pairs of weights and activations
};

Sizes random_sizes() {
  // At full size from the first case on: small sizes would draw few modes but the first.
  const auto size = [](int low, int high) {
    return rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
  };
  return *rc::gen::build<Sizes>(
      rc::gen::set(&Sizes::seed, sim::seeds()), rc::gen::set(&Sizes::num_tokens, size(0, 7)),
      rc::gen::set(&Sizes::num_in, size(1, 17)), rc::gen::set(&Sizes::num_slices, size(1, 3)),
      rc::gen::set(&Sizes::max_loras, size(1, 3)), rc::gen::set(&Sizes::max_rank, size(1, 8)),
      rc::gen::set(&Sizes::weight, size(0, 2)), rc::gen::set(&Sizes::activation, size(0, 3)),
      rc::gen::set(&Sizes::scales, size(0, 4)));
}

void set_formats(const Sizes& sizes, sim::Draw& draw, check::Case& c) {
  c.weight = Dtype(int(Dtype::f8_e4m3fn) + sizes.weight);
  const bool is_w8a8 = sizes.activation == 3;
  const Dtype fp8 = draw.one_of({Dtype::f8_e4m3fn, Dtype::f8_e5m2});  // the two may meet
  c.x = !is_w8a8 ? Dtype(sizes.activation) : c.weight == Dtype::i8 ? Dtype::i8 : fp8;
  c.y = draw.one_of({Dtype::f32, Dtype::f16, Dtype::bf16});
  c.weight_scales = sizes.scales == 4  ? LORATORY_SCALES_BLOCK
                    : sizes.scales < 2 ? LORATORY_SCALES_TENSOR
                                       : LORATORY_SCALES_CHANNEL;
  if (!is_w8a8) return;
  c.activation_scales = sizes.scales == 4       ? LORATORY_SCALES_BLOCK
                        : sizes.scales % 2 == 0 ? LORATORY_SCALES_TENSOR
                                                : LORATORY_SCALES_TOKEN;
}

check::Case case_of(const Sizes& sizes) {
  sim::Draw draw(sizes.seed);
  check::Case c{.num_in = sizes.num_in,
                .num_out = {},
                .ranks = {},
                .max_rank = sizes.max_rank,
                .num_tokens = sizes.num_tokens,
                .slots = {},
                .seed = sizes.seed};
  set_formats(sizes, draw, c);
  c.add_inputs = !draw.one_in(4);
  c.mode.sum = draw.one_of({SumMode::one_round, SumMode::two_round});
  for (int i = 0; i < sizes.num_slices; ++i) c.num_out.push_back(draw.between(1, 9));
  for (int s = 0; s < sizes.max_loras; ++s) {
    std::vector<int32_t>& of_slices = c.ranks.emplace_back();
    for (int i = 0; i < sizes.num_slices; ++i) of_slices.push_back(int32_t(draw(c.max_rank + 1)));
  }
  for (int t = 0; t < sizes.num_tokens; ++t) {
    c.slots.push_back(int32_t(draw(sizes.max_loras + 1)) - 1);
  }
  return c;
}

void classify(const check::Case& c) {
  const check::CaseData data(c);
  const bool is_block = c.weight_scales == LORATORY_SCALES_BLOCK;
  const auto is_square = [&] {
    return ceil_div<int64_t>(c.max_rank, data.a_block_n) == ceil_div(c.num_in, data.a_block_k);
  };
  RC_CLASSIFY(c.num_tokens == 0, "no tokens");
  RC_CLASSIFY(c.has_quantized_activations(), "w8a8");
  RC_CLASSIFY(c.weight == Dtype::i8, "i8");
  RC_CLASSIFY(is_block, "block");
  RC_CLASSIFY(is_block && !is_square(), "grid not square");
  RC_CLASSIFY(c.num_out.front() != c.num_out.back(), "ragged slices");
}

}  // namespace

check::Case with_operation(check::Case c, LoratoryOperation operation) {
  c.operation = operation;
  check_case(c);
  return c;
}

check::Case any_quantized_case(LoratoryOperation operation, check::Fill fill) {
  const char* const label = std::getenv("LORATORY_CASE");
  check::Case c = label != nullptr ? check::case_named(label) : case_of(random_sizes());
  c.fill = fill;
  if (operation == LORATORY_OP_EXPAND && !c.has_quantized_activations()) c.h = c.x;
  c = with_operation(c, operation);
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  RC_LOG() << "REPRO: LORATORY_CASE=" << label_of(c)
           << " <this binary> --gtest_filter=" << test->test_suite_name() << '.' << test->name()
           << '\n';
  classify(c);
  return c;
}

QuantizedShrinkArgs shrink_args(check::CaseData& data) {
  const check::InHostMemory placed(data, data.step);
  return check::quantized_shrink_args(placed.layer(), placed.call());
}

QuantizedExpandArgs expand_args(check::CaseData& data) {
  const check::InHostMemory placed(data, data.step);
  return check::quantized_expand_args(placed.layer(), placed.call());
}

QuantizedLinearArgs linear_args(check::CaseData& data) {
  const check::InHostMemory placed(data, data.step);
  return check::quantized_linear_args(placed.layer(), placed.call());
}

BlockSize a_block(const check::CaseData& data) { return {data.a_block_n, data.a_block_k}; }
BlockSize b_block(const check::CaseData& data) { return {data.b_block_n, data.b_block_k}; }

int64_t rank_of(const check::CaseData& data, int64_t slice, int64_t t) {
  const int32_t slot = data.step.slots[size_t(t)];
  return slot < 0 ? 0 : data.rank(size_t(slice), slot, 0);
}

}  // namespace loratory::reference
